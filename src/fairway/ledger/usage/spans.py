"""Split the spans of a query into days and hours, and its filter into SQL: for sums of usage and of GPU use.

Sums are stored by day and by hour of the fleet's time zone. Whole days are read from the sums by day, the
rest of a span from those by hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, datetime, timedelta
from typing import Any, Final

from fairway.ledger.records.costs import LocalTime, UsageFilter
from fairway.ledger.sql_values import json_rows, moment
from fairway.model.charge import Dimension, Label, Span
from fairway.model.names import PoolName

FEW_POOLS: Final = 5
"""With more, and no other filter, most classes match, and checking each row costs more than it saves."""

SERVICE_NAME: Final = "CASE WHEN service THEN name ELSE '' END"

_COLUMNS: Final = {
    Label.TEAM: "team",
    Label.USER: "user_name",
    Label.POOL: "pool",
    Label.PRIORITY: "priority",
    Label.CLUSTER: "cluster",
    Label.SLICE: "slice",
    Label.NAME: "name",
    Label.OUTCOME: "outcome",
    Label.SERVICE: SERVICE_NAME,
    Label.KIND: "kind",
    Label.PROJECT: "project",
}


def column_of(label: Dimension) -> str:
    """Return the SQL of a dimension, whose form was checked: a key of a label has no quotes."""
    if isinstance(label, Label):
        return _COLUMNS[label]
    return f"COALESCE(labels ->> '{label.key}', '')"


SETTINGS: Final = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    # Sums of a large month are faster in memory, and too short for compilation to pay.
    "SET LOCAL work_mem = '64MB'",
    "SET LOCAL jit = off",
)

SLOTS: Final = """
    JOIN unnest(CAST(:times AS {type}[]), CAST(:slots AS int[])) AS slot ({time}, slot) USING ({time})
"""

NARROW: Final = "AND class IN (SELECT id FROM job_class WHERE {of_class})"

PLACES: Final = """
    unnest(CAST(:pools AS text[]), CAST(:pool_slots AS int[]), CAST(:pool_places AS int[]))
        AS places (pool, slot, place)
"""


@dataclass(slots=True)
class TimeSlots:
    """Days or hours in order, each with its slot, and for each pool and slot the places that it counts for.

    Times that count for the same places of the same pools share a slot.
    """

    times: list[date] | list[datetime]
    slots: list[int]
    pools: list[str] = field(default_factory=list)
    pool_slots: list[int] = field(default_factory=list)
    pool_places: list[int] = field(default_factory=list)

    def are_consecutive_days(self) -> bool:
        """Return whether all days have one slot without gaps: then the first and last day suffice."""
        first, last = self.times[0], self.times[-1]
        if isinstance(first, datetime) or isinstance(last, datetime) or len(set(self.slots)) > 1:
            return False
        return (last - first).days == len(self.times) - 1

    def are_mostly_single(self) -> bool:
        """Return whether most slots are of one day or hour: then summing by slot first reduces nothing."""
        return 2 * len(set(self.slots)) > len(self.slots)

    def values(self) -> dict[str, object]:
        """Return the parameters of a statement."""
        lists = {field.name: getattr(self, field.name) for field in fields(self)}
        return lists | {"first": self.times[0], "last": self.times[-1]}


@dataclass(frozen=True, slots=True)
class SplitSpans:
    """A query's spans as whole days and hours. A place is one row of the result: a span, or a day of one."""

    days: TimeSlots
    hours: TimeSlots
    places: tuple[tuple[int, str], ...]
    """The number of the span, and the day in ISO format (empty: not requested)."""


