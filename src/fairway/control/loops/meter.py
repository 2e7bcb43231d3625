"""The step of the meter loop: convert attempts to usage, and the state of nodes to capacity."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final
from zoneinfo import ZoneInfo

import structlog

from fairway.control.metrics import UsageMetrics
from fairway.cost.calendar import Calendar
from fairway.cost.slicing import gpus_behind
from fairway.explain.reasons import WANT_OF_ROOM
from fairway.ledger import Hours, HoursTooFew, Lease, Ledger, LedgerBusy, MeteredBatch
from fairway.model.charge import Span
from fairway.model.fleet import Fleet, Pool
from fairway.model.names import ClusterName, SliceName
from fairway.policy.capacity import shelves, turn
from fairway.services.applied_fleet import LastApplied

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

BATCH: Final = 20_000
"""Jobs metered in one transaction."""
MOST_BATCHES: Final = 40
"""Batches in one step; the rest is left to the next step."""
MOST_HOURS: Final = 48
"""Hours of running jobs metered in one transaction after a downtime."""
GRACE_SECONDS: Final = 60
"""Wait after a full hour before metering running jobs up to it: the mirror must know what ended before."""
MOST_DAYS: Final = 31
"""Days of capacity written in one transaction after a long downtime."""
_HOUR: Final = 3600
_DAY: Final = 86400


class MeterCluster:
    """Meters one cluster. It contacts no engine: everything it needs is in the ledger."""

    def __init__(
        self,
        cluster: ClusterName,
        ledger: Ledger,
        applied: LastApplied,
        metrics: UsageMetrics,
        *,
        batch: int = BATCH,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._applied = applied
        self._metrics = metrics
        self._batch = batch
        self._clock = clock
        self._most = batch
        self._most_hours = MOST_HOURS

    async def __call__(self, lease: Lease) -> None:
        """Bring usage and capacity up to date; does nothing before the first fleet."""
        fleet = await self._applied.fleet()
        if fleet is None:
            return
        calendar = Calendar(ZoneInfo(fleet.cost.timezone))
        now = int(self._clock())
        await self._meter(lease, calendar, now)
        await self._keep_capacity(lease, fleet, calendar, now)

    async def close(self) -> None:
        """Reset the batch sizes and remove the metrics at the end of a tenure."""
        self._most = self._batch
        self._most_hours = MOST_HOURS
        self._metrics.forget_capacity(self._cluster)

    # usage

    async def _meter(self, lease: Lease, calendar: Calendar, now: int) -> None:
        upto = calendar.hour_start(now - GRACE_SECONDS)
        mark = await self._ledger.metering.mark(self._cluster)
        if mark is None:  # no job is known to run yet: this only records the start
            await self._meter_hours(lease, calendar, upto, upto)
            mark = upto
        # Changed jobs first: an hour must not be added to a job that ended before it.
        if not await self._meter_changed(lease, calendar, mark, now):
            return
        for _ in range(MOST_BATCHES):
            if mark >= upto:
                return
            later = calendar.hour_start(mark + self._most_hours * _HOUR)
            until = min(upto, max(later, calendar.next_hour(mark)))
            try:
                mark = await self._meter_hours(lease, calendar, mark, until)
            except LedgerBusy:
                if self._most_hours == 1:
                    raise
                # After a long downtime, with very many running jobs.
                self._most_hours = max(1, self._most_hours // 8)

    async def _meter_changed(self, lease: Lease, calendar: Calendar, mark: int, now: int) -> bool:
        """Meter changed jobs. Returns whether all of them are done."""
        hours = hours_of(calendar, mark - _DAY, now + _DAY)
        await self._ledger.partitions.ensure(hours.starts)
        for _ in range(MOST_BATCHES):
            try:
                if not await self._meter_some(lease, hours):
                    return True
            except HoursTooFew:
                hours = await self._wider(calendar, hours)
            except LedgerBusy:
                if self._most == 1:
                    raise
                # Too much for one transaction: jobs that ran for months have many rows each.
                self._most = max(1, self._most // 8)
        return False

    async def _meter_some(self, lease: Lease, hours: Hours) -> bool:
        """Meter one batch. Returns whether there may be more."""
        most = self._most
        async with self._ledger.writing(lease) as tx:
            done = await tx.metering.meter(hours, most)
        self._tell(done)
        self._most = min(self._batch, 2 * most)
        return done.taken >= most

    async def _meter_hours(self, lease: Lease, calendar: Calendar, mark: int, upto: int) -> int:
        """Meter all running jobs up to `upto` in one transaction. Returns the new mark."""
        hours = hours_of(calendar, mark, upto)
        await self._ledger.partitions.ensure(hours.starts)
        async with self._ledger.writing(lease) as tx:
            done = await tx.metering.meter_running(hours, upto)
        self._tell(done)
        self._most_hours = min(MOST_HOURS, 2 * self._most_hours)
        return upto

    def _tell(self, done: MeteredBatch) -> None:
        for used in done.used:
            self._metrics.used(self._cluster, used)

    async def _wider(self, calendar: Calendar, hours: Hours) -> Hours:
        span = await self._ledger.metering.span(self._cluster, self._most)
        if span is None:
            return hours
        wider = hours_of(calendar, min(span[0], hours.starts[0]), max(span[1], hours.starts[-1]))
        await self._ledger.partitions.ensure(wider.starts)
        return wider

    # capacity

    async def _keep_capacity(self, lease: Lease, fleet: Fleet, calendar: Calendar, now: int) -> None:
        known = await self._ledger.capacity.known(self._cluster)
        nodes = await self._ledger.capacity.nodes(self._cluster)
        waiting = await self._ledger.capacity.waiting(self._cluster, WANT_OF_ROOM)
        seen = shelves(fleet.pools_of(self._cluster), nodes, waiting, _behind)
        self._metrics.capacity(self._cluster, seen)
        while True:
            first = min((one.metered_to for one in known), default=now)
            # After a long downtime: write the last known capacity, a month at a time.
            away = now - first > MOST_DAYS * _DAY
            until = calendar.hour_start(first + MOST_DAYS * _DAY) if away else now
            there = tuple(one.shelf for one in known) if away else seen
            change = turn(known, there, until, calendar.hour_start(until))
            if change is not None:
                async with self._ledger.writing(lease) as tx:
                    await tx.capacity.keep(change, hours_of(calendar, first, until))
            if not away:
                return
            known = await self._ledger.capacity.known(self._cluster)


def hours_of(calendar: Calendar, first: int, last: int) -> Hours:
    """Return the hours from the one that contains `first` to the one that contains `last`."""
    spans = calendar.hours(Span(calendar.hour_start(first), calendar.next_hour(last)))
    starts = (*(span.start for span in spans), spans[-1].end)
    return Hours(starts, tuple(calendar.day_of(span.start) for span in spans))


def _behind(pool: Pool, slices: Mapping[SliceName, int]) -> int:
    return gpus_behind(pool.gpu, slices)
