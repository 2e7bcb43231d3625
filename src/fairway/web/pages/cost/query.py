"""Parse the Cost page's query from its URL, and build URLs from queries. Pure.

The URL holds the whole query, so that a page can be linked to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from fairway.cost.calendar import next_month, parse_month
from fairway.model.charge import Label
from fairway.services.cost_queries import CostQuestion
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.reports import PLACES
from fairway.wire import costs as wire

DEFAULT_WINDOW: Final = "30d"
FEW_ROWS: Final = 50
MANY_ROWS: Final = 1000
_LONGEST_NAME: Final = 200
_SHORT_DAYS: Final = 2
"""In windows this short, an incomplete day is not comparable with a complete one."""


class ReportKind(StrEnum):
    """The three reports of the page."""

    COST = "cost"
    USAGE = "usage"
    WASTE = "waste"


class QueryParams(Protocol):
    """The query parameters of a request."""

    def getlist(self, key: str) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class CostQuery:
    """A query of the Cost page."""

    what: ReportKind = ReportKind.COST
    window: str = DEFAULT_WINDOW
    by: tuple[Label, ...] = (Label.TEAM,)
    team: str | None = None
    user: str | None = None
    pool: str | None = None
    most: int = FEW_ROWS

    @classmethod
    def of(cls, words: QueryParams) -> CostQuery:
        """Raises RequestError for a word that means nothing; empty fields of a form count as not there."""
        given = {key: _last(words, key) for key in ("what", "window", "team", "user", "pool", "most")}
        what = _what(given["what"])
        named = [word for word in words.getlist("by") if word]
        return cls(
            what=what,
            window=given["window"] or DEFAULT_WINDOW,
            by=_labels(named, what),
            team=None if what is ReportKind.WASTE else given["team"],
            user=None if what is ReportKind.WASTE else given["user"],
            pool=given["pool"],
            most=MANY_ROWS if given["most"] == str(MANY_ROWS) else FEW_ROWS,
        )

    def question(self) -> CostQuestion:
        """Convert it for CostQueries. Unused places are few, and what is beyond would be in no row."""
        most = MANY_ROWS if self.what is ReportKind.WASTE else self.most
        return CostQuestion(self.window, self.by, self.team, self.user, self.pool, most)

    def address(self, path: str = "/cost", **changed: Any) -> str:
        """Return the URL of this query with some fields changed."""
        query = replace(self, **changed) if changed else self
        if query.what is ReportKind.WASTE:
            by = tuple(label for label in query.by if label in PLACES) or (Label.POOL,)
            query = replace(query, by=by, team=None, user=None)
        words: list[tuple[str, str]] = []
        if query.what is not ReportKind.COST:
            words.append(("what", query.what.value))
        words.append(("window", query.window))
        words += [("by", label.value) for label in query.by]
        only = (("team", query.team), ("user", query.user), ("pool", query.pool))
        words += [(key, name) for key, name in only if name]
        if query.most != FEW_ROWS:
            words.append(("most", str(query.most)))
        return f"{path}?{urlencode(words)}"

    def narrowed(self, label: Label, name: str) -> str | None:
        """Return the URL that drills down into a row's label. Returns None if there is nothing below it."""
        if not name or (self.what is ReportKind.WASTE and label not in (Label.POOL, Label.DAY)):
            return None
        match label:
            case Label.TEAM:
                return self.address(team=name, by=self._inside(Label.USER))
            case Label.USER:
                return self.address(user=name, by=self._inside(Label.POOL))
            case Label.POOL:
                return self.address(pool=name, by=self._inside(self._of_pool()))
            case Label.DAY:
                return self.address(window=name, by=self._inside(self._of_day()))
            case _:
                return None

    def _inside(self, label: Label) -> tuple[Label, ...]:
        known = {Label.TEAM: self.team, Label.USER: self.user, Label.POOL: self.pool}
        return (label,) if not known.get(label) else (Label.DAY,)

    def _of_pool(self) -> Label:
        if self.what is ReportKind.WASTE:
            return Label.DAY
        return Label.TEAM if not self.team else Label.USER

    def _of_day(self) -> Label:
        rest = [label for label in self.by if label is not Label.DAY]
        return rest[0] if rest else Label.POOL if self.what is ReportKind.WASTE else Label.TEAM


@dataclass(frozen=True, slots=True)
class Choice:
    """A link to another window."""

    name: str
    address: str
    chosen: bool


def windows(query: CostQuery, today: date) -> list[Choice]:
    """Return links to common windows."""
    this = today.replace(day=1)
    last = (this - timedelta(days=1)).replace(day=1)
    named = {
        "7 days": "7d",
        "30 days": "30d",
        "90 days": "90d",
        f"{this:%B}": f"{this:%Y-%m}",
        f"{last:%B}": f"{last:%Y-%m}",
        "Today": today.isoformat(),
    }
    return [Choice(name, query.address(window=text), query.window == text) for name, text in named.items()]


def window_before(text: str, shown: wire.Window, today: date) -> str | None:
    """Return the window to compare with: the previous month, or as many days before.

    Returns None if a comparison would be unfair. For a window that is not over, compare only as many days as
    have begun: half of November with half of October.
    """
    first, last = shown.first_day, min(shown.last_day, today)
    days = (last - first).days + 1
    lasts = shown.last_day >= today
    if days < 1 or (lasts and days <= _SHORT_DAYS):
        return None
    if re.fullmatch(wire.MONTH_PATTERN, text):
        month = (first - timedelta(days=1)).replace(day=1)
        if not lasts:
            return f"{month:%Y-%m}"
        end = min(month + timedelta(days=days), next_month(month)) - timedelta(days=1)
        return f"{month}..{end}"
    return f"{first - timedelta(days=days)}..{first - timedelta(days=1)}"


def months_until(today: date, many: int) -> list[str]:
    """Return this month and previous ones, newest first."""
    found, month = [], today.replace(day=1)
    for _ in range(many):
        found.append(f"{month:%Y-%m}")
        month = (month - timedelta(days=1)).replace(day=1)
    return found


def month_beside(month: str) -> tuple[str, str]:
    """Return the months before and after."""
    first = parse_month(month)
    return f"{first - timedelta(days=1):%Y-%m}", f"{next_month(first):%Y-%m}"


def _last(words: QueryParams, key: str) -> str | None:
    given = words.getlist(key)
    text = given[-1].strip() if given else ""
    if len(text) > _LONGEST_NAME:
        raise _invalid(f"{key}: it is longer than {_LONGEST_NAME} characters", "shorten it")
    return text or None


def _what(word: str | None) -> ReportKind:
    try:
        return ReportKind(word) if word else ReportKind.COST
    except ValueError:
        known = ", ".join(ReportKind)
        raise _invalid(f"what: there is no question {word!r}", f"what is any of {known}") from None


def _labels(words: list[str], what: ReportKind) -> tuple[Label, ...]:
    known: Mapping[str, Label] = {
        label.value: label for label in (PLACES if what is ReportKind.WASTE else Label)
    }
    if unknown := [word for word in words if word not in known]:
        raise _invalid(f"by: {what} is not told apart by {unknown[0]!r}", f"by is any of {', '.join(known)}")
    default = Label.POOL if what is ReportKind.WASTE else Label.TEAM
    return tuple(dict.fromkeys(known[word] for word in words)) or (default,)


def _invalid(message: str, hint: str) -> RequestError:
    return RequestError(ErrorKind.INVALID, "InvalidRequest", message, hint)
