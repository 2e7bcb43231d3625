"""Hours, days and months of a time zone, in whole seconds since 1970.

An hour begins when the clocks there show a full hour, so a day begins with one everywhere: in Kolkata at
half past of UTC, and where clocks jump over midnight at whatever they show then. Hours are 3600 seconds long
except beside a change of less than an hour (Lord Howe: 5400, twice a year), days 86400 except where clocks
change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import pairwise

from fairway.model.charge import Span

_DAY = timedelta(days=1)
_HOUR = 3600
_BLOCK = 32 * 86400
"""How much time is worked out at once and remembered: asked of each usage row, this must be quick."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The calendar of one time zone."""

    zone: tzinfo

    def day_of(self, at: int) -> date:
        """The day that the second `at` belongs to.

        What the clocks show, except in the minutes after a change that turned them back over midnight: they
        have shown the new day already, and it goes on. So days follow each other whatever the clocks do.
        """
        days = _block(self.zone, at // _BLOCK)
        return days.days[bisect_right(days.day_starts, at) - 1]

    def day_start(self, day: date) -> int:
        """The first second that shows `day`, or a later one: some zones have left a day out."""
        return _day_start(self.zone, day)

    def day_end(self, day: date) -> int:
        """The first second after `day`."""
        return _day_start(self.zone, day + _DAY)

    def day_span(self, day: date) -> Span:
        """All of `day`."""
        return Span(self.day_start(day), self.day_end(day))

    def hour_span(self, at: int) -> Span:
        """The hour that `at` is in."""
        hours = _block(self.zone, at // _BLOCK).hour_starts
        following = bisect_right(hours, at)
        return Span(hours[following - 1], hours[following])

    def hour_start(self, at: int) -> int:
        """When the hour that `at` is in began."""
        return self.hour_span(at).start

    def next_hour(self, at: int) -> int:
        """When the hour after the one that `at` is in begins."""
        return self.hour_span(at).end

    def month_start(self, day: date) -> int:
        """When the month that `day` is in begins."""
        return self.day_start(day.replace(day=1))

    def month_end(self, day: date) -> int:
        """When the month after the one that `day` is in begins."""
        return self.day_start(next_month(day))

    def month_span(self, day: date) -> Span:
        """All of the month that `day` is in."""
        return Span(self.month_start(day), self.month_end(day))

    def days(self, span: Span) -> tuple[Span, ...]:
        """`span` cut where days begin, in order; empty days are left out."""
        return _days(self.zone, span.start, span.end)

    def hours(self, span: Span) -> tuple[Span, ...]:
        """`span` cut where hours begin, in order."""
        return _hours(self.zone, span.start, span.end)

    def days_in_month(self, day: date) -> int:
        """How many days the month that `day` is in really had."""
        return _days_in_month(self.zone, day.year, day.month)


def next_month(day: date) -> date:
    """The first day of the month after the one that `day` is in."""
    return (day.replace(day=1) + timedelta(days=32)).replace(day=1)


@lru_cache(maxsize=1024)
def _days_in_month(zone: tzinfo, year: int, month: int) -> int:
    calendar = Calendar(zone)
    return len(calendar.days(calendar.month_span(date(year, month, 1))))


@lru_cache(maxsize=8192)
def _day_start(zone: tzinfo, day: date) -> int:
    midnight = int(
        datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()
    )  # fold 0: the first of two
    if _shown(zone, midnight - 1).date() < day:
        return midnight
    # Midnight was jumped over, from before it to after it: the jump begins the day.
    return _first(zone, midnight - 86400, midnight, lambda shown: shown.date() >= day)


@dataclass(frozen=True, slots=True)
class _Block:
    """When days and hours begin, from before a block of time to after it."""

    days: tuple[date, ...]
    day_starts: tuple[int, ...]
    hour_starts: tuple[int, ...]


@lru_cache(maxsize=512)
def _block(zone: tzinfo, number: int) -> _Block:
    begin, end = number * _BLOCK, (number + 1) * _BLOCK
    day = _shown(zone, begin).date() - _DAY
    days: dict[int, date] = {}
    while not days or max(days) <= end:
        days[_day_start(zone, day)] = day  # of days that begin together all but the last are empty
        day += _DAY
    hours: list[int] = []
    for start, stop in pairwise(days):
        at = start
        while at < stop:
            hours.append(at)
            at = _full_hour_after(zone, at)
    return _Block(tuple(days.values()), tuple(days), (*hours, max(days)))


@lru_cache(maxsize=256)
def _days(zone: tzinfo, start: int, end: int) -> tuple[Span, ...]:
    calendar = Calendar(zone)
    found = []
    while start < end:
        until = min(end, calendar.day_end(calendar.day_of(start)))
        found.append(Span(start, until))
        start = until
    return tuple(found)


@lru_cache(maxsize=256)
def _hours(zone: tzinfo, start: int, end: int) -> tuple[Span, ...]:
    calendar = Calendar(zone)
    found = []
    while start < end:
        until = min(end, calendar.hour_span(start).end)
        found.append(Span(start, until))
        start = until
    return tuple(found)


def _full_hour_after(zone: tzinfo, at: int) -> int:
    """The next second after `at` that shows a full hour."""
    shown = _shown(zone, at)
    following = at + _HOUR - shown.minute * 60 - shown.second
    if _shown(zone, following).utcoffset() == shown.utcoffset():
        return following
    offset = shown.utcoffset()
    change = _first(zone, at, following, lambda then: then.utcoffset() != offset)
    then = _shown(zone, change)
    past = then.minute * 60 + then.second
    return change if past == 0 else change + _HOUR - past


def _shown(zone: tzinfo, at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC).astimezone(zone)


def _first(zone: tzinfo, before: int, after: int, is_it: Callable[[datetime], bool]) -> int:
    """The first second for which it holds, given that it does not yet `before` and does at `after`."""
    while after - before > 1:
        middle = (before + after) // 2
        if is_it(_shown(zone, middle)):
            after = middle
        else:
            before = middle
    return after
