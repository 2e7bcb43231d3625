"""The time range of a page: from its address, else as last chosen in this browser. Pure but for the cookie.

All pages share one picker. Cost has whole days only, so the last 24 hours are today there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from fastapi import Request, Response

from fairway.cost.calendar import calendar_of, parse_window
from fairway.model.charge import Span
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.services.errors import ErrorKind, RequestError

LAST_DAY: Final = "24h"
TODAY: Final = "today"
RANGES: Final = (
    (LAST_DAY, "24 h"),
    ("7d", "7 days"),
    ("30d", "30 days"),
    ("90d", "90 days"),
    ("this-month", "This month"),
    ("last-month", "Last month"),
)
COOKIE: Final = "fairway_window"
MAX_DAYS: Final = 366
"""The longest range of a chart."""
HOURLY_DAYS: Final = 8
"""Longer ranges are drawn by day."""
_COOKIE_SECONDS: Final = 30 * 86_400
_DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class RangeChoice:
    """A choice of the picker."""

    name: str
    address: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A range of time as charts draw it."""

    text: str
    span: Span
    """Cut at the end of the current hour."""
    by_day: bool

    @property
    def name(self) -> str:
        """Return it in words: `7 days`, `this month`, `2026-10-01 to 2026-10-15`."""
        named = dict(RANGES).get(self.text)
        return named.lower() if named else self.text.replace("..", " to ")


def window_text(request: Request, default: str) -> str:
    """Return the window of the address, or the one chosen last, or the default. It may be invalid."""
    return request.query_params.get("window", "").strip() or request.cookies.get(COOKIE, "") or default


def known_window(fleet: Fleet, request: Request, default: str) -> str:
    """Return the window of the address, valid or not; else the one chosen last, if it is valid."""
    text = window_text(request, default)
    if not request.query_params.get("window"):
        try:
            parse_range(fleet, text, int(time.time()))
        except PermanentError:
            return default
    return text


def keep_window(request: Request, response: Response, text: str) -> Response:
    """Let the browser keep the window of the address for other pages."""
    if request.query_params.get("window"):
        secure = request.url.scheme == "https"
        response.set_cookie(
            COOKIE, text, max_age=_COOKIE_SECONDS, httponly=True, samesite="lax", secure=secure
        )
    return response


def time_range(fleet: Fleet, request: Request, default: str, now: int | None = None) -> TimeRange:
    """Read the range of a page with charts. Raises RequestError if the address has an invalid one."""
    text = known_window(fleet, request, default)
    try:
        return parse_range(fleet, text, int(time.time()) if now is None else now)
    except PermanentError as error:
        raise RequestError(ErrorKind.INVALID, error.code, error.message, error.hint) from error


def parse_range(fleet: Fleet, text: str, now: int) -> TimeRange:
    """Parse a window of reports, or `24h`. Raises PermanentError. Pure."""
    calendar = calendar_of(fleet)
    if text == LAST_DAY:
        return TimeRange(text, Span(calendar.hour_start(now - _DAY), calendar.next_hour(now)), by_day=False)
    window = parse_window(text, calendar, now)
    if (window.until - window.first).days > MAX_DAYS:
        raise PermanentError(
            "InvalidWindow", f"{text!r} is longer than {MAX_DAYS} days", "choose a shorter one:  window=90d"
        )
    days = (window.span.end - window.span.start) / _DAY
    return TimeRange(text, window.span, by_day=days > HOURLY_DAYS)


def report_window(text: str) -> str:
    """Return the window of reports, which have whole days, for the window of a chart."""
    return TODAY if text == LAST_DAY else text


def range_choices(
    path: str, chosen: str, more: tuple[tuple[str, str], ...] = (), *, whole_days: bool = False
) -> list[RangeChoice]:
    """Return the choices of the picker; `more` are the other parameters of the address."""
    ranges = ((TODAY, "Today"), *RANGES[1:]) if whole_days else RANGES
    return [
        RangeChoice(name, f"{path}?{urlencode([*more, ('window', text)])}", text == chosen)
        for text, name in ranges
    ]
