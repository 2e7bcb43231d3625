"""Define the keys of channels for notices, and of their rules, in a fleet file."""

from __future__ import annotations

from typing import Final

from fairway.files.schema.containers import ExactlyOne, Key, ListOf, Record
from fairway.files.schema.values import (
    MAIL_ADDRESS,
    SHARED_PATH,
    WEBHOOK_URL,
    Integer,
    OneOf,
    Text,
    bad_value,
)
from fairway.model.notice_rules import (
    DIGEST_HOUR,
    QUIET_PATTERN,
    ChannelKind,
    NoticeKind,
    SendWhen,
    parse_quiet_hours,
)

HOOK_URL: Final = Key("url", WEBHOOK_URL, "URL that receives each notice as JSON in a POST request.")
HOOK_URL_FILE: Final = Key(
    "url_file", SHARED_PATH, "File with the URL, if it contains a secret; read for each notice."
)
HOOK_TOKEN_FILE: Final = Key("token_file", SHARED_PATH, "File with a bearer token for the URL.")
SLACK_URL_FILE: Final = Key(
    "url_file",
    SHARED_PATH,
    "File with the URL of an incoming webhook, which is a secret; read for each notice.",
    example="/etc/fairway/slack.url",
    required=True,
)
MAIL_TO: Final = Key(
    "to",
    ListOf(MAIL_ADDRESS, "mail addresses"),
    "Recipients; requires smtp_url in the server's settings.",
    example="[gpu-ops@example.org]",
    required=True,
)
WEBHOOK: Final = Key(
    "webhook",
    Record(
        "A webhook",
        (HOOK_URL, HOOK_URL_FILE, HOOK_TOKEN_FILE),
        ExactlyOne(
            (HOOK_URL, HOOK_URL_FILE), "name one:  webhook: { url: https://hooks.example.org/fairway }"
        ),
    ),
    "Any address that takes JSON.",
)
SLACK: Final = Key(
    "slack", Record("A Slack channel", (SLACK_URL_FILE,)), "Slack, or a service that accepts the same JSON."
)
MAIL: Final = Key("mail", Record("Mail", (MAIL_TO,)), "Mail.")
SEND: Final = Key("send", OneOf(SendWhen), "When notices of this kind are sent.", default=SendWhen.AT_ONCE)
TO: Final = Key(
    "to", ListOf(OneOf(ChannelKind), "channels"), "Channels that get them; default: all.", example="[slack]"
)
_ABOUT: Final = {
    NoticeKind.BUDGET: "A budget reached its warning or its limit, or a hold was lifted.",
    NoticeKind.ANOMALY: "A team spends unusually much, compared with its own past.",
    NoticeKind.JOB_END: "A job ended; without a rule, never.",
    NoticeKind.DRIFT: "A cluster differs from what was applied to it, or no longer does.",
    NoticeKind.HEALTH: "A GPU is broken, a cluster cannot be reached, a loop does not run.",
    NoticeKind.IDLE: "An idle rule warns about a job, or acted on it.",
    NoticeKind.ALERT: "An alert of Prometheus.",
    NoticeKind.STATEMENT: "A month was closed, with the statement; without a rule, never.",
    NoticeKind.SLO: "A service level objective misses its target, or spends its error budget fast.",
}
KINDS: Final = {
    kind: Key(kind.value, Record("A rule for one kind of notices", (SEND, TO)), about)
    for kind, about in _ABOUT.items()
}
RULES: Final = Key(
    "rules",
    Record("Rules by kind of notice", tuple(KINDS.values())),
    "When and by which channels each kind of notice is sent; default: at once, by all.",
    example="{ budget: { send: daily }, job-end: { send: hourly, to: [slack] } }",
)
QUIET: Final = Key(
    "quiet",
    Text(
        "two different times of day, from-to",
        QUIET_PATTERN,
        11,
        rule=lambda text: (
            None
            if parse_quiet_hours(text)
            else bad_value(text, "a time span", "write two different times, for example 20:00-07:00")
        ),
        examples=("20:00-07:00",),
    ),
    "Quiet hours in the fleet's time zone: what is not urgent is sent after them.",
)
DIGEST: Final = Key(
    "digest_hour",
    Integer(0, 23),
    "Hour at which daily digests are sent, in the fleet's time zone.",
    default=DIGEST_HOUR,
)
_CHANNELS: Final = Record("Channels", (WEBHOOK, SLACK, MAIL, RULES, QUIET, DIGEST))
TEAM_NOTIFY: Final = Key(
    "notify",
    _CHANNELS,
    "Channels for notices to the team; default: those of its parent.",
    example="{ slack: { url_file: /etc/fairway/slack.url } }",
)
NOTIFY: Final = Key(
    "notify",
    _CHANNELS,
    "Channels for notices to the operators of the fleet.",
    example="{ mail: { to: [gpu-ops@example.org] } }",
)
