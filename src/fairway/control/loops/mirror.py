"""The step of the mirror loop: write changes of a cluster's jobs, native ones included, to the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

import structlog

from fairway.control.metrics import JobMetrics
from fairway.engines.port import Batch, Mirrors, Runs, Unreachable
from fairway.ledger import Lease, Ledger
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId, SeenJob
from fairway.model.names import ClusterName
from fairway.services.applied_fleet import LastApplied
from fairway.services.engine_pool import LazyEngine

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

CHUNK: Final = 2000
"""Jobs written in one transaction."""
LOOK_UP: Final = 500
"""Jobs looked up in one request."""
LOST_SECONDS: Final = 30.0
"""How long a job may be missing from the engine's queue and records before it counts as lost."""


class MirrorsAndEnds(Mirrors, Runs, Protocol):
    """An engine that reports its jobs and can cancel them."""


class MirrorJobs:
    """Follows the jobs of one cluster; the engine is built at the first read."""

    def __init__(
        self,
        cluster: ClusterName,
        build: Callable[[], MirrorsAndEnds],
        ledger: Ledger,
        applied: LastApplied,
        metrics: JobMetrics,
        *,
        lost_seconds: float = LOST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._engine = LazyEngine(build)
        self._ledger = ledger
        self._applied = applied
        self._metrics = metrics
        self._lost_seconds = lost_seconds
        self._clock = clock
        self._unkept: tuple[Batch, float] | None = None
        """A batch from the engine that the ledger has not stored yet: the engine does not repeat it."""
        self._stale = False
        self._shown: frozenset[EngineId] | None = None
        """All jobs that the engine listed, until missing ones were looked up."""
        self._missing: dict[EngineId, float] = {}
        """Jobs that are open in the ledger and unknown to the engine, and since when."""
        self._doubles: set[EngineId] = set()

    async def __call__(self, lease: Lease) -> None:
        """Read one batch of changes, or take the one left by a failed round, and write it."""
        fleet = await self._applied.fleet()
        if fleet is None:
            return
        if self._unkept is None:
            self._unkept = await self._look(fleet)
        batch, asked = self._unkept
        await self._keep(lease, batch.jobs, batch.mark)
        if batch.whole:
            self._shown = frozenset(job.engine_id for job in batch.jobs)
        self._unkept = None
        self._metrics.mirrored(self._cluster, asked, len(batch.jobs))
        if self._shown is not None:
            await self._look_for_missing(lease, fleet, self._shown)
            self._shown = None
        await self._give_up_missing(lease, fleet)
        await self._end_doubles()

    async def close(self) -> None:
        """Close the engine; the next round builds a new one, which reports all jobs."""
        self._unkept = self._shown = None
        self._missing.clear()
        self._doubles.clear()
        self._metrics.forget_lag(self._cluster)
        await self._engine.close()

    async def _look(self, fleet: Fleet) -> tuple[Batch, float]:
        if self._stale:
            await self._engine.close()
            self._stale = False
        engine = self._engine.get()
        mark = await self._ledger.mirror.mark(self._cluster)
        asked = self._clock()
        try:
            return await engine.changes(mark, fleet), asked
        except Unreachable:
            raise  # the engine continues where it was when it is reachable again
        except BaseException:
            self._stale = True  # its state is unknown: build a new engine, which starts over
            raise

    async def _keep(self, lease: Lease, jobs: Sequence[SeenJob], mark: str | None = None) -> None:
        """Write jobs in chunks; the mark comes with the last, so that a failure repeats the whole batch."""
        if not jobs and mark is None:
            return
        for start in range(0, max(1, len(jobs)), CHUNK):
            last = start + CHUNK >= len(jobs)
            async with self._ledger.writing(lease) as tx:
                kept = await tx.mirror.keep_seen(jobs[start : start + CHUNK], mark if last else None)
            self._doubles.update(kept.doubles)

    # jobs that the engine no longer lists

    async def _look_for_missing(self, lease: Lease, fleet: Fleet, shown: Collection[EngineId]) -> None:
        """Look up open jobs of the ledger that the engine does not list: its records may have them."""
        known = await self._ledger.dispatch.open_engine_ids(self._cluster)
        now = self._clock()
        gone = known.difference(shown)
        self._missing = {id_: self._missing.get(id_, now) for id_ in gone}
        await self._look_up(lease, fleet, sorted(gone))

    async def _give_up_missing(self, lease: Lease, fleet: Fleet) -> None:
        """Record jobs as lost that were still unknown when looked up again after `lost_seconds`."""
        now = self._clock()
        due = {id_ for id_, since in self._missing.items() if now >= since + self._lost_seconds}
        if not due:
            return
        still_open = await self._ledger.dispatch.open_engine_ids(self._cluster)
        await self._look_up(lease, fleet, sorted(due & still_open))
        lost = sorted(due & still_open & self._missing.keys())
        if lost:
            log.warning("jobs lost by the engine", cluster=self._cluster, jobs=len(lost), first=lost[0])
            async with self._ledger.writing(lease) as tx:
                await tx.mirror.keep_lost(lost)
        for id_ in due:
            self._missing.pop(id_, None)

    async def _look_up(self, lease: Lease, fleet: Fleet, ids: Sequence[EngineId]) -> None:
        engine = self._engine.get()
        for start in range(0, len(ids), LOOK_UP):
            found = await engine.look_up(ids[start : start + LOOK_UP], fleet)
            await self._keep(lease, tuple(found.values()))
            for id_ in found:
                self._missing.pop(id_, None)

    async def _end_doubles(self) -> None:
        if not self._doubles:
            return
        doubles = sorted(self._doubles)
        log.warning("second engine jobs of one order", cluster=self._cluster, jobs=len(doubles))
        refused = await self._engine.get().cancel(doubles)
        for id_, refusal in refused.items():
            log.error("a double could not be ended", cluster=self._cluster, job=id_, message=refusal.message)
        self._metrics.doubled(self._cluster, len(doubles))
        self._doubles.clear()
