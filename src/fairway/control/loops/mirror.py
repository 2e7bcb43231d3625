"""The step of the mirror loop: write changes of a cluster's jobs, native ones included, to the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

import structlog

from fairway.control.condition_record import ConditionRecord
from fairway.control.job_ends import JobEndAudiences
from fairway.control.metrics import JobMetrics
from fairway.engines.port import MirrorBatch, Mirrors, Runs, Unreachable
from fairway.ledger import Lease, Ledger
from fairway.ledger.jobs.ends import NOBODY
from fairway.model.condition import ConditionType, error_condition
from fairway.model.errors import FairwayError, PermanentError
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId, SeenJob, format_job_id
from fairway.model.names import ClusterName
from fairway.services.engine_cache import LazyEngine
from fairway.services.fleets import LastApplied

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

CHUNK: Final = 2000
"""Jobs written in one transaction."""
LOOKUP_SIZE: Final = 500
"""Jobs looked up in one request."""
SENT_SECONDS: Final = 15.0
"""How long a job that was sent may take to appear in the engine's queue."""
LOST_SECONDS: Final = 30.0
"""How long a job may be missing from the engine's queue and records before it counts as lost."""


class MirrorEngine(Mirrors, Runs, Protocol):
    """An engine that reports its jobs and can cancel them."""


