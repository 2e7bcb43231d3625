"""What the page of cost is asked, from its address and back into addresses. Pure.

The address holds the whole question, so a link to it is a link to the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from fairway.api import cost_wire as wire
from fairway.api.cost_desk import Asked
from fairway.api.problems import ApiError
from fairway.control.cost_reports import PLACES
from fairway.cost.window import next_month, parse_month
from fairway.model.charge import Label

DEFAULT_WINDOW: Final = "30d"
FEW_ROWS: Final = 50
MANY_ROWS: Final = 1000
_LONGEST_NAME: Final = 200
_SHORT_DAYS: Final = 2
"""Of a window so short, a day that is not over says little beside one that is."""


class What(StrEnum):
    """The three questions."""

    COST = "cost"
    USAGE = "usage"
    WASTE = "waste"


class Words(Protocol):
    """The words of an address, as a request has them."""

    def getlist(self, key: str) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class CostQuery:
    """One question of the page."""

    what: What = What.COST
    window: str = DEFAULT_WINDOW
    by: tuple[Label, ...] = (Label.TEAM,)
    team: str | None = None
    user: str | None = None
    pool: str | None = None
    most: int = FEW_ROWS

    @classmethod
    def of(cls, words: Words) -> CostQuery:
        """Raises ApiError for a word that means nothing; empty fields of a form count as not there."""
        given = {key: _last(words, key) for key in ("what", "window", "team", "user", "pool", "most")}
        what = _what(given["what"])
        named = [word for word in words.getlist("by") if word]
        return cls(
            what=what,
            window=given["window"] or DEFAULT_WINDOW,
            by=_labels(named, what),
            team=None if what is What.WASTE else given["team"],
            user=None if what is What.WASTE else given["user"],
            pool=given["pool"],
            most=MANY_ROWS if given["most"] == str(MANY_ROWS) else FEW_ROWS,
        )

    def asked(self) -> Asked:
        """As the desk takes it. Unused places are few, and what is beyond would be in no row."""
        most = MANY_ROWS if self.what is What.WASTE else self.most
        return Asked(self.window, self.by, self.team, self.user, self.pool, most)

    def address(self, path: str = "/cost", **changed: Any) -> str:
        """Where the same question, with something changed, is answered."""
        query = replace(self, **changed) if changed else self
        if query.what is What.WASTE:
            by = tuple(label for label in query.by if label in PLACES) or (Label.POOL,)
            query = replace(query, by=by, team=None, user=None)
        words: list[tuple[str, str]] = []
        if query.what is not What.COST:
            words.append(("what", query.what.value))
        words.append(("window", query.window))
        words += [("by", label.value) for label in query.by]
        only = (("team", query.team), ("user", query.user), ("pool", query.pool))
        words += [(key, name) for key, name in only if name]
        if query.most != FEW_ROWS:
            words.append(("most", str(query.most)))
        return f"{path}?{urlencode(words)}"

    def narrowed(self, label: Label, name: str) -> str | None:
        """The address of what is inside a row's name; None: there is nothing to look into."""
        if not name or (self.what is What.WASTE and label not in (Label.POOL, Label.DAY)):
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
        if self.what is What.WASTE:
            return Label.DAY
        return Label.TEAM if not self.team else Label.USER

    def _of_day(self) -> Label:
        rest = [label for label in self.by if label is not Label.DAY]
        return rest[0] if rest else Label.POOL if self.what is What.WASTE else Label.TEAM


@dataclass(frozen=True, slots=True)
class Choice:
    """A link that leads to another window."""

    name: str
    address: str
    chosen: bool


def windows(query: CostQuery, today: date) -> list[Choice]:
    """The windows people ask for most."""
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
    """The window to compare with: the month before, or as many days before; None: it would not be fair.

    Of a window that lasts, only as many days as have begun: half of November stands beside half of October.
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
    """This month and those before, the newest first."""
    found, month = [], today.replace(day=1)
    for _ in range(many):
        found.append(f"{month:%Y-%m}")
        month = (month - timedelta(days=1)).replace(day=1)
    return found


def month_beside(month: str) -> tuple[str, str]:
    """The months before and after."""
    first = parse_month(month)
    return f"{first - timedelta(days=1):%Y-%m}", f"{next_month(first):%Y-%m}"


def _last(words: Words, key: str) -> str | None:
    given = words.getlist(key)
    text = given[-1].strip() if given else ""
    if len(text) > _LONGEST_NAME:
        raise _invalid(f"{key}: it is longer than {_LONGEST_NAME} characters", "shorten it")
    return text or None


def _what(word: str | None) -> What:
    try:
        return What(word) if word else What.COST
    except ValueError:
        known = ", ".join(What)
        raise _invalid(f"what: there is no question {word!r}", f"what is any of {known}") from None


def _labels(words: list[str], what: What) -> tuple[Label, ...]:
    known: Mapping[str, Label] = {label.value: label for label in (PLACES if what is What.WASTE else Label)}
    if unknown := [word for word in words if word not in known]:
        raise _invalid(f"by: {what} is not told apart by {unknown[0]!r}", f"by is any of {', '.join(known)}")
    default = Label.POOL if what is What.WASTE else Label.TEAM
    return tuple(dict.fromkeys(known[word] for word in words)) or (default,)


def _invalid(message: str, hint: str) -> ApiError:
    return ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidRequest", message, hint)
