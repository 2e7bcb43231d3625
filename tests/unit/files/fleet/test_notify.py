"""Channels for notices: read, written back, and faults that name what to write."""

from __future__ import annotations

import pytest

from fairway.files import FaultCode, check_text
from fairway.files.fleet.write import compose_fleet
from fairway.model.channel import Channels, Mail, Slack, Webhook
from fairway.model.notice_rules import (
    ChannelKind,
    NoticeKind,
    NoticeRule,
    NoticeRules,
    QuietHours,
    SendWhen,
)
from tests.unit.files.fleets import SHARED, changed, checked, only_fault

ALL = Channels(
    Webhook(url="https://hooks.example.org/fairway", token_file="/etc/fairway/hook.token"),
    Slack("/etc/fairway/slack.url"),
    Mail(("gpu-ops@example.org", "o'neil+gpus@example.org")),
    NoticeRules(
        (
            NoticeRule(NoticeKind.BUDGET, SendWhen.DAILY),
            NoticeRule(NoticeKind.JOB_END, SendWhen.HOURLY, (ChannelKind.SLACK, ChannelKind.MAIL)),
            NoticeRule(NoticeKind.STATEMENT),
        ),
        QuietHours(20 * 60, 7 * 60),
        9,
    ),
)
MAILED = "mail: { to: [ops@a.org] }"
TEXT = """\
notify:
  webhook: { url: https://hooks.example.org/fairway, token_file: /etc/fairway/hook.token }
  slack: { url_file: /etc/fairway/slack.url }
  mail: { to: [gpu-ops@example.org, "o'neil+gpus@example.org"] }
  rules:
    statement: {}
    budget: { send: daily }
    job-end: { send: hourly, to: [slack, mail] }
  quiet: 20:00-07:00
  digest_hour: 9
"""
SECRET = "share: 2, notify: { webhook: { url_file: /etc/fairway/nlp.url } },"


def test_every_key_is_read_and_written_back() -> None:
    fleet = checked(changed("share: 2,", SECRET, SHARED) + TEXT).fleet
    assert fleet is not None
    assert fleet.notify == ALL
    teams = {t.name: t.notify for t in fleet.teams if t.notify is not None}
    assert teams == {"nlp": Channels(Webhook(url_file="/etc/fairway/nlp.url"))}
    assert check_text(compose_fleet(fleet), "composed", None).fleet == fleet


@pytest.mark.parametrize(
    ("text", "code", "hint"),
    [
        ("{ slack: { url: https://hooks.slack.com/services/T/B/x } }", None, "url_file"),
        ("{ slack: { url_file: slack.url } }", FaultCode.BAD_PATH, ""),
        ("{ webhook: { url: https://a:b@hooks.example.org } }", FaultCode.SECRET_IN_FILE, "token_file"),
        ("{ webhook: { url: https://hooks.example.org/?key=x } }", FaultCode.BAD_URL, ""),
        ("{ webhook: { url: http://hooks.example.org/ } }", FaultCode.PLAIN_HTTP, "https"),
        ("{ webhook: { url: 'https://a.org', url_file: /a } }", None, "name one"),
        ("{ webhook: { token_file: /a } }", None, "name one"),
        ("{ mail: { to: [ops] } }", None, "gpu-ops@example.org"),
        ('{ mail: { to: ["ops@a.org\\r\\nBcc: x@b.org"] } }', None, ""),
        ("{ rules: { budget: { send: daily } } }", FaultCode.MISSING_KEY, "mail:"),
        ("{ quiet: 20:00-07:00 }", FaultCode.MISSING_KEY, "mail:"),
        (f"{{ {MAILED}, rules: {{ budgets: {{}} }} }}", FaultCode.UNKNOWN_KEY, "did you mean budget?"),
        (f"{{ {MAILED}, rules: {{ budget: {{ send: weekly }} }} }}", FaultCode.NOT_ONE_OF, "daily"),
        (f"{{ {MAILED}, rules: {{ budget: {{ to: [slack] }} }} }}", FaultCode.NOT_ONE_OF, "one of mail"),
        (f"{{ {MAILED}, quiet: 20:00-20:00 }}", FaultCode.BAD_VALUE, "20:00-07:00"),
        (f"{{ {MAILED}, quiet: 8pm-7am }}", FaultCode.BAD_VALUE, "20:00-07:00"),
        (f"{{ {MAILED}, digest_hour: 24 }}", FaultCode.OUT_OF_RANGE, "23"),
    ],
)
def test_faults_say_what_to_write(text: str, code: FaultCode | None, hint: str) -> None:
    faults = checked(f"{SHARED}notify: {text}\n").faults
    assert faults
    assert code is None or faults[0].code is code
    assert any(hint in f"{fault.hint} {fault.expected}" for fault in faults), faults


def test_a_channel_that_is_not_known_is_one_fault() -> None:
    assert only_fault(f"{SHARED}notify: {{ pager: {{}} }}\n").path == "notify.pager"