class MirrorJobs:
    """Follows the jobs of one cluster; the engine is built at the first read."""

    def __init__(
        self,
        cluster: ClusterName,
        build: Callable[[], MirrorEngine],
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
        self._unstored: tuple[MirrorBatch, float] | None = None
        """A batch from the engine that the ledger has not stored yet: the engine does not repeat it."""
        self._stale = False
        self._listed: frozenset[EngineId] | None = None
        """All jobs that the engine listed, until missing ones were looked up."""
        self._missing: dict[EngineId, float] = {}
        """Jobs that are open in the ledger and unknown to the engine, and since when."""
        self._unlisted: tuple[set[EngineId], float] | None = None
        """Jobs sent just before the engine listed all, but not these, and when to look them up."""
        self._followed = False
        """Whether a batch was stored since the start."""
        self._duplicates: set[EngineId] = set()
        self._deferred: dict[EngineId, SeenJob] = {}
        """Reports that the ledger could not decide on yet. A new engine reports such jobs again."""
        self._failures = 0
        self._condition = ConditionRecord(ledger, ConditionType.JOBS_NOT_FOLLOWED)
        self._audiences = JobEndAudiences(ledger, clock)
        self._audience = NOBODY
        """Who gets notices of ended jobs; usually nobody."""

    async def __call__(self, lease: Lease) -> None:
        """Read one batch of changes, or take the one left by a failed round, and write it."""
        fleet = await self._applied.fleet()
        if fleet is None:
            return
        self._audience = await self._audiences.get(fleet)
        if self._unstored is None:
            self._unstored = await self._read_or_record(lease, fleet)
        batch, read_at = self._unstored
        listed = None
        if batch.snapshot or not self._followed:
            # A virtual cluster outlives its mirror: the first batch may have changes only, while the jobs
            # that the previous mirror missed are still missing.
            listed = frozenset(job.engine_id for job in batch.jobs)
        complete = not self._missing
        if listed is not None:
            # Before the mark moves: what is missing was last seen when the mirror was last complete.
            complete = listed >= await self._ledger.dispatch.open_engine_ids(self._cluster)
        await self._store(lease, batch.jobs, batch.mark, complete=complete)
        if listed is not None:
            self._listed = listed
        elif self._unlisted is not None:
            self._unlisted[0].difference_update(job.engine_id for job in batch.jobs)
        self._unstored = None
        self._followed = True
        await self._store(lease, tuple(self._deferred.values()))
        self._metrics.mirrored(self._cluster, read_at, len(batch.jobs))
        if self._listed is not None:
            await self._find_missing(lease, fleet, self._listed)
            self._listed = None
        await self._find_unlisted(lease, fleet)
        await self._record_lost(lease, fleet)
        await self._cancel_duplicates()

    async def close(self) -> None:
        """Close the engine; the next round builds a new one, which reports all jobs."""
        self._unstored = self._listed = None
        self._deferred.clear()
        self._missing.clear()
        self._unlisted = None
        self._followed = False
        self._duplicates.clear()
        self._failures = 0
        self._condition.forget()
        self._metrics.forget_lag(self._cluster)
        await self._engine.close()

    async def _read_or_record(self, lease: Lease, fleet: Fleet) -> tuple[MirrorBatch, float]:
        """Read changes. Records as a condition of the cluster that its jobs are not followed, until they are.

        A temporary error is recorded from the second in a row on: a busy engine misses a beat now and then.
        """
        try:
            read = await self._read_changes(fleet)
        except FairwayError as error:
            self._failures += 1
            if self._failures > 1 or isinstance(error, PermanentError):
                await self._condition.write(lease, error_condition(ConditionType.JOBS_NOT_FOLLOWED, error))
            raise
        self._failures = 0
        await self._condition.write(lease, None)
        return read

    async def _read_changes(self, fleet: Fleet) -> tuple[MirrorBatch, float]:
        if self._stale:
            await self._engine.close()
            self._stale = False
        engine = self._engine.get()
        mark = await self._ledger.mirror.mark(self._cluster)
        read_at = self._clock()
        try:
            batch = await engine.changes(mark, fleet)
        except Unreachable:
            raise  # the engine continues where it was when it is reachable again
        except BaseException:
            self._stale = True  # its state is unknown: build a new engine, which starts over
            raise
        return replace(batch, jobs=await self._with_names(batch.jobs)), read_at

    async def _with_names(self, jobs: Sequence[SeenJob]) -> tuple[SeenJob, ...]:
        """Write names and ids of other jobs into reasons, which engines know by engine id only."""
        others = {id_ for job in jobs for id_ in (job.reason_job, *(a.by for a in job.attempts)) if id_}
        if not others:
            return tuple(jobs)
        names = {job.engine_id: job.name for job in jobs if job.engine_id in others}
        for row in await self._ledger.jobs.by_engine_ids(self._cluster, sorted(others)):
            if row.engine_id is not None:
                names[EngineId(row.engine_id)] = f"{row.name} ({format_job_id(row.id)})"
        return tuple(_named(job, names) for job in jobs)

    async def _store(
        self, lease: Lease, jobs: Sequence[SeenJob], mark: str | None = None, *, complete: bool = True
    ) -> None:
        """Write jobs in chunks; the mark comes with the last, so that a failure repeats the whole batch.

        `complete` says that no job that is open in the ledger is missing from the engine.
        """
        if not jobs and mark is None:
            return
        for start in range(0, max(1, len(jobs)), CHUNK):
            last = start + CHUNK >= len(jobs)
            chunk = jobs[start : start + CHUNK]
            async with self._ledger.writing(lease) as tx:
                stored = await tx.mirror.write_jobs(chunk, mark if last else None, complete=complete)
                await tx.job_ends.notify(stored.ended, self._audience)
            self._duplicates.update(stored.doubles)
            if self._deferred or stored.deferred:
                reports = {job.engine_id: job for job in chunk}
                for id_ in reports:
                    self._deferred.pop(id_, None)
                self._deferred |= {id_: reports[id_] for id_ in stored.deferred}

    async def _find_missing(self, lease: Lease, fleet: Fleet, listed: Collection[EngineId]) -> None:
        """Look up open jobs of the ledger that the engine does not list: its records may have them."""
        open_ids = await self._ledger.dispatch.open_engine_ids(self._cluster)
        now = self._clock()
        gone = open_ids.difference(listed)
        self._missing = {id_: self._missing.get(id_, now) for id_ in gone}
        sent = await self._ledger.dispatch.open_engine_ids(self._cluster, sent_before_seconds=0)
        self._unlisted = set(sent.difference(listed, open_ids)), now + SENT_SECONDS
        await self._look_up(lease, fleet, sorted(gone))

    async def _find_unlisted(self, lease: Lease, fleet: Fleet) -> None:
        """Look up jobs that were too young to be missed from a list and that were not reported since."""
        now = self._clock()
        if self._unlisted is None or now < self._unlisted[1]:
            return
        unlisted, _ = self._unlisted
        due = unlisted & await self._ledger.dispatch.open_engine_ids(self._cluster)
        young = await self._ledger.dispatch.open_engine_ids(self._cluster, sent_before_seconds=0)
        unlisted = (unlisted & young) - due
        self._unlisted = (unlisted, now + SENT_SECONDS) if unlisted else None
        for id_ in due:
            self._missing.setdefault(id_, now)
        await self._look_up(lease, fleet, sorted(due))

    async def _record_lost(self, lease: Lease, fleet: Fleet) -> None:
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
                await tx.job_ends.notify(await tx.mirror.mark_lost(lost), self._audience)
        for id_ in due:
            self._missing.pop(id_, None)

    async def _look_up(self, lease: Lease, fleet: Fleet, ids: Sequence[EngineId]) -> None:
        engine = self._engine.get()
        for start in range(0, len(ids), LOOKUP_SIZE):
            found = await engine.look_up(ids[start : start + LOOKUP_SIZE], fleet)
            await self._store(lease, await self._with_names(tuple(found.values())))
            for id_ in found:
                self._missing.pop(id_, None)

    async def _cancel_duplicates(self) -> None:
        if not self._duplicates:
            return
        duplicates = sorted(self._duplicates)
        log.warning("second engine jobs of one order", cluster=self._cluster, jobs=len(duplicates))
        refused = await self._engine.get().cancel(duplicates)
        for id_, refusal in refused.items():
            log.error("a double could not be ended", cluster=self._cluster, job=id_, message=refusal.message)
        self._metrics.doubled(self._cluster, len(duplicates))
        self._duplicates.clear()


def _named(job: SeenJob, names: Mapping[EngineId, str]) -> SeenJob:
    def text(reason: str, other: EngineId | None) -> str:
        return reason.replace("{job}", names.get(other, "another job")) if other else reason

    attempts = tuple(replace(a, reason=text(a.reason, a.by)) if a.by else a for a in job.attempts)
    return replace(job, reason=text(job.reason, job.reason_job), attempts=attempts)
