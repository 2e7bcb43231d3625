"""The step of the objectives loop: count what became certain since the last round, and measure each one.

An event is counted in the transaction that moves the objective's cursor past it, so it is counted once,
whichever server does it and whenever it is killed. A new objective is filled from the history a day at a
time; rounds go on where the last one ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from fairway.control.metrics_slos import SloMetrics
from fairway.cost.rates import memory_part
from fairway.ledger import Lease, Ledger
from fairway.ledger.slos.counts import SloCursor
from fairway.ledger.slos.histories import MAX_HISTORIES, CountedSpan, StoredHistory
from fairway.model.fleet import Fleet
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, SliceName
from fairway.model.slo import DAY, SLOT_SECONDS, DeliveredWithin, Slo, StartsWithin
from fairway.model.team import TeamTree
from fairway.policy.slo import Counts, JobHistory, Slots, count, measure, slot_of
from fairway.policy.slo_scope import SloScope
from fairway.services.fleets import Clock, Fleets
from fairway.services.slos import stored_slo

SETTLE_SECONDS: Final = 120
"""How long after an event it is counted: an engine's records lag behind its queue."""
ROUND_SECONDS: Final = 20.0
"""How long a round fills new objectives from the history; the next round goes on."""
_SHORTEST: Final = 60
"""A span that is not divided further, however many jobs it has."""
_FORGET_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class _Work:
    """Objectives that are counted together: they read the same jobs."""

    kind: type[StartsWithin] | type[DeliveredWithin]
    bound: int
    clusters: frozenset[ClusterName]
    counted_to: int


@dataclass(slots=True)
class _Measured:
    """The counts of an objective in memory, so that a round reads none; valid while the cursor is as here."""

    cursor: SloCursor
    slots: dict[int, Counts] = field(default_factory=dict)