class SpanSplitter:
    """Splits spans into days and hours. `with_day`: a place per day; `by_hour`: hours only, for raw rows.

    `newest`: no sum is of a later hour. A day that a span leaves after that counts as a whole one: its sum
    contains nothing that the span does not.
    """

    def __init__(self, local: LocalTime, *, with_day: bool, by_hour: bool, newest: int | None = None) -> None:
        self._local = local
        self._with_day = with_day
        self._by_hour = by_hour
        self._newest = newest
        self._places: dict[tuple[int, str], int] = {}

    def split(self, spans: Mapping[PoolName, Sequence[Span]]) -> SplitSpans:
        days: dict[date, list[tuple[str, int]]] = {}
        hours: dict[int, list[tuple[str, int]]] = {}
        pools_by_spans: dict[tuple[Span, ...], list[str]] = {}
        for pool, of_pool in spans.items():
            pools_by_spans.setdefault(tuple(of_pool), []).append(pool)
        for of_pools, pools in pools_by_spans.items():  # most pools have the same spans
            for number, span in enumerate(of_pools):
                self._split_span(pools, number, span, days, hours)
        moments = {moment(hour): places for hour, places in hours.items()}
        return SplitSpans(_time_slots(days), _time_slots(moments), tuple(self._places))

    def places_of(self, span: int, start: int, end: int) -> list[tuple[tuple[int, str], int]]:
        """Return the places of a period within a span, and the seconds in each."""
        found: list[tuple[tuple[int, str], int]] = []
        while start < end:
            day = self._local.day_of(start)
            until = min(end, self._local.day_start(day + timedelta(days=1))) if self._with_day else end
            found.append((self._key(span, day), until - start))
            start = until
        return found

    def _key(self, span: int, day: date) -> tuple[int, str]:
        return span, day.isoformat() if self._with_day else ""

    def _split_span(
        self,
        pools: Sequence[str],
        number: int,
        span: Span,
        days: dict[date, list[tuple[str, int]]],
        hours: dict[int, list[tuple[str, int]]],
    ) -> None:
        at = span.start
        while at < span.end:
            day = self._local.day_of(at)
            end = self._local.day_start(day + timedelta(days=1))
            place = self._places.setdefault(self._key(number, day), len(self._places))
            places = [(pool, place) for pool in pools]
            if not self._by_hour and at == self._local.day_start(day) and self._is_whole(span, end):
                days.setdefault(day, []).extend(places)
                at = end
                continue
            while at < min(end, span.end):
                hours.setdefault(at, []).extend(places)
                at = self._local.next_hour(at)

    def _is_whole(self, span: Span, day_end: int) -> bool:
        """Return whether a day that begins within a span belongs to it until its end."""
        return day_end <= span.end or (self._newest is not None and self._newest < span.end)


def _time_slots(places: Mapping[Any, list[tuple[str, int]]]) -> TimeSlots:
    slots: dict[tuple[tuple[str, int], ...], int] = {}
    times = sorted(places)
    result = TimeSlots(times, [slots.setdefault(tuple(places[time]), len(slots)) for time in times])
    for of_slot, slot in slots.items():
        for pool, place in of_slot:
            result.pools.append(pool)
            result.pool_slots.append(slot)
            result.pool_places.append(place)
    return result


@dataclass(frozen=True, slots=True)
class UsageCondition:
    """A filter as SQL: a condition on classes, one on names, and their values."""

    of_class: str
    of_name: str
    values: dict[str, object]
    columns: frozenset[str]
    """The columns of classes that it compares."""
    narrow: bool
    """Whether few classes match."""

    @classmethod
    def of(cls, which: UsageFilter, pools: Iterable[str] | None) -> UsageCondition:
        """Build the condition of a filter and of these pools; None: those of the filter."""
        alternatives = {
            "team": which.teams,
            "user_name": which.users,
            "cluster": which.clusters,
            "priority": which.priorities,
            "slice": which.slices,
            "project": which.projects,
            "pool": which.pools if pools is None else frozenset(pools),
        }
        by_column = {column: sorted(names) for column, names in alternatives.items() if names is not None}
        values: dict[str, object] = {f"of_{column}": names for column, names in by_column.items()}
        conditions = [f"{column} = ANY(CAST(:of_{column} AS text[]))" for column in by_column]
        if which.labels:
            conditions.append("labels @> CAST(:of_labels AS jsonb)")
            values["of_labels"] = json_rows(dict(which.labels))
        columns = frozenset((*by_column, "labels") if which.labels else by_column)
        of_class = " AND ".join(conditions) or "true"
        narrow = len(conditions) > 1 or (bool(conditions) and len(by_column.get("pool", ())) <= FEW_POOLS)
        if which.names is None:
            return cls(of_class, "true", values, columns, narrow)
        values["of_name"] = sorted(which.names)
        return cls(of_class, "name = ANY(CAST(:of_name AS text[]))", values, columns, narrow)
