"""Decide when a notice is sent: at once, with the next digest, or after quiet hours."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo

from fairway.model.notice_rules import URGENT_KINDS, NoticeRule, NoticeRules, QuietHours, SendWhen


@dataclass(frozen=True, slots=True)
class SendTime:
    """When a notice is sent by a channel."""

    at: datetime
    alone: bool
    """Whether it is a message of its own; else it is sent with whatever else is due on the channel then."""


def send_time(rule: NoticeRule, rules: NoticeRules, now: datetime, zone: tzinfo) -> SendTime | None:
    """Return when to send a notice of the rule's kind. Returns None if the rule says never.

    Quiet hours delay digests of any kind, and single notices unless their kind is urgent.
    """
    if rule.send is SendWhen.NEVER:
        return None
    if rule.send is SendWhen.AT_ONCE:
        end = None if rule.kind in URGENT_KINDS else _quiet_end(rules.quiet, now, zone)
        return SendTime(now, alone=True) if end is None else SendTime(end, alone=False)
    digest = _next_digest(rule.send, rules.digest_hour, now, zone)
    return SendTime(_quiet_end(rules.quiet, digest, zone) or digest, alone=False)


def _next_digest(send: SendWhen, hour: int, now: datetime, zone: tzinfo) -> datetime:
    """Return the next full hour of the zone's clocks, or the next time they show the hour of the digest."""
    local = now.astimezone(zone)
    if send is SendWhen.HOURLY:
        # Counted in UTC from the past hour: clocks may change in between.
        past = timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
        return now.astimezone(UTC) - past + timedelta(hours=1)
    return _next_time(local, time(hour))


def _quiet_end(quiet: QuietHours | None, at: datetime, zone: tzinfo) -> datetime | None:
    """Return the end of the quiet hours that include a time. Returns None if there are none."""
    if quiet is None:
        return None
    local = at.astimezone(zone)
    if not quiet.includes(local.hour * 60 + local.minute):
        return None
    return _next_time(local, time(*divmod(quiet.end, 60)))


def _next_time(local: datetime, wanted: time) -> datetime:
    """Return the first time after `local` at which the clocks show `wanted`, in UTC."""
    for days in range(3):
        found = datetime.combine(local.date() + timedelta(days=days), wanted, local.tzinfo).astimezone(UTC)
        if found > local.astimezone(UTC):
            return found
    raise AssertionError("clocks show every time of day within two days")  # pragma: no cover