class CountSlos:
    """Counts and measures the objectives of the fleet."""

    def __init__(
        self,
        ledger: Ledger,
        fleets: Fleets,
        metrics: SloMetrics,
        *,
        clock: Clock = time.time,
        settle_seconds: float = SETTLE_SECONDS,
        max_histories: int = MAX_HISTORIES,
    ) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._metrics = metrics
        self._clock = clock
        self._settle = settle_seconds
        self._most = max_histories
        self._measured: dict[str, _Measured] = {}
        """By digest."""
        self._forgotten_at = 0.0

    async def __call__(self, lease: Lease) -> None:
        """Count up to the time when every cluster was last seen, then write the state of each objective."""
        fleet = await self._fleets.in_force()
        if not fleet.slos and not self._measured and not await self._ledger.slos.statuses():
            return
        await self._count(lease, fleet)
        measured = [
            measure(slo, found.slots, found.cursor.since, found.cursor.counted_to)
            for slo in fleet.slos
            if (found := self._measured.get(slo.digest)) is not None
        ]
        statuses = [stored_slo(status) for status in measured]
        now = self._clock()
        forget = now >= self._forgotten_at + _FORGET_SECONDS
        async with self._ledger.writing(lease) as tx:
            await tx.slos.write(statuses)
            if forget:
                await tx.slos.forget({slo.digest for slo in fleet.slos}, now)
        if forget:
            self._forgotten_at = now
        self._metrics.measured(measured)

    async def close(self) -> None:
        """Forget counts and metrics at the end of a tenure."""
        self._measured.clear()
        self._metrics.forget()

    async def _count(self, lease: Lease, fleet: Fleet) -> None:
        seen = await self._ledger.mirror.complete_times()
        deadline = self._clock() + ROUND_SECONDS
        await self._load(fleet.slos, seen, fleet)
        while True:
            behind = {
                work: (slos, until)
                for work, slos in self._groups(fleet, seen).items()
                if (until := self._until(work.clusters, seen)) > work.counted_to
            }
            for work, (slos, until) in behind.items():
                await self._advance(lease, fleet, work, slos, until)
            if not behind or self._clock() >= deadline:
                return

    async def _load(self, slos: Sequence[Slo], seen: Mapping[ClusterName, datetime], fleet: Fleet) -> None:
        """Read the counts of objectives that are new here, or that another server counted meanwhile."""
        cursors = await self._ledger.slos.cursors()
        wanted = {slo.digest: slo for slo in slos}
        self._measured = {
            digest: found
            for digest, found in self._measured.items()
            if digest in wanted and cursors.get(digest, found.cursor) == found.cursor
        }
        stale = wanted.keys() - self._measured.keys()
        if not stale:
            return
        read = await self._ledger.slos.slots(stale, self._clock() - max(_kept(wanted[d]) for d in stale))
        for digest in stale:
            cursor = cursors.get(digest)
            if cursor is None:
                until = self._until(_clusters(wanted[digest], fleet, seen), seen)
                if not until:
                    continue  # no cluster was seen yet
                since = slot_of(until - wanted[digest].window_seconds)
                cursor = SloCursor(since, since)
            self._measured[digest] = _Measured(cursor, dict(read[digest]))

    def _groups(self, fleet: Fleet, seen: Mapping[ClusterName, datetime]) -> dict[_Work, list[Slo]]:
        found: dict[_Work, list[Slo]] = {}
        for slo in {slo.digest: slo for slo in fleet.slos}.values():
            measured = self._measured.get(slo.digest)
            if measured is not None:
                clusters = _clusters(slo, fleet, seen)
                work = _Work(type(slo.promise), slo.promise.seconds, clusters, measured.cursor.counted_to)
                found.setdefault(work, []).append(slo)
        return found

    def _until(self, clusters: frozenset[ClusterName], seen: Mapping[ClusterName, datetime]) -> int:
        """Return up to when everything is known of these clusters; 0: none of them was seen yet."""
        times = [seen[cluster].timestamp() for cluster in clusters]
        return int(min(*times, self._clock()) - self._settle) if times else 0

    async def _advance(
        self, lease: Lease, fleet: Fleet, work: _Work, slos: Sequence[Slo], until: int
    ) -> None:
        """Count the next part of a group's history, at most a day of it, in one transaction."""
        span = CountedSpan(work.counted_to, min(until, work.counted_to + DAY))
        span, histories = await self._read(work, span)
        counted = await asyncio.to_thread(self._judge, fleet, slos, span, histories)
        moved = {
            slo.digest: replace(self._measured[slo.digest].cursor, counted_to=int(span.until)) for slo in slos
        }
        async with self._ledger.writing(lease) as tx:
            await tx.slos.count(counted, moved)
        for slo in slos:
            measured = self._measured[slo.digest]
            measured.cursor = moved[slo.digest]
            oldest = span.until - _kept(slo)
            slots = {slot: counts for slot, counts in measured.slots.items() if slot >= oldest}
            for slot, counts in counted[slo.digest].items():
                slots[slot] = slots.get(slot, Counts()) + counts
            measured.slots = slots

    async def _read(self, work: _Work, span: CountedSpan) -> tuple[CountedSpan, list[StoredHistory]]:
        """Read the jobs of a span, or of its first part if it has too many."""
        read = (
            self._ledger.job_histories.starting
            if work.kind is StartsWithin
            else self._ledger.job_histories.delivering
        )
        while True:
            divisible = span.seconds > _SHORTEST
            limit = self._most + 1 if divisible else 2**31 - 1
            found = await read(span, work.bound, work.clusters, limit)
            if len(found) <= self._most or not divisible:
                return span, found
            span = CountedSpan(span.after, span.after + int(span.seconds / 2))

    def _judge(
        self, fleet: Fleet, slos: Sequence[Slo], span: CountedSpan, found: Sequence[StoredHistory]
    ) -> dict[str, Slots]:
        tree = TeamTree(fleet.teams)
        gpus = {pool.name: pool.gpu for pool in fleet.pools}
        jobs = [(one.traits, _in_gpus(one, gpus.get(PoolName(one.traits.pool)))) for one in found]
        counted: dict[str, Slots] = {}
        for slo in slos:
            scope = SloScope(slo, tree, fleet.default_priority.name)
            histories: Iterable[JobHistory] = (job for traits, job in jobs if scope.counts(traits))
            earlier = self._measured[slo.digest].slots
            counted[slo.digest] = count(slo, histories, span.after, span.until, earlier)
        return counted


def _in_gpus(job: StoredHistory, gpu: GpuType | None) -> JobHistory:
    """Return a job with the part of a GPU that each of its slices is; of a pool that is gone, that is 1."""
    if not job.slice:
        return job.history
    part = 1.0 if gpu is None else float(memory_part(gpu, SliceName(job.slice)))
    return replace(job.history, gpu_part=part)


def _clusters(slo: Slo, fleet: Fleet, seen: Mapping[ClusterName, datetime]) -> frozenset[ClusterName]:
    """Return the clusters whose jobs an objective counts, apart from those that were never seen."""
    if slo.pools:
        names = {pool.cluster for pool in fleet.pools if pool.name in slo.pools}
    else:
        names = {cluster.name for cluster in fleet.clusters}
    return frozenset(name for name in names if name in seen)


def _kept(slo: Slo) -> int:
    """Return how long the counts of an objective matter: its window, and the last period of a promise."""
    return slo.window_seconds + slo.promise.seconds + SLOT_SECONDS
