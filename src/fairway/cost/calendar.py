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


@dataclass(frozen=True, slots=True)
class Calendar:
    """The calendar of one time zone."""

    zone: tzinfo

    def day_of(self, at: int) -> date:
        """The day that the second `at` belongs to.

        What the clocks show, except in the minutes after a change that turned them back over midnight: they
        have shown the new day already, and it goes on. So days follow each other whatever the clocks do.
        """
        day = datetime.fromtimestamp(at, self.zone).date()
        return day + _DAY if self.day_start(day + _DAY) <= at else day

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
        day = self.day_of(at)
        hours = _hour_starts(self.zone, day)
        following = bisect_right(hours, at)
        end = hours[following] if following < len(hours) else self.day_end(day)
        return Span(hours[following - 1], end)

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
        found = []
        at = span.start
        while at < span.end:
            end = min(span.end, self.day_end(self.day_of(at)))
            found.append(Span(at, end))
            at = end
        return tuple(found)

    def hours(self, span: Span) -> tuple[Span, ...]:
        """`span` cut where hours begin, in order."""
        found = []
        for day in self.days(span):
            starts = _hour_starts(self.zone, self.day_of(day.start))
            inner = [s for s in starts if day.start < s < day.end]
            edges = [day.start, *inner, day.end]
            found += [Span(a, b) for a, b in pairwise(edges)]
        return tuple(found)

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


@lru_cache(maxsize=4096)
def _hour_starts(zone: tzinfo, day: date) -> tuple[int, ...]:
    at, end = _day_start(zone, day), _day_start(zone, day + _DAY)
    found = []
    while at < end:
        found.append(at)
        at = _full_hour_after(zone, at)
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
