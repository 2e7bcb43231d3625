"""Parse the Cost page's query from its URL, and build URLs from queries. Pure.

The URL holds the whole query, so that a page can be linked to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from fairway.cost.calendar import next_month, parse_month
from fairway.model.charge import Dimension, JobLabel, Label, parse_dimension
from fairway.services.cost_queries import CostRequest
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.reports import PLACE_LABELS
from fairway.wire import costs as wire

DEFAULT_WINDOW: Final = "30d"
FEW_ROWS: Final = 50
MANY_ROWS: Final = 1000
_MAX_NAME_LENGTH: Final = 200


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
    by: tuple[Dimension, ...] = (Label.TEAM,)
    team: str | None = None
    user: str | None = None
    pool: str | None = None
    project: str | None = None
    labels: tuple[str, ...] = ()
    """As `experiment=e12`."""
    max_rows: int = FEW_ROWS
    per: str | None = None
    """What costs are divided by, as `1000:steps` or `label:experiment`."""

    @classmethod
    def of(cls, params: QueryParams) -> CostQuery:
        """Parse query parameters; empty ones are ignored. Raises RequestError for an invalid value."""
        given = {
            key: _last(params, key)
            for key in ("what", "window", "team", "user", "pool", "project", "most", "per")
        }
        what = _report_kind(given["what"])
        return cls(
            what=what,
            window=given["window"] or DEFAULT_WINDOW,
            by=_labels([name for name in params.getlist("by") if name], what),
            team=None if what is ReportKind.WASTE else given["team"],
            user=None if what is ReportKind.WASTE else given["user"],
            pool=given["pool"],
            project=None if what is ReportKind.WASTE else given["project"],
            labels=()
            if what is ReportKind.WASTE
            else tuple(name for name in params.getlist("label") if name),
            max_rows=MANY_ROWS if given["most"] == str(MANY_ROWS) else FEW_ROWS,
            per=given["per"] if what is ReportKind.COST else None,
        )

    @property
    def forecast_label(self) -> Label:
        """Return whose forecasts the page shows: those of projects if it is about projects, else of teams."""
        about_projects = self.project is not None or Label.PROJECT in self.by
        return Label.PROJECT if about_projects and self.team is None else Label.TEAM

    def request(self) -> CostRequest:
        """Convert it for CostQueries. A waste report has few rows, and omits those beyond the limit."""
        max_rows = MANY_ROWS if self.what is ReportKind.WASTE else self.max_rows
        return CostRequest(
            self.window,
            self.by,
            self.team,
            self.user,
            self.pool,
            self.project,
            self.labels,
            max_rows,
            self.per,
        )

    def address(self, path: str = "/cost", **changed: Any) -> str:
        """Return the URL of this query with some fields changed."""
        query = replace(self, **changed) if changed else self
        if query.what is ReportKind.WASTE:
            by = tuple(label for label in query.by if label in PLACE_LABELS) or (Label.POOL,)
            query = replace(query, by=by, team=None, user=None, project=None, labels=())
        if query.what is not ReportKind.COST:
            query = replace(query, per=None)
        what = [("what", query.what.value)] if query.what is not ReportKind.COST else []
        return f"{path}?{urlencode([*what, ('window', query.window), *query.filters])}"

    @property
    def filters(self) -> tuple[tuple[str, str], ...]:
        """Return the parameters of its URL besides the kind of report and the window."""
        params = [
            *(("by", label.value) for label in self.by),
            ("team", self.team),
            ("user", self.user),
            ("pool", self.pool),
            ("project", self.project),
            *(("label", label) for label in self.labels),
            ("most", str(self.max_rows) if self.max_rows != FEW_ROWS else None),
            ("per", self.per),
        ]
        return tuple((key, value) for key, value in params if value)

    def without_label(self, label: str) -> tuple[str, ...]:
        """Return the labels of the filter without one of them."""
        return tuple(one for one in self.labels if one != label)

    @property
    def without_window(self) -> tuple[tuple[str, str], ...]:
        """Return the parameters of its URL besides the window."""
        return (
            (("what", self.what.value), *self.filters) if self.what is not ReportKind.COST else self.filters
        )

    def narrowed(self, label: Dimension, name: str) -> str | None:
        """Return the URL that drills down into a row's label. Returns None if there is nothing below it."""
        if not name or (self.what is ReportKind.WASTE and label not in (Label.POOL, Label.DAY)):
            return None
        changed: dict[str, Any]
        match label:
            case Label.TEAM:
                changed = {"team": name, "by": self._inside(Label.USER)}
            case Label.USER:
                changed = {"user": name, "by": self._inside(Label.POOL)}
            case Label.POOL:
                changed = {"pool": name, "by": self._inside(self._below_pool())}
            case Label.PROJECT:
                changed = {"project": name, "by": self._inside(Label.USER)}
            case JobLabel():
                labels = dict.fromkeys((*self.labels, f"{label.key}={name}"))
                changed = {"labels": tuple(labels), "by": self._inside(Label.USER)}
            case Label.DAY:
                changed = {"window": name, "by": self._inside(self._below_day())}
            case _:
                return None
        return self.address(**changed)

    def _inside(self, label: Dimension) -> tuple[Dimension, ...]:
        filters: dict[Dimension, str | None] = {
            Label.TEAM: self.team,
            Label.USER: self.user,
            Label.POOL: self.pool,
            Label.PROJECT: self.project,
        }
        return (label,) if not filters.get(label) else (Label.DAY,)

    def _below_pool(self) -> Dimension:
        if self.what is ReportKind.WASTE:
            return Label.DAY
        return Label.TEAM if not self.team else Label.USER

    def _below_day(self) -> Dimension:
        rest = [label for label in self.by if label is not Label.DAY]
        return rest[0] if rest else Label.POOL if self.what is ReportKind.WASTE else Label.TEAM


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two periods of the same number of whole days; the second is the earlier one."""

    first: date
    last: date
    """Included, as all days here."""
    first_before: date
    last_before: date

    @property
    def days(self) -> int:
        return (self.last - self.first).days + 1

    @property
    def name_before(self) -> str:
        """Name the earlier period: `the 7 days before`."""
        days = "day" if self.days == 1 else f"{self.days} days"
        adjacent = self.last_before + timedelta(days=1) == self.first
        return f"the {days} before" if adjacent else f"the first {days} of the month before"

    @property
    def window_before(self) -> str:
        return f"{self.first_before}..{self.last_before}"


def comparison(shown: wire.Window, today: date, recorded: date | None = None) -> Comparison | None:
    """Return the days of a window that are over, and as many before. None: no day of it is over.

    Of days before `recorded`, and of a part of that day, nothing is known: they are compared with nothing.

    Today is left out: some hours of it against a whole day would look like a drop. A window that begins with
    a month is compared with the beginning of the month before, if that is long enough.
    """
    first, last = shown.first_day, min(shown.last_day, today - timedelta(days=1))
    days = (last - first).days + 1
    if days < 1:
        return None
    month = (first - timedelta(days=1)).replace(day=1)
    of_month = first.day == 1 and shown.last_day < next_month(first)
    before = month if of_month and month + timedelta(days=days) <= first else first - timedelta(days=days)
    if recorded is not None and before <= recorded:
        return None
    return Comparison(first, last, before, before + timedelta(days=days - 1))


def months_until(today: date, count: int) -> list[str]:
    """Return this month and previous ones, newest first."""
    found, month = [], today.replace(day=1)
    for _ in range(count):
        found.append(f"{month:%Y-%m}")
        month = (month - timedelta(days=1)).replace(day=1)
    return found


def month_beside(month: str) -> tuple[str, str]:
    """Return the months before and after."""
    first = parse_month(month)
    return f"{first - timedelta(days=1):%Y-%m}", f"{next_month(first):%Y-%m}"


def _last(params: QueryParams, key: str) -> str | None:
    values = params.getlist(key)
    text = values[-1].strip() if values else ""
    if len(text) > _MAX_NAME_LENGTH:
        raise _invalid(f"{key}: longer than {_MAX_NAME_LENGTH} characters", "shorten it")
    return text or None


def _report_kind(word: str | None) -> ReportKind:
    try:
        return ReportKind(word) if word else ReportKind.COST
    except ValueError:
        hint = f"what is one of {', '.join(ReportKind)}"
        raise _invalid(f"what: there is no report {word!r}", hint) from None


def _labels(names: list[str], what: ReportKind) -> tuple[Dimension, ...]:
    found = {name: parse_dimension(name) for name in names}
    waste = what is ReportKind.WASTE
    if unknown := [name for name, by in found.items() if by is None or (waste and by not in PLACE_LABELS)]:
        valid = [label.value for label in (PLACE_LABELS if waste else Label)]
        hint = f"by is one of {', '.join(valid)}{'' if waste else ', label:KEY'}"
        raise _invalid(f"by: {what} cannot be grouped by {unknown[0]!r}", hint)
    default = Label.POOL if waste else Label.TEAM
    return tuple(by for by in found.values() if by is not None) or (default,)


def _invalid(message: str, hint: str) -> RequestError:
    return RequestError(ErrorKind.INVALID, "InvalidRequest", message, hint)
