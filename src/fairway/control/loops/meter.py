"""The step of the meter loop: convert attempts to usage, and the state of nodes to capacity."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from fairway.control.metrics import UsageMetrics
from fairway.control.money_checks import MoneyChecks
from fairway.cost.calendar import Calendar, calendar_of
from fairway.cost.rates import gpus_behind
from fairway.explain.reasons import WAITS_FOR_CAPACITY
from fairway.ledger import Hours, HoursTooFew, Lease, Ledger, LedgerBusy, MeteredBatch
from fairway.model.charge import Span
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import PENDING_JOBS
from fairway.model.names import ClusterName, SliceName
from fairway.model.team import Supply
from fairway.policy.capacity import capacity_samples, capacity_update
from fairway.services.fleets import LastApplied

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

BATCH: Final = 20_000
"""Jobs metered in one transaction."""
MAX_BATCHES: Final = 40
"""Batches in one step; the rest is left to the next step."""
MAX_HOURS: Final = 48
"""Hours of running jobs metered in one transaction after a downtime."""
GRACE_SECONDS: Final = 60
"""Wait after a full hour before metering running jobs up to it: the mirror must know what ended before."""
MAX_DAYS: Final = 31
"""Days of capacity written in one transaction after a long downtime."""
MAX_GAP: Final = 600
"""Seconds between two samples of the queue beyond which what waited meanwhile is unknown."""
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
        self._batch_size = batch
        self._hours_limit = MAX_HOURS
        self._queue_sampled: int | None = None
        self._checks = MoneyChecks(cluster, ledger, metrics)

    async def __call__(self, lease: Lease) -> None:
        """Bring usage and capacity up to date; does nothing before the first fleet."""
        fleet = await self._applied.fleet()
        if fleet is None:
            return
        calendar = calendar_of(fleet)
        now = int(self._clock())
        metered_to = await self._meter(lease, calendar, now)
        await self._write_capacity(lease, fleet, calendar, now)
        await self._sample_queue(lease, fleet, calendar, now)
        await self._checks.feeds(lease, fleet, now)
        if metered_to is not None:
            await self._checks.usage(lease, fleet, calendar, metered_to)

    async def close(self) -> None:
        """Reset the batch sizes and remove the metrics at the end of a tenure."""
        self._queue_sampled = None
        self._batch_size = self._batch
        self._hours_limit = MAX_HOURS
        self._metrics.forget_capacity(self._cluster)
        self._checks.forget()

    async def _meter(self, lease: Lease, calendar: Calendar, now: int) -> int | None:
        """Meter what changed and what runs. Returns up to which full hour, or None if some is left."""
        upto = calendar.hour_start(now - GRACE_SECONDS)
        mark = await self._ledger.metering.mark(self._cluster)
        if mark is None:  # no job is known to run yet: this only records the start
            await self._meter_hours(lease, calendar, upto, upto)
            mark = upto
        # Changed jobs first: an hour must not be added to a job that ended before it.
        if not await self._meter_changed(lease, calendar, mark, now):
            return None
        for _ in range(MAX_BATCHES):
            if mark >= upto:
                return mark
            later = calendar.hour_start(mark + self._hours_limit * _HOUR)
            until = min(upto, max(later, calendar.next_hour(mark)))
            try:
                mark = await self._meter_hours(lease, calendar, mark, until)
            except LedgerBusy:
                if self._hours_limit == 1:
                    raise
                # After a long downtime, with very many running jobs.
                self._hours_limit = max(1, self._hours_limit // 8)
        return None

    async def _meter_changed(self, lease: Lease, calendar: Calendar, mark: int, now: int) -> bool:
        """Meter changed jobs. Returns whether all of them are done."""
        hours = hours_of(calendar, mark - _DAY, now + _DAY)
        await self._ledger.partitions.ensure(hours.starts)
        for _ in range(MAX_BATCHES):
            try:
                if not await self._meter_some(lease, hours):
                    return True
            except HoursTooFew:
                hours = await self._widened(calendar, hours)
            except LedgerBusy:
                if self._batch_size == 1:
                    raise
                # Too much for one transaction: jobs that ran for months have many rows each.
                self._batch_size = max(1, self._batch_size // 8)
        return False

    async def _meter_some(self, lease: Lease, hours: Hours) -> bool:
        """Meter one batch. Returns whether there may be more."""
        batch_size = self._batch_size
        async with self._ledger.writing(lease) as tx:
            done = await tx.metering.meter(hours, batch_size)
        self._count_usage(done)
        self._batch_size = min(self._batch, 2 * batch_size)
        return done.taken >= batch_size

    async def _meter_hours(self, lease: Lease, calendar: Calendar, mark: int, upto: int) -> int:
        """Meter all running jobs up to `upto` in one transaction. Returns the new mark."""
        hours = hours_of(calendar, mark, upto)
        await self._ledger.partitions.ensure(hours.starts)
        async with self._ledger.writing(lease) as tx:
            done = await tx.metering.meter_running(hours, upto)
        self._count_usage(done)
        self._hours_limit = min(MAX_HOURS, 2 * self._hours_limit)
        return upto

    def _count_usage(self, done: MeteredBatch) -> None:
        for used in done.used:
            self._metrics.used(self._cluster, used)

    async def _widened(self, calendar: Calendar, hours: Hours) -> Hours:
        span = await self._ledger.metering.span(self._cluster, self._batch_size)
        if span is None:
            return hours
        wider = hours_of(calendar, min(span[0], hours.starts[0]), max(span[1], hours.starts[-1]))
        await self._ledger.partitions.ensure(wider.starts)
        return wider

    async def _write_capacity(self, lease: Lease, fleet: Fleet, calendar: Calendar, now: int) -> None:
        stored = await self._ledger.capacity.current(self._cluster)
        nodes = await self._ledger.capacity.nodes(self._cluster)
        waiting = await self._ledger.capacity.waiting(self._cluster, WAITS_FOR_CAPACITY)
        observed = capacity_samples(fleet.pools_of(self._cluster), nodes, waiting, _behind)
        self._metrics.capacity(self._cluster, observed)
        self._metrics.waits(self._cluster, await self._ledger.waiting.sums(cluster=self._cluster))
        while True:
            first = min((row.metered_to for row in stored), default=now)
            # After a long downtime: write the last known capacity, a month at a time.
            away = now - first > MAX_DAYS * _DAY
            until = calendar.hour_start(first + MAX_DAYS * _DAY) if away else now
            samples = tuple(row.sample for row in stored) if away else observed
            change = capacity_update(stored, samples, until, calendar.hour_start(until))
            if change is not None:
                async with self._ledger.writing(lease) as tx:
                    await tx.capacity.write(change, hours_of(calendar, first, until))
            if not away:
                return
            stored = await self._ledger.capacity.current(self._cluster)

    async def _sample_queue(self, lease: Lease, fleet: Fleet, calendar: Calendar, now: int) -> None:
        """Add what waits now to the hours since the last sample."""
        since, self._queue_sampled = self._queue_sampled, now
        if since is None or not 0 < now - since <= MAX_GAP:
            return
        waiting = {supply: 0 for pool in fleet.pools_of(self._cluster) for supply in pool.supplies}
        for count in await self._ledger.jobs.counts(self._cluster):
            if count.state in PENDING_JOBS and count.pool is not None:
                supply = Supply(count.pool, count.slice)
                if supply in waiting:
                    waiting[supply] += count.devices
        hours = calendar.hours(Span(calendar.hour_start(since), calendar.next_hour(now)))
        lengths = [(h.start, min(h.end, now) - max(h.start, since)) for h in hours]
        async with self._ledger.writing(lease) as tx:
            await tx.queue.add(waiting, [(start, length) for start, length in lengths if length > 0])


def hours_of(calendar: Calendar, first: int, last: int) -> Hours:
    """Return the hours from the one that contains `first` to the one that contains `last`."""
    spans = calendar.hours(Span(calendar.hour_start(first), calendar.next_hour(last)))
    starts = (*(span.start for span in spans), spans[-1].end)
    return Hours(starts, tuple(calendar.day_of(span.start) for span in spans))


def _behind(pool: Pool, slices: Mapping[SliceName, int]) -> int:
    return gpus_behind(pool.gpu, slices)
