"""Which time a question is about: the last days, a month, a day, from one day to another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from fairway.cost.calendar import Calendar
from fairway.model.charge import Span
from fairway.model.errors import PermanentError

LONGEST_DAYS: Final = 3660
"""Ten years: sums of days answer it, and nobody reads more at once."""
_FIRST_YEAR: Final = 1971
_LAST_YEAR: Final = 2199

_HINT: Final = "write it like 30d, 2026-10, 2026-10-15 or 2026-10-01..2026-10-15 (both days included)"


@dataclass(frozen=True, slots=True)
class Window:
    """Whole days of the fleet's time zone, as far as they are over or under way."""

    first: date
    until: date
    """The first day that is not of it."""
    span: Span
    """Cut where the hour that runs now ends: nothing is known of later."""
    now: int
    """Up to when what runs is counted."""

    @property
    def end(self) -> int:
        """Up to when anything is known."""
        return min(self.span.end, max(self.now, self.span.start))


def parse_window(text: str, calendar: Calendar, now: int) -> Window:
    """`30d`: today and the 29 days before. Raises PermanentError for what is no window."""
    first, until = _days(text, calendar.day_of(now))
    if not first < until or (until - first).days > LONGEST_DAYS:
        raise _invalid(text, f"it is not between 1 and {LONGEST_DAYS} days long")
    if first.year < _FIRST_YEAR or until.year > _LAST_YEAR:
        raise _invalid(text, f"years are {_FIRST_YEAR} to {_LAST_YEAR}")
    return window_of(first, until, calendar, now)


def window_of(first: date, until: date, calendar: Calendar, now: int) -> Window:
    """From a day up to but not another."""
    start, end = calendar.day_start(first), calendar.day_start(until)
    return Window(first, until, Span(start, max(start, min(end, calendar.next_hour(now)))), now)


def parse_month(text: str) -> date:
    """The first day of `2026-10`."""
    found = re.fullmatch(r"([0-9]{4})-([0-9]{2})", text)
    if found is None:
        raise _invalid(text, "it is no month")
    return _date(text, found[1], found[2], "01")


def next_month(month: date) -> date:
    """The first day of the month after."""
    return date(month.year + month.month // 12, month.month % 12 + 1, 1)


def _days(text: str, today: date) -> tuple[date, date]:
    if found := re.fullmatch(r"([1-9][0-9]{0,3})d", text):
        until = today + timedelta(days=1)
        return until - timedelta(days=int(found[1])), until
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}", text):
        month = parse_month(text)
        return month, next_month(month)
    day = r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    if found := re.fullmatch(day, text):
        first = _date(text, *found.groups())
        return first, first + timedelta(days=1)
    if found := re.fullmatch(day + r"\.\." + day, text):
        parts = found.groups()
        return _date(text, *parts[:3]), _date(text, *parts[3:]) + timedelta(days=1)
    raise _invalid(text, "it is no window of time")


def _date(text: str, year: str, month: str, day: str) -> date:
    if not _FIRST_YEAR <= int(year) < _LAST_YEAR:
        raise _invalid(text, f"years are {_FIRST_YEAR} to {_LAST_YEAR}")
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        raise _invalid(text, "there is no such day") from None


def _invalid(text: str, why: str) -> PermanentError:
    return PermanentError("InvalidWindow", f"{text!r}: {why}", _HINT)
