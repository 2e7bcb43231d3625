"""A notice is sent at once, with the next digest, or after quiet hours: never lost, never before it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.model.notice_rules import NoticeKind, NoticeRule, NoticeRules, QuietHours, SendWhen
from fairway.model.notice_rules import parse_quiet_hours as parse
from fairway.policy.notice_times import SendTime, send_time

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = QuietHours(20 * 60, 7 * 60)


def sent(
    now: str, send: SendWhen, kind: NoticeKind = NoticeKind.BUDGET, quiet: QuietHours | None = NIGHT
) -> str | None:
    moment = datetime.fromisoformat(now).replace(tzinfo=BERLIN)
    found = send_time(NoticeRule(kind, send), NoticeRules(quiet=quiet), moment, BERLIN)
    if found is None:
        return None
    return f"{found.at.astimezone(BERLIN):%d %H:%M}{' alone' if found.alone else ''}"


@pytest.mark.parametrize(
    ("now", "send", "expected"),
    [
        ("2026-11-18 12:34", SendWhen.AT_ONCE, "18 12:34 alone"),
        ("2026-11-18 20:00", SendWhen.AT_ONCE, "19 07:00"),
        ("2026-11-18 06:59", SendWhen.AT_ONCE, "18 07:00"),
        ("2026-11-18 07:00", SendWhen.AT_ONCE, "18 07:00 alone"),
        ("2026-11-18 12:34", SendWhen.HOURLY, "18 13:00"),
        ("2026-11-18 12:00", SendWhen.HOURLY, "18 13:00"),
        ("2026-11-18 19:30", SendWhen.HOURLY, "19 07:00"),
        ("2026-11-18 07:59", SendWhen.DAILY, "18 08:00"),
        ("2026-11-18 08:00", SendWhen.DAILY, "19 08:00"),
        ("2026-11-18 08:00", SendWhen.NEVER, None),
        ("2026-03-29 01:30", SendWhen.HOURLY, "29 07:00"),  # clocks go from 2 to 3
        ("2026-10-24 23:00", SendWhen.AT_ONCE, "25 07:00"),  # and back
    ],
)
def test_when_a_notice_is_sent(now: str, send: SendWhen, expected: str | None) -> None:
    assert sent(now, send) == expected


def test_quiet_hours_delay_nothing_urgent() -> None:
    assert sent("2026-11-18 23:00", SendWhen.AT_ONCE, NoticeKind.HEALTH) == "18 23:00 alone"
    assert sent("2026-11-18 23:00", SendWhen.HOURLY, NoticeKind.HEALTH) == "19 07:00"
    assert sent("2026-11-18 23:00", SendWhen.AT_ONCE, quiet=QuietHours(0, 60)) == "18 23:00 alone"
    assert sent("2026-11-18 00:59", SendWhen.AT_ONCE, quiet=QuietHours(0, 60)) == "18 01:00"


def test_clocks_that_change_skip_no_digest() -> None:
    assert sent("2026-03-29 01:30", SendWhen.HOURLY, quiet=None) == "29 03:00"
    assert sent("2026-10-25 01:59", SendWhen.HOURLY, quiet=None) == "25 02:00"


@given(
    st.integers(1_767_225_600, 1_798_761_600).map(lambda at: datetime.fromtimestamp(at, UTC)),  # 2026
    st.sampled_from([SendWhen.AT_ONCE, SendWhen.HOURLY, SendWhen.DAILY]),
    st.sampled_from(["Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "America/St_Johns"]),
    st.integers(0, 1439),
    st.integers(0, 1439),
    st.integers(0, 23),
)
def test_nothing_is_sent_early_or_much_later(
    now: datetime, send: SendWhen, zone: str, start: int, end: int, hour: int
) -> None:
    quiet = None if start == end else QuietHours(start, end)
    rules = NoticeRules(quiet=quiet, digest_hour=hour)
    found = send_time(NoticeRule(NoticeKind.DRIFT, send), rules, now, ZoneInfo(zone))
    assert isinstance(found, SendTime)
    assert now <= found.at <= now + timedelta(hours=51)
    local = found.at.astimezone(ZoneInfo(zone))
    minute = local.hour * 60 + local.minute
    # An end that clocks skip or show twice may still be within the hours by the minute.
    if local.utcoffset() == (local - timedelta(hours=3)).utcoffset():
        assert quiet is None or not quiet.includes(minute)


def test_quiet_hours_are_written_as_they_are_read() -> None:
    assert parse("20:00-07:00") == NIGHT
    assert str(NIGHT) == "20:00-07:00"
    for text in ("20-7", "24:00-07:00", "20:00-20:00", "20:00–07:00", "20:00-07:00\n", ""):
        assert parse(text) is None
