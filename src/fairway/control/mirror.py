"""The mirror loop's step: what changed among a cluster's jobs, ours and native ones, into the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

import structlog

from fairway.control.applied import LastApplied
from fairway.control.held import HeldEngine
from fairway.control.metrics import JobMetrics
from fairway.engines.port import Batch, Mirrors, Runs, Unreachable
from fairway.ledger import Lease, Ledger
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId, SeenJob
from fairway.model.names import ClusterName

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

CHUNK: Final = 2000
"""Jobs that are kept in one transaction."""
LOOK_UP: Final = 500
"""Jobs that are looked up at once."""
LOST_SECONDS: Final = 30.0
"""How long the engine's records may take to tell of a job that is no longer in its queue."""


class MirrorsAndEnds(Mirrors, Runs, Protocol):
    """Tells of its jobs, and can end those that should not be."""


class MirrorJobs:
    """Follows the jobs of one cluster while the lease is held; its engine is built at the first look."""

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
        self._engine = HeldEngine(build)
        self._ledger = ledger
        self._applied = applied
        self._metrics = metrics
        self._lost_seconds = lost_seconds
        self._clock = clock
        self._unkept: tuple[Batch, float] | None = None
        """What the engine told and the ledger did not take yet: it is not told again."""
        self._stale = False
        self._shown: frozenset[EngineId] | None = None
        """All that the engine showed, until what is missing among it was looked for."""
        self._missing: dict[EngineId, float] = {}
        """Open in the ledger, unknown to the engine, and since when."""
        self._doubles: set[EngineId] = set()

    async def __call__(self, lease: Lease) -> None:
        """One look, or what an earlier one left to be kept."""
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
        """Let the engine go; the next look builds a new one, which tells of everything."""
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
        mark = await self._ledger.mirror_mark(self._cluster)
        asked = self._clock()
        try:
            return await engine.changes(mark, fleet), asked
        except Unreachable:
            raise  # it goes on where it was when the engine is back
        except BaseException:
            self._stale = True  # nobody knows what the engine thinks it told: another one begins anew
            raise

    async def _keep(self, lease: Lease, jobs: Sequence[SeenJob], mark: str | None = None) -> None:
        """In chunks; the mark comes with the last: if that fails, all of it comes again."""
        if not jobs and mark is None:
            return
        for start in range(0, max(1, len(jobs)), CHUNK):
            last = start + CHUNK >= len(jobs)
            async with self._ledger.writing(lease) as tx:
                kept = await tx.keep_seen(jobs[start : start + CHUNK], mark if last else None)
            self._doubles.update(kept.doubles)

    # what the engine no longer shows

    async def _look_for_missing(self, lease: Lease, fleet: Fleet, shown: Collection[EngineId]) -> None:
        """What is open in the ledger and not among all there is: its records may tell."""
        known = await self._ledger.open_engine_ids(self._cluster)
        now = self._clock()
        gone = known.difference(shown)
        self._missing = {id_: self._missing.get(id_, now) for id_ in gone}
        await self._look_up(lease, fleet, sorted(gone))

    async def _give_up_missing(self, lease: Lease, fleet: Fleet) -> None:
        """Twice, and half a minute apart, nothing tells of them: then nothing ever will."""
        now = self._clock()
        due = {id_ for id_, since in self._missing.items() if now >= since + self._lost_seconds}
        if not due:
            return
        still_open = await self._ledger.open_engine_ids(self._cluster)
        await self._look_up(lease, fleet, sorted(due & still_open))
        lost = sorted(due & still_open & self._missing.keys())
        if lost:
            log.warning("jobs lost by the engine", cluster=self._cluster, jobs=len(lost), first=lost[0])
            async with self._ledger.writing(lease) as tx:
                await tx.keep_lost(lost)
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
