"""Cuts the spans of a question into whole days, whose sums are kept, and the hours that are left. Pure.

Days (and hours) that fall into the same spans of every pool share a slot: the many rows are first summed by
slot and class, which are two small numbers, and only what comes out of that is told apart further.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

from fairway.ledger.cost_records import LocalTime
from fairway.model.charge import Span
from fairway.model.names import PoolName


@dataclass(slots=True)
class Units:
    """Days or hours, in order, with their slots; which place of the answer a slot is of, for each pool."""

    times: list[date] | list[datetime]
    slots: list[int]
    pools: list[str] = field(default_factory=list)
    pool_slots: list[int] = field(default_factory=list)
    pool_places: list[int] = field(default_factory=list)

    def one_stretch_of_days(self) -> bool:
        """All of one slot, and none left out: to be found by its first and last day alone."""
        first, last = self.times[0], self.times[-1]
        if isinstance(first, datetime) or isinstance(last, datetime) or len(set(self.slots)) > 1:
            return False
        return (last - first).days == len(self.times) - 1

    def mostly_apart(self) -> bool:
        """Most slots are of one day or hour: summing by slot first would make few rows of many nowhere."""
        return 2 * len(set(self.slots)) > len(self.slots)

    def values(self) -> dict[str, object]:
        """As parameters of a statement."""
        return {
            "times": self.times,
            "slots": self.slots,
            "first": self.times[0],
            "last": self.times[-1],
            "pools": self.pools,
            "pool_slots": self.pool_slots,
            "pool_places": self.pool_places,
        }


@dataclass(frozen=True, slots=True)
class Cut:
    """A question's spans as units. A place is a span, or a day of one."""

    days: Units
    hours: Units
    places: tuple[tuple[int, str], ...]
    """The number of the span, and the day as ISO writes it (empty: not asked for)."""


class Cutter:
    """`with_day`: days are told apart. `by_hour`: hours only, for rows that know no days.

    `newest`: there are sums of no later hour than that one. A day that a span leaves later than that is as
    good as a whole one: its sum has nothing in it that the span has not.
    """

    def __init__(self, local: LocalTime, *, with_day: bool, by_hour: bool, newest: int | None = None) -> None:
        self._local = local
        self._with_day = with_day
        self._by_hour = by_hour
        self._newest = newest
        self._places: dict[tuple[int, str], int] = {}

    def cut(self, spans: Mapping[PoolName, Sequence[Span]]) -> Cut:
        days: dict[date, list[tuple[str, int]]] = {}
        hours: dict[int, list[tuple[str, int]]] = {}
        alike: dict[tuple[Span, ...], list[str]] = {}
        for pool, those in spans.items():
            alike.setdefault(tuple(those), []).append(pool)
        for those, pools in alike.items():  # most pools are cut where the others are
            for number, span in enumerate(those):
                self._cut_span(pools, number, span, days, hours)
        moments = {datetime.fromtimestamp(hour, UTC): where for hour, where in hours.items()}
        return Cut(_units(days), _units(moments), tuple(self._places))

    def places_of(self, span: int, start: int, end: int) -> list[tuple[tuple[int, str], int]]:
        """Where a stretch within a span belongs, and how many seconds of it."""
        found: list[tuple[tuple[int, str], int]] = []
        while start < end:
            day = self._local.day_of(start)
            until = min(end, self._local.day_start(day + timedelta(days=1))) if self._with_day else end
            found.append((self._key(span, day), until - start))
            start = until
        return found

    def _place(self, span: int, day: date) -> int:
        return self._places.setdefault(self._key(span, day), len(self._places))

    def _key(self, span: int, day: date) -> tuple[int, str]:
        return span, day.isoformat() if self._with_day else ""

    def _cut_span(
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
            place = self._place(number, day)
            where = [(pool, place) for pool in pools]
            if not self._by_hour and at == self._local.day_start(day) and self._is_whole(span, end):
                days.setdefault(day, []).extend(where)
                at = end
                continue
            while at < min(end, span.end):
                hours.setdefault(at, []).extend(where)
                at = self._local.next_hour(at)

    def _is_whole(self, span: Span, day_end: int) -> bool:
        """Whether a day that a span begins before belongs to it to its end."""
        return day_end <= span.end or (self._newest is not None and self._newest < span.end)


def _units(found: Mapping[Any, list[tuple[str, int]]]) -> Units:
    slots: dict[tuple[tuple[str, int], ...], int] = {}
    times = sorted(found)
    units = Units(times, [slots.setdefault(tuple(found[time]), len(slots)) for time in times])
    for where, slot in slots.items():
        for pool, place in where:
            units.pools.append(pool)
            units.pool_slots.append(slot)
            units.pool_places.append(place)
    return units
