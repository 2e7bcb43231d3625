"""Total and used GPUs by hour: the data of plots, read at most once a minute for all open pages.

Read from the sums by hour: the cost grows with the hours and with the classes of jobs that ran in them, not
with jobs.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from fractions import Fraction
from functools import partial
from typing import Any, Final

from fairway.cost.calendar import calendar_of
from fairway.cost.rates import parts
from fairway.ledger import Ledger, UsageFilter
from fairway.model.charge import CapacitySum, Span, UsageSum
from fairway.model.fleet import Pool
from fairway.model.names import PoolName, SliceName
from fairway.services.fleets import Fleets
from fairway.web.cache.single_flight import SingleFlightGroup
from fairway.web.pages.fleet.data import STALE_SECONDS

MAX_DAYS: Final = 7
MAX_AGE: Final = 60
_MAX_COMBINATIONS: Final = 2048
_HOUR: Final = 3600
Hours = dict[int, Fraction]


class Plots:
    """Time series shared by all open pages of this server."""

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._cache = SingleFlightGroup[dict[str, Any]](
            _MAX_COMBINATIONS, max_age=MAX_AGE, stale_age=STALE_SECONDS
        )

    async def series(self, days: int, pool: PoolName | None = None) -> dict[str, Any]:
        """Return the series of one pool, which must exist, or of all."""
        return await self._cache.get((days, pool), partial(self._read, days, pool))

    async def _read(self, days: int, pool: PoolName | None) -> dict[str, Any]:
        fleet = await self._fleets.current()
        pools = {p.name: p for p in fleet.pools if pool in (None, p.name)}
        calendar = calendar_of(fleet)
        now = int(time.time())
        window = Span(calendar.hour_start(now - days * 24 * _HOUR), calendar.next_hour(now))
        hours = calendar.hours(window)
        if not pools:
            return series((), {}, {}, now)
        capacity = await self._ledger.capacity.sums(
            window,
            local=calendar,
            by_day=False,
            clusters={p.cluster for p in pools.values()},
            live_until=now,
        )
        usage = await self._ledger.usage.sums(
            dict.fromkeys(pools, hours), (), UsageFilter(), now, local=calendar
        )
        rows = [row for row in capacity if row.supply.pool in pools]
        total: Hours = {}
        for row in rows:
            total[row.start] = total.get(row.start, Fraction(0)) + row.gpu_seconds
        used = used_by_hour(pools, hours, rows, usage)
        return series([hour.start for hour in hours], total, used, now)


def used_by_hour(
    pools: Mapping[PoolName, Pool],
    hours: Collection[Span],
    capacity: Collection[CapacitySum],
    usage: Collection[UsageSum],
) -> Hours:
    """Compute GPU-seconds used; slices count as their fraction of a GPU in that hour. Pure."""
    devices: dict[tuple[int, PoolName], dict[SliceName | None, int]] = {}
    gpus: dict[tuple[int, PoolName], int] = {}
    for row in capacity:
        key = (row.start, row.supply.pool)
        devices.setdefault(key, {})[row.supply.slice] = row.total
        gpus[key] = gpus.get(key, 0) + row.gpu_seconds
    starts = [hour.start for hour in hours]
    found: Hours = {}
    for used in usage:
        key = (starts[used.span], used.supply.pool)
        totals = {used.supply.slice: 0} | devices.get(key, {})
        each = parts(pools[used.supply.pool].gpu, totals, gpus.get(key, 0))
        seconds = each[used.supply.slice] * used.device_seconds
        found[key[0]] = found.get(key[0], Fraction(0)) + seconds
    return found


def series(starts: Collection[int], total: Hours, used: Hours, now: int) -> dict[str, Any]:
    """Compute hourly averages in uPlot's format; the current hour counts up to now. Pure."""
    found: dict[str, Any] = {"time": [], "total": [], "used": []}
    for start in starts:
        seconds = max(1, min(_HOUR, now - start))
        found["time"].append(start)
        # Before the first observation there is a gap, not a zero.
        observed = total.get(start, 0) > 0
        found["total"].append(round(float(total[start] / seconds), 2) if observed else None)
        found["used"].append(round(float(used.get(start, Fraction(0)) / seconds), 2) if observed else None)
    return found
