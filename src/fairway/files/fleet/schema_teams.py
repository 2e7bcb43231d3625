"""Define the keys of teams, priorities, fairness and users in a fleet file."""

from __future__ import annotations

from typing import Final

from fairway.files.diagnostics import FaultCode, shown
from fairway.files.schema.containers import ExactlyOne, Key, ListOf, MapOf, Record, Recursive, Section
from fairway.files.schema.values import (
    ACCOUNT,
    MAIL_ADDRESS,
    NAME,
    PERSON,
    SHARED_PATH,
    SLICE,
    WEBHOOK_URL,
    Boolean,
    DurationValue,
    Integer,
    OneOf,
    OrUnlimited,
    Percent,
    Price,
    Problem,
    Text,
    as_name,
)
from fairway.model.budget import AtLimit, Every, Running
from fairway.model.names import NAME_PATTERN, NAME_RULE, is_reserved_team

MAX_DEVICES: Final = 10_000_000
MAX_MONEY: Final = 1_000_000_000_000
_DAY: Final = 86_400
_RESERVED_PRIORITIES: Final = frozenset({"fairway", "kin", "lent", "own"})


def _team_rule(text: str) -> Problem | None:
    if not is_reserved_team(text):
        return None
    return Problem(
        FaultCode.RESERVED_NAME,
        f"no team can be called {shown(text)}: the engines, or Fairway on them, use that name",
        f"choose another name, for example team-{shown(text)}"[:80],
    )


def _priority_rule(text: str) -> Problem | None:
    if text not in _RESERVED_PRIORITIES:
        return None
    return Problem(
        FaultCode.RESERVED_NAME,
        f"no priority can be called {text}: Fairway uses that name on the engines",
        "choose another name, for example urgent or nightly",
    )


TEAM_NAME: Final = Text(
    NAME_RULE, NAME_PATTERN[1:-1], 40, FaultCode.BAD_NAME, normalize=as_name, rule=_team_rule
)
PRIORITY_NAME: Final = Text(
    NAME_RULE, NAME_PATTERN[1:-1], 40, FaultCode.BAD_NAME, normalize=as_name, rule=_priority_rule
)
SUPPLY: Final = Text(
    "a pool, or a pool and one of its slices",
    rf"{NAME_PATTERN[1:-1]}(/{SLICE.pattern})?",
    80,
    normalize=lambda text: text.strip().lower().replace("_", "-"),
    examples=("hpc-a100", "hpc-mig/1g.10gb"),
)

# --- teams -----------------------------------------------------------------------------------------------

