"""Sums of usage and capacity in memory, answered as the ledger answers them: by spans, labels and filters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from fairway.cost.calendar import Calendar
from fairway.cost.fleet_history import FleetSpan, fleet_spans
from fairway.ledger import UsageFilter, UsageView
from fairway.model.charge import CapacitySum, Dimension, Label, Span, UsageSum
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName, PoolName
from fairway.model.price import PricePoint
from fairway.model.team import Supply
from tests.unit.cost.worlds import World

Result = TypeVar("Result")
Sums = Mapping[tuple[int, int], int]
"""Device-seconds by hour and holder."""


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run what never waits for anything."""
    try:
        work.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    raise AssertionError("it waits")


class MemoryLedger:
    """The parts of a ledger that charges read."""

    def __init__(self, case: World, calendar: Calendar, sums: Sums, capacity: Sequence[CapacitySum]) -> None:
        self.usage = self.capacity = self.prices = self
        self._case, self._calendar, self._sums, self._capacity = case, calendar, sums, capacity
        self._clusters = {pool.name: pool.cluster for pool in case.fleet.pools}

    async def points(
        self, pools: Collection[PoolName], window: Span
    ) -> Mapping[PoolName, tuple[PricePoint, ...]]:
        """As `PriceStore.points`."""
        found = {}
        for pool in pools:
            points = [p for p in self._case.points.get(pool, ()) if p.at.timestamp() < window.end]
            before = [n for n, p in enumerate(points) if p.at.timestamp() <= window.start]
            if points:
                found[pool] = tuple(points[before[-1] if before else 0 :])
        return found

    async def sums(
        self,
        window: Span,
        *,
        local: Calendar,
        by_day: bool,
        clusters: Collection[ClusterName],
        live_until: int | None,
    ) -> tuple[CapacitySum, ...]:
        """As `CapacityStore.sums`."""
        days = {hour.start: hour.day for hour in self._case.hours}
        found: dict[tuple[int, Supply], CapacitySum] = {}
        for row in self._capacity:
            start = local.day_start(days[row.start]) if by_day else row.start
            inside = window.start <= row.start < window.end
            if row.cluster not in clusters or not inside:
                continue
            old = found.get((start, row.supply), CapacitySum(start, row.cluster, row.supply, 0, 0, 0, 0, 0))
            found[start, row.supply] = CapacitySum(
                start,
                row.cluster,
                row.supply,
                old.total + row.total,
                old.drained + row.drained,
                old.down + row.down,
                old.fragmented + row.fragmented,
                old.gpu_seconds + row.gpu_seconds,
            )
        return tuple(found[key] for key in sorted(found))

    async def views(
        self, views: Sequence[UsageView], live_until: int | None, *, local: Calendar
    ) -> tuple[tuple[UsageSum, ...], ...]:
        """As `UsageStore.views`."""
        return tuple(self._view(view) for view in views)

    def _view(self, view: UsageView) -> tuple[UsageSum, ...]:
        days = {hour.start: hour.day for hour in self._case.hours}
        found: dict[tuple[int, Supply, tuple[str, ...]], int] = {}
        for (hour, holder), seconds in self._sums.items():
            supply, team, user = self._case.holders[holder]
            spans = view.spans.get(supply.pool, ())
            number = bisect_right([span.start for span in spans], hour) - 1
            if number < 0 or hour >= spans[number].end or not seconds or hour not in days:
                continue
            if not _matches(view.which, supply, team, user):
                continue
            words: dict[Dimension, str] = {
                Label.TEAM: team,
                Label.USER: user,
                Label.POOL: supply.pool,
                Label.CLUSTER: self._clusters[supply.pool],
                Label.SLICE: supply.slice or "",
                Label.DAY: days[hour].isoformat(),
            }
            key = (number, supply, tuple(words.get(label, "") for label in view.by))
            found[key] = found.get(key, 0) + seconds
        return tuple(UsageSum(*key, seconds) for key, seconds in found.items())


def _matches(which: UsageFilter, supply: Supply, team: str, user: str) -> bool:
    return all(
        names is None or value in names
        for names, value in ((which.teams, team), (which.users, user), (which.pools, supply.pool))
    )


class MemoryHistory:
    """Which fleets were in force, of files that were applied."""

    def __init__(self, applied: Sequence[tuple[int, Fleet]], calendar: Calendar) -> None:
        self._applied, self._calendar = applied, calendar

    async def spans(self, fleet: Fleet, period: Span) -> tuple[FleetSpan, ...]:
        """As `FleetHistory.spans`."""
        return fleet_spans(self._applied, self._calendar, period)
