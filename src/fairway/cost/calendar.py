"""Compute hours, days and months of a time zone, in whole seconds since the Unix epoch.

An hour begins when local clocks show a full hour, so every day begins with an hour: in Kolkata at half past
in UTC, and where clocks skip midnight at the first time they show after it. Hours are 3600 seconds long
except next to a change of less than an hour (Lord Howe: 5400, twice a year); days are 86400 seconds long
except where clocks change.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

from fairway.model.charge import Span
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet

_DAY = timedelta(days=1)

_HOUR = 3600

_BLOCK = 32 * 86400
"""Length of the precomputed and cached blocks: this is called for every usage row and must be fast."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The calendar of one time zone; times are seconds since the epoch."""

    zone: tzinfo

    def day_of(self, at: int) -> date:
        """Return the day that contains the second `at`.

        This is the local date, except after a change that turns clocks back over midnight: the new day has
        already begun then, and continues. So days are always consecutive.
        """
        days = _block(self.zone, at // _BLOCK)
        return days.days[bisect_right(days.day_starts, at) - 1]

    def day_start(self, day: date) -> int:
        """Return the first second of `day`, or of the next existing day: some zones have skipped a day."""
        return _day_start(self.zone, day)

    def day_end(self, day: date) -> int:
        """Return the first second after `day`."""
        return _day_start(self.zone, day + _DAY)

    def day_span(self, day: date) -> Span:
        """Return the span of `day`."""
        return Span(self.day_start(day), self.day_end(day))

    def hour_span(self, at: int) -> Span:
        """Return the span of the hour that contains `at`."""
        hours = _block(self.zone, at // _BLOCK).hour_starts
        following = bisect_right(hours, at)
        return Span(hours[following - 1], hours[following])

    def hour_start(self, at: int) -> int:
        """Return the start of the hour that contains `at`."""
        return self.hour_span(at).start

    def next_hour(self, at: int) -> int:
        """Return the start of the hour after the one that contains `at`."""
        return self.hour_span(at).end

    def month_start(self, day: date) -> int:
        """Return the start of the month that contains `day`."""
        return self.day_start(day.replace(day=1))

    def month_end(self, day: date) -> int:
        """Return the end of the month that contains `day`: the start of the next one."""
        return self.day_start(next_month(day))

    def month_span(self, day: date) -> Span:
        """Return the span of the month that contains `day`."""
        return Span(self.month_start(day), self.month_end(day))

    def days(self, span: Span) -> tuple[Span, ...]:
        """Split `span` at the start of each day, in order; days that were skipped are left out."""
        return _days(self.zone, span.start, span.end)

    def hours(self, span: Span) -> tuple[Span, ...]:
        """Split `span` at the start of each hour, in order."""
        return _hours(self.zone, span.start, span.end)

    def days_in_month(self, day: date) -> int:
        """Count the days of the month that contains `day`, without days that the zone skipped."""
        return _days_in_month(self.zone, day.year, day.month)


def calendar_of(fleet: Fleet) -> Calendar:
    """Return the calendar of a fleet, whose file was checked to name an existing time zone."""
    return Calendar(ZoneInfo(fleet.cost.timezone))


def next_month(day: date) -> date:
    """Return the first day of the month after the one that contains `day`."""
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
    if _local(zone, midnight - 1).date() < day:
        return midnight
    # Clocks skipped midnight: the day begins with the change.
    return _first(zone, midnight - 86400, midnight, lambda local: local.date() >= day)


@dataclass(frozen=True, slots=True)
class _Block:
    """The starts of days and hours in one block of time, and a little beyond it on both sides."""

    days: tuple[date, ...]
    day_starts: tuple[int, ...]
    hour_starts: tuple[int, ...]


@lru_cache(maxsize=512)
def _block(zone: tzinfo, number: int) -> _Block:
    begin, end = number * _BLOCK, (number + 1) * _BLOCK
    day = _local(zone, begin).date() - _DAY
    days: dict[int, date] = {}
    while not days or max(days) <= end:
        days[_day_start(zone, day)] = day  # of days with the same start, all but the last are empty
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
    """Return the next second after `at` at which local clocks show a full hour."""
    local = _local(zone, at)
    following = at + _HOUR - local.minute * 60 - local.second
    if _local(zone, following).utcoffset() == local.utcoffset():
        return following
    offset = local.utcoffset()
    change = _first(zone, at, following, lambda then: then.utcoffset() != offset)
    then = _local(zone, change)
    past = then.minute * 60 + then.second
    return change if past == 0 else change + _HOUR - past


def _local(zone: tzinfo, at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC).astimezone(zone)


def _first(zone: tzinfo, before: int, after: int, predicate: Callable[[datetime], bool]) -> int:
    """Bisect for the first second at which `is_it` is true; it is false at `before` and true at `after`."""
    while after - before > 1:
        middle = (before + after) // 2
        if predicate(_local(zone, middle)):
            after = middle
        else:
            before = middle
    return after


MAX_DAYS: Final = 3660
"""Ten years: served from daily sums; no report needs more."""

_FIRST_YEAR: Final = 1971

_LAST_YEAR: Final = 2199


WINDOW_WORDS: Final = ("today", "yesterday", "this-week", "last-week", "this-month", "last-month")
"""Windows that are named relative to today. A week begins on Monday."""

_HINT: Final = (
    "use 7d, 2026-10, 2026-10-15, 2026-10-01..2026-10-15 (both days included), "
    f"{', '.join(WINDOW_WORDS[:-1])} or {WINDOW_WORDS[-1]}"
)

_MAX_QUOTED: Final = 40
"""Characters of an invalid window that its error repeats."""


@dataclass(frozen=True, slots=True)
class Window:
    """Whole days in the fleet's time zone, up to the current hour."""

    first: date
    until: date
    """The first day after the window."""
    span: Span
    """Truncated at the end of the current hour: there is no data beyond it."""
    now: int
    """The time up to which running jobs are counted."""

    @property
    def end(self) -> int:
        """Return the time up to which the window has data."""
        return min(self.span.end, max(self.now, self.span.start))

    @property
    def is_month(self) -> bool:
        """Return whether the window is exactly one calendar month."""
        return self.first.day == 1 and self.until == next_month(self.first)


def parse_window(text: str, calendar: Calendar, now: int) -> Window:
    """Parse a window of whole days. Raises PermanentError if it is invalid.

    `30d` is today and the 29 days before, `2026-10` a month, `2026-10-15` a day, `2026-10-01..2026-10-15` a
    range that includes both days, and `last-week` one of the WINDOW_WORDS.
    """
    first, until = _parse_days(text, calendar.day_of(now))
    if not first < until or (until - first).days > MAX_DAYS:
        raise _invalid(text, f"must be 1 to {MAX_DAYS} days long")
    if first.year < _FIRST_YEAR or until.year > _LAST_YEAR:
        raise _invalid(text, f"must be between the years {_FIRST_YEAR} and {_LAST_YEAR}")
    return window_of(first, until, calendar, now)


def window_of(first: date, until: date, calendar: Calendar, now: int) -> Window:
    """Return the window from `first` up to but excluding `until`."""
    start, end = calendar.day_start(first), calendar.day_start(until)
    return Window(first, until, Span(start, max(start, min(end, calendar.next_hour(now)))), now)


def parse_month(text: str) -> date:
    """Parse a month such as `2026-10` into its first day. Raises PermanentError if it is invalid."""
    found = re.fullmatch(r"([0-9]{4})-([0-9]{2})", text)
    if found is None:
        raise _invalid(text, "is not a month such as 2026-10")
    return _date(text, found[1], found[2], "01")


def _parse_days(text: str, today: date) -> tuple[date, date]:
    if text in WINDOW_WORDS:
        return _named_days(text, today)
    if found := re.fullmatch(r"([1-9][0-9]{0,3})d", text):
        until = today + _DAY
        return until - timedelta(days=int(found[1])), until
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}", text):
        month = parse_month(text)
        return month, next_month(month)
    day = r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    if found := re.fullmatch(day, text):
        first = _date(text, *found.groups())
        return first, first + _DAY
    if found := re.fullmatch(day + r"\.\." + day, text):
        parts = found.groups()
        return _date(text, *parts[:3]), _date(text, *parts[3:]) + _DAY
    raise _invalid(text, "is not a time window")


def _named_days(word: str, today: date) -> tuple[date, date]:
    monday = today - timedelta(days=today.weekday())
    month = today.replace(day=1)
    return {
        "today": (today, today + _DAY),
        "yesterday": (today - _DAY, today),
        "this-week": (monday, monday + timedelta(days=7)),
        "last-week": (monday - timedelta(days=7), monday),
        "this-month": (month, next_month(month)),
        "last-month": ((month - _DAY).replace(day=1), month),
    }[word]


def _date(text: str, year: str, month: str, day: str) -> date:
    if not _FIRST_YEAR <= int(year) < _LAST_YEAR:
        raise _invalid(text, f"must be between the years {_FIRST_YEAR} and {_LAST_YEAR}")
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        raise _invalid(text, "names a day or month that does not exist") from None


def _invalid(text: str, why: str) -> PermanentError:
    shown = text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…"
    return PermanentError("InvalidWindow", f"{shown!r} {why}", _HINT)