JOB_GPUS: Final = Key("gpus", OrUnlimited(Integer(1, MAX_DEVICES)), "The most GPUs, or slices, of one job.")
JOB_TIME: Final = Key(
    "time", OrUnlimited(DurationValue(1, 3650 * _DAY)), "The longest one job may run, e.g. 72h."
)
USER_GPUS: Final = Key(
    "gpus",
    OrUnlimited(Integer(1, MAX_DEVICES)),
    "The most GPUs, or slices, that one user's running jobs hold together.",
)
JOB_LIMITS: Final = Key("job", Record("Limits of one job", (JOB_GPUS, JOB_TIME)), "What one job may have.")
USER_LIMITS: Final = Key(
    "user", Record("Limits of one user", (USER_GPUS,)), "What one user of the team may have."
)
SHARE: Final = Key(
    "share", Integer(1, 1_000_000), "Weight among its siblings when more is wanted than is there.", default=1
)
GUARANTEE: Final = Key(
    "guarantee",
    MapOf(SUPPLY, Integer(0, MAX_DEVICES), "guarantees by pool"),
    "GPUs, or slices, that the team gets whenever it asks; part of its parent's.",
)
BORROW: Final = Key(
    "borrow",
    MapOf(SUPPLY, OrUnlimited(Integer(0, MAX_DEVICES)), "borrow limits by pool"),
    "The most beyond the guarantee, while nobody entitled asks; left out: whatever is idle.",
)
LIMITS: Final = Key(
    "limits",
    Record("Limits", (JOB_LIMITS, USER_LIMITS)),
    "The most one job, and one user, may have; left out: as the parent says.",
)
TEAM_PRIORITIES: Final = Key(
    "priorities",
    ListOf(NAME, "priorities"),
    "Which priorities its jobs may use; left out: those of its parent, or all.",
)
MEMBERS: Final = Key("members", ListOf(PERSON, "users"), "Who belongs to it, as the engines know them.")
DRAINING: Final = Key(
    "draining",
    Boolean(),
    "Nothing of it starts any more, what runs may end: the way to remove a team.",
    default=False,
)
AMOUNT: Final = Key(
    "amount",
    Price(MAX_MONEY, 3),
    "What it may spend in a period, in the fleet's currency, with all teams inside it.",
    example="120000",
    required=True,
)
EVERY: Final = Key(
    "every", OneOf(Every), "How long a period is: a calendar month or quarter.", default=Every.MONTH
)
WARN_AT: Final = Key(
    "warn_at", Percent(1, 100), "Percentage of the amount at which a warning is sent.", default="80%"
)
AT_LIMIT: Final = Key(
    "at_limit",
    OneOf(AtLimit),
    "At the limit: warn only warns, low-only starts only preemptible jobs, stop starts none.",
    default=AtLimit.WARN,
)
RUNNING: Final = Key(
    "running",
    OneOf(Running),
    "What runs when it is spent is left alone, or ended where at_limit would not let it start.",
    default=Running.LEAVE,
)
BUDGET: Final = Key(
    "budget",
    Record("A budget", (AMOUNT, EVERY, WARN_AT, AT_LIMIT, RUNNING)),
    "What the team, with all teams inside it, may spend.",
)
HOOK_URL: Final = Key("url", WEBHOOK_URL, "Address that gets each notice as JSON by POST.")
HOOK_URL_FILE: Final = Key(
    "url_file", SHARED_PATH, "File with the address, where that contains a secret; read for each notice."
)
HOOK_TOKEN_FILE: Final = Key("token_file", SHARED_PATH, "File with a bearer token for it.")
SLACK_URL_FILE: Final = Key(
    "url_file",
    SHARED_PATH,
    "File with the address of an incoming webhook, which is a secret; read for each notice.",
    example="/etc/fairway/slack.url",
    required=True,
)
MAIL_TO: Final = Key(
    "to",
    ListOf(MAIL_ADDRESS, "mail addresses"),
    "Who gets it; smtp_url of the server's settings says how.",
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
    "slack", Record("A Slack channel", (SLACK_URL_FILE,)), "Slack, or what takes the same JSON."
)
MAIL: Final = Key("mail", Record("Mail", (MAIL_TO,)), "Mail.")
_CHANNELS: Final = Record("Channels", (WEBHOOK, SLACK, MAIL))
TEAM_NOTIFY: Final = Key(
    "notify",
    _CHANNELS,
    "Where notices to the team go; left out: where those of the team above it go.",
    example="{ slack: { url_file: /etc/fairway/slack.url } }",
)
NOTIFY: Final = Key(
    "notify",
    _CHANNELS,
    "Where notices to the operators of the fleet go.",
    example="{ mail: { to: [gpu-ops@example.org] } }",
)
ACCOUNT_NAME: Final = Key(
    "account", ACCOUNT, "Its account on Slurm, where that has another name than the team."
)
TEAM: Final[Recursive[Section]] = Recursive("team", lambda: _TEAM)
INNER_TEAMS: Final = Key("teams", MapOf(TEAM_NAME, TEAM, "teams"), "The teams inside it, by name.")
_TEAM: Final[Record] = Record(
    "A team: a tenant; teams nest",
    (
        ACCOUNT_NAME,
        SHARE,
        GUARANTEE,
        BORROW,
        LIMITS,
        TEAM_PRIORITIES,
        MEMBERS,
        BUDGET,
        TEAM_NOTIFY,
        DRAINING,
        INNER_TEAMS,
    ),
)
DEFINITIONS: Final = {TEAM.name: _TEAM}
"""Recursive shapes, for `$defs` of the schema."""

TEAMS: Final = Key("teams", MapOf(TEAM_NAME, TEAM, "teams"), "Who shares the fleet, by name.")

# --- priorities, fairness, users --------------------------------------------------------------------------

RANK: Final = Key(
    "rank", Integer(1, 1_000_000), "A higher rank goes first within a team.", example="50", required=True
)
IS_DEFAULT: Final = Key(
    "default", Boolean(), "What a job without a word gets; one priority is it.", default=False
)
PREEMPTIBLE: Final = Key(
    "preemptible", OneOf(("always",)), "Runs only on what nobody else wants, whatever the team's guarantee."
)
PRIORITIES: Final = Key(
    "priorities",
    MapOf(PRIORITY_NAME, Record("A priority", (RANK, IS_DEFAULT, PREEMPTIBLE)), "priorities", min_entries=1),
    "Named classes of jobs; left out: urgent 100, normal 50 (default), low 10 (preemptible).",
)
HALF_LIFE: Final = Key(
    "half_life", DurationValue(1, 3650 * _DAY), "After which past use counts half.", default="7d"
)
FAIRNESS: Final = Key(
    "fairness", Record("Fairness", (HALF_LIFE,)), "How past use counts among those who want more."
)
DEFAULT_TEAM: Final = Key(
    "default_team", NAME, "The team of this user's jobs that name none.", example="research", required=True
)
USERS: Final = Key(
    "users",
    MapOf(PERSON, Record("A user", (DEFAULT_TEAM,)), "users"),
    "Settings of single users: the default team of users with several teams.",
)
