"""GPUs in use over time, by team or by pool: the data of charts, read at most once a minute for all pages.

Read from the sums by hour or by day: the cost grows with the hours or days of the range and with the classes
of jobs that ran in them, not with jobs.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import partial
from typing import Any, Final

from fairway.cost.calendar import calendar_of
from fairway.cost.rates import parts
from fairway.ledger import Ledger, UsageFilter
from fairway.ledger.usage.queue import QueueHour
from fairway.model.charge import CapacitySum, Label, Span, UsageSum
from fairway.model.fleet import Fleet, Pool
from fairway.model.names import PoolName, SliceName, TeamName
from fairway.model.team import Supply
from fairway.services.fleets import Fleets
from fairway.views.colours import OTHERS, PALETTE, assigned, colour_class
from fairway.web.cache.single_flight import SingleFlightGroup
from fairway.web.pages.fleet.data import STALE_SECONDS
from fairway.web.pages.fleet.supply_bars import Grants
from fairway.web.ranges import TimeRange

MAX_AGE: Final = 60
MAX_SERIES: Final = len(PALETTE)
"""Names with a colour of their own; the others are drawn as one."""
OTHER_TEAMS: Final = "other teams"
OTHER_POOLS: Final = "other pools"
NO_TEAM: Final = "no team"
_MAX_COMBINATIONS: Final = 2048
_SpanKey = tuple[int, PoolName]
"""When an hour or a day begins, and a pool."""


class PlotBy(StrEnum):
    """What a chart stacks."""

    TEAM = "team"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class PlotData:
    """GPUs on average in each hour or on each day; a slice counts as its part of a GPU."""

    starts: tuple[int, ...]
    by_day: bool
    by_team: Mapping[str, Sequence[float]]
    by_pool: Mapping[str, Sequence[float]]
    capacity: tuple[float | None, ...]
    """None: before the first observation."""
    out_of_service: tuple[float, ...]
    """Drained or down."""
    on_loan: tuple[float, ...]
    """Held beyond guarantees, by the guarantees of now."""
    queued: tuple[float | None, ...]
    """Requested by waiting jobs. None: not observed."""


class Plots:
    """Time series shared by all open pages of this server."""

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._cache = SingleFlightGroup[PlotData](_MAX_COMBINATIONS, max_age=MAX_AGE, stale_age=STALE_SECONDS)
        self._colours: tuple[Fleet, Mapping[str, int]] | None = None

    async def series(
        self,
        range_: TimeRange,
        by: PlotBy,
        pool: PoolName | None = None,
        visible: frozenset[str] | None = None,
    ) -> dict[str, Any]:
        """Return the chart of one pool, which must exist, or of all; teams not in `visible` are one."""
        fleet = await self._fleets.in_force()
        # The same range an hour later is another one: its text says what is asked for.
        data = await self._cache.get((range_.text, pool), partial(self._read, range_, pool))
        if by is PlotBy.TEAM:
            names = _without(data.by_team, visible)
            return chart(data, names, await self.colours(fleet), OTHER_TEAMS)
        numbers: dict[str, int] = {p.name: n for n, p in enumerate(fleet.pools)}
        return chart(data, data.by_pool, numbers, OTHER_POOLS)

    async def colours(self, fleet: Fleet) -> Mapping[str, int]:
        """Return the number of each team's colour; read once for each revision of the fleet."""
        if self._colours is None or self._colours[0] is not fleet:
            numbers = await self._ledger.team_colours.numbers([t.name for t in fleet.teams], assigned)
            self._colours = fleet, numbers
        return self._colours[1]

    async def _read(self, range_: TimeRange, pool: PoolName | None) -> PlotData:
        fleet, policy = await self._fleets.current(), await self._fleets.in_force()
        pools = {p.name: p for p in fleet.pools if pool in (None, p.name)}
        calendar = calendar_of(fleet)
        now = int(time.time())
        spans = calendar.days(range_.span) if range_.by_day else calendar.hours(range_.span)
        if not pools or not spans:
            return PlotData((), range_.by_day, {}, {}, (), (), (), ())
        capacity = await self._ledger.capacity.sums(
            range_.span,
            local=calendar,
            by_day=range_.by_day,
            clusters={p.cluster for p in pools.values()},
            live_until=now,
        )
        usage = await self._ledger.usage.sums(
            dict.fromkeys(pools, tuple(spans)), (Label.TEAM,), UsageFilter(), now, local=calendar
        )
        queue = await self._ledger.queue.hours(range_.span, pools)
        cut = [Span(span.start, min(span.end, max(now, span.start + 1))) for span in spans]
        rows = [row for row in capacity if row.supply.pool in pools]
        return plot_data(pools, cut, rows, usage, queue, Grants(policy), by_day=range_.by_day)


def plot_data(
    pools: Mapping[PoolName, Pool],
    spans: Sequence[Span],
    capacity: Collection[CapacitySum],
    usage: Collection[UsageSum],
    queue: Collection[QueueHour],
    grants: Grants,
    *,
    by_day: bool,
) -> PlotData:
    """Compute averages from sums; the current hour or day counts up to now. Pure."""
    gpu_parts = _GpuParts(pools, capacity)
    index = {span.start: n for n, span in enumerate(spans)}
    lengths = [max(1, span.end - span.start) for span in spans]
    total, out, lent = ([Fraction(0)] * len(spans) for _ in range(3))
    for row in capacity:
        if (place := index.get(row.start)) is not None:
            total[place] += row.gpu_seconds
            out[place] += gpu_parts.of(row.start, row.supply) * (row.drained + row.down)
    by_team: dict[str, list[Fraction]] = {}
    by_pool: dict[str, list[Fraction]] = {}
    held: dict[tuple[int, Supply], dict[TeamName | None, int]] = {}
    for used in usage:
        start, supply = spans[used.span].start, used.supply
        seconds = gpu_parts.of(start, supply) * used.device_seconds
        for names, name in ((by_team, used.labels[0] or NO_TEAM), (by_pool, supply.pool)):
            names.setdefault(name, [Fraction(0)] * len(spans))[used.span] += seconds
        held.setdefault((used.span, supply), {})[TeamName(used.labels[0])] = used.device_seconds
    for (place, supply), teams in held.items():
        borrowed = grants.lent(supply, teams, scale=lengths[place])
        lent[place] += gpu_parts.of(spans[place].start, supply) * borrowed

    def means(sums: Iterable[Fraction]) -> tuple[float, ...]:
        return tuple(round(float(s / length), 2) for s, length in zip(sums, lengths, strict=True))

    return PlotData(
        tuple(span.start for span in spans),
        by_day,
        {name: means(sums) for name, sums in by_team.items()},
        {name: means(sums) for name, sums in by_pool.items()},
        # Before the first observation there is a gap, not a zero.
        tuple(mean if mean > 0 else None for mean in means(total)),
        means(out),
        means(lent),
        _queued(spans, queue, gpu_parts),
    )


def _queued(
    spans: Sequence[Span], queue: Iterable[QueueHour], gpu_parts: _GpuParts
) -> tuple[float | None, ...]:
    """Average what was waited for over the observed time of each supply."""
    sums: dict[tuple[int, Supply], tuple[int, int]] = {}
    place = 0
    for hour in sorted(queue, key=lambda hour: hour.start):
        while place + 1 < len(spans) and spans[place + 1].start <= hour.start:
            place += 1
        seconds, devices = sums.get((place, hour.supply), (0, 0))
        sums[place, hour.supply] = (seconds + hour.seconds, devices + hour.device_seconds)
    found: list[float | None] = [None] * len(spans)
    for (place, supply), (seconds, devices) in sums.items():
        part = gpu_parts.of(spans[place].start, supply)
        found[place] = (found[place] or 0.0) + float(part * devices) / max(1, seconds)
    return tuple(None if mean is None else round(mean, 2) for mean in found)


class _GpuParts:
    """The part of a GPU that a device was in an hour or on a day, by the capacity of that time."""

    def __init__(self, pools: Mapping[PoolName, Pool], capacity: Iterable[CapacitySum]) -> None:
        self._pools = pools
        self._devices: dict[_SpanKey, dict[SliceName | None, int]] = {}
        self._gpus: dict[_SpanKey, int] = {}
        for row in capacity:
            key = (row.start, row.supply.pool)
            self._devices.setdefault(key, {})[row.supply.slice] = row.total
            self._gpus[key] = self._gpus.get(key, 0) + row.gpu_seconds

    def of(self, start: int, supply: Supply) -> Fraction:
        if supply.slice is None:
            return Fraction(1)
        key = (start, supply.pool)
        totals = {supply.slice: 0} | self._devices.get(key, {})
        return parts(self._pools[supply.pool].gpu, totals, self._gpus.get(key, 0))[supply.slice]


def chart(
    data: PlotData, names: Mapping[str, Sequence[float]], numbers: Mapping[str, int], others: str
) -> dict[str, Any]:
    """Return the data of the script: the largest names with their colours, the rest as one. Pure."""
    ranked = sorted((name for name in names if name in numbers), key=lambda name: (-sum(names[name]), name))
    shown = ranked if len(ranked) <= MAX_SERIES else ranked[: MAX_SERIES - 1]
    rest = [values for name, values in names.items() if name not in shown]
    series = [
        {"name": name, "colour": colour_class(numbers[name]), "values": list(names[name])} for name in shown
    ]
    if any(map(any, rest)):
        sums = [round(sum(values), 2) for values in zip(*rest, strict=True)]
        series.append({"name": others, "colour": OTHERS, "values": sums})
    return {
        "time": list(data.starts),
        "by_day": data.by_day,
        "series": series,
        "capacity": list(data.capacity),
        "out_of_service": list(data.out_of_service),
        "on_loan": list(data.on_loan),
        "queued": list(data.queued),
    }


def _without(
    by_team: Mapping[str, Sequence[float]], visible: frozenset[str] | None
) -> Mapping[str, Sequence[float]]:
    """Merge the teams whose usage the caller may not see."""
    if visible is None:
        return by_team
    hidden = [values for name, values in by_team.items() if name not in visible]
    found = {name: values for name, values in by_team.items() if name in visible}
    return found | ({OTHER_TEAMS: [sum(v) for v in zip(*hidden, strict=True)]} if hidden else {})
