"""The step of the dispatch loop: create due engine jobs exactly once; cancel, hold, release and change jobs.

An order has a unique name, so that its engine job can always be found. For an engine that would accept a
second job of the same name, the ledger first records until when the order may arrive (`begin`). If the
outcome is unknown, the next round waits until nothing sent before can still arrive, looks the name up, and
only then sends again. So sending stops well before that time, to leave requests in flight time to arrive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from fairway.control.job_ends import JobEndAudiences
from fairway.control.metrics import JobMetrics
from fairway.engines.port import ChangesWaiting, Runs, SubmitResult
from fairway.ledger import Lease, LeaseLost, Ledger
from fairway.ledger.jobs.changes import other_cluster
from fairway.ledger.jobs.ends import NOBODY
from fairway.ledger.records.jobs import ChangeableJob, DesiredState, PendingAction, PendingSubmit
from fairway.model.errors import FairwayError, Refused, TemporaryError
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId, EngineName, JobId, JobState
from fairway.model.job_change import SUBMIT_AGAIN, WaitingChange
from fairway.model.names import ClusterName
from fairway.services.engine_cache import LazyEngine
from fairway.services.fleets import LastApplied
from fairway.services.wakeup import Wakeup

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Batch sizes and time limits of the dispatch loop. Tests use smaller ones."""

    batch: int = 400
    """Orders per batch: few enough to be sent long before their deadline."""
    window: int = 800
    """Jobs read to fill a batch: those with unknown outcome must not block the rest."""
    sending_seconds: float = 30.0
    """How long after `begin` an order can still arrive."""
    stop_seconds: float = 15.0
    """When sending stops: requests in flight have as long again to arrive."""
    record_seconds: float = 0.5
    """How often results are written to the ledger while more orders are being sent."""
    step_seconds: float = 20.0
    """How long a step continues while there are more orders to send."""
    retry_seconds: float = 5.0
    """How soon a cancel, hold or release is repeated if the engine has not done it yet."""
    settle_seconds: float = 2.0


DISPATCH_LIMITS: Final = DispatchLimits()
_MAX_ACTIONS: Final = 1000
_MIN_BATCH: Final = 5

_JobAction = Callable[[Sequence[EngineId]], Awaitable[Mapping[EngineId, Refused]]]
"""An engine method that changes jobs: cancel, hold or release."""


class DispatchJobs:
    """Sends the jobs of one cluster; the engine is built when the first job is due."""

    def __init__(
        self,
        cluster: ClusterName,
        build: Callable[[], Runs],
        ledger: Ledger,
        applied: LastApplied,
        metrics: JobMetrics,
        *,
        limits: DispatchLimits = DISPATCH_LIMITS,
        clock: Callable[[], float] = time.monotonic,
        wakeup: Wakeup | None = None,
    ) -> None:
        """`wakeup` is notified of each cluster that a job was moved to."""
        self._cluster = cluster
        self._engine = LazyEngine(build)
        self._ledger = ledger
        self._applied = applied
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        self._wakeup = wakeup or Wakeup()
        self._audiences = JobEndAudiences(ledger, clock)
        self._ledger_time = _NEVER
        self._batch = limits.batch
        self._unrecorded: list[SubmitResult] = []
        """Sent or refused orders that the ledger has not recorded yet."""
        self._requested_at: dict[tuple[EngineId, DesiredState], float] = {}
        self._settled = float("-inf")

    async def __call__(self, lease: Lease) -> None:
        """Send due jobs until none is left or the time is up; then cancel, hold and release jobs.

        Jobs for a cluster that Fairway has left wait until it is governed again: its accounts are gone.
        """
        if self._ledger_time.token != lease.token:
            self._ledger_time = _LedgerTime.of(lease, self._clock())
        await self._record(lease)
        await self._settle_changes(lease)  # before anything is read to be sent
        fleet = await self._applied.fleet()
        if fleet is None:
            return
        until = self._clock() + self._limits.step_seconds
        left = await self._applied.is_left()
        try:
            while not left and await self._send(lease, fleet) and self._clock() < until:
                await self._change_jobs(lease)  # a cancel need not wait until all jobs are sent
        except LeaseLost:
            raise
        except FairwayError:
            await self._change_jobs(lease)  # an engine that accepts no orders may still cancel jobs
            raise
        await self._change_jobs(lease)
        await self._change_waiting(lease, fleet)
        if self._clock() >= self._settled + self._limits.settle_seconds:
            audience = await self._audiences.get(fleet)
            async with self._ledger.writing(lease) as tx:
                await tx.job_ends.notify(await tx.dispatch.cancel_unsatisfiable(), audience)
            self._settled = self._clock()

    async def close(self) -> None:
        """Close the engine; the next step builds a new one."""
        self._unrecorded.clear()  # the next holder of the lease finds them by their names
        self._requested_at.clear()
        await self._engine.close()

    async def _send(self, lease: Lease, fleet: Fleet) -> bool:
        """Send one batch. Returns whether more jobs may be due."""
        due = await self._ledger.dispatch.pending_submits(self._cluster, self._limits.window)
        if not due:
            return False
        fresh = [job for job in due if job.sending_until is None]
        resend = await self._never_arrived(lease, [job for job in due if job.sending_until is not None])
        # One order that an engine fails on must not block the rest: after a failure, orders that were not
        # part of it go first, and few at a time: the outcome of every order of a failed batch is unknown.
        first, second = (fresh, resend) if self._batch < self._limits.batch else (resend, fresh)
        batch = (first or second)[: self._batch]
        if not batch:
            return False
        self._batch, full_size = max(_MIN_BATCH, self._batch // 4), self._batch
        await self._send_batch(lease, fleet, batch)
        self._batch = min(self._limits.batch, 2 * full_size)
        return len(fresh) + len(resend) > len(batch) or len(due) >= self._limits.window

    async def _never_arrived(self, lease: Lease, doubtful: Sequence[PendingSubmit]) -> list[PendingSubmit]:
        """Return the orders that certainly never arrived, and record those that are found on the engine."""
        engine = self._engine.get()
        if engine.unique_names or not doubtful:
            return list(doubtful)
        now = self._ledger_time.now(self._clock())
        expired = [job for job in doubtful if job.sending_until is not None and job.sending_until < now]
        if not expired:
            return []
        by_name: Mapping[EngineName, EngineId] = await engine.find([job.engine_name for job in expired])
        found = [(j.id, j.submission, by_name[j.engine_name]) for j in expired if j.engine_name in by_name]
        if found:
            log.info(
                "found again", cluster=self._cluster, jobs=len(found), sent_again=len(expired) - len(found)
            )
            async with self._ledger.writing(lease) as tx:
                await tx.dispatch.record_sent(found)
        return [job for job in expired if job.engine_name not in by_name]

    async def _send_batch(self, lease: Lease, fleet: Fleet, batch: Sequence[PendingSubmit]) -> None:
        """Send a batch, recording results at least every half second."""
        # The clock starts before the mark is written: by the ledger's clock there is even more time.
        stop_at = self._clock() + self._limits.stop_seconds
        async with self._ledger.writing(lease) as tx:
            begun = await tx.dispatch.begin([job.id for job in batch], self._limits.sending_seconds)
        # Without those that somebody cancelled, or the mirror found, since they were read.
        sending = asyncio.create_task(self._send_orders([j for j in batch if j.id in begun], fleet, stop_at))
        try:
            while not sending.done():
                await asyncio.wait([sending], timeout=self._limits.record_seconds)
                await self._try_record(lease)
            await self._record(lease)
            sending.result()
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await sending

    async def _send_orders(self, batch: Sequence[PendingSubmit], fleet: Fleet, stop_at: float) -> None:
        stream = self._engine.get().submit([job.order() for job in batch], fleet)
        left = stop_at - self._clock()
        if left <= 0:
            raise _timed_out(self._cluster)
        try:
            async with asyncio.timeout(left):
                async for sent in stream:
                    self._unrecorded.append(sent)
        except TimeoutError as error:
            raise _timed_out(self._cluster) from error

    async def _try_record(self, lease: Lease) -> None:
        """Record results, ignoring temporary errors: to stop sending would leave more outcomes unknown."""
        try:
            await self._record(lease)
        except LeaseLost:
            raise
        except TemporaryError as error:
            log.warning("not kept yet", cluster=self._cluster, code=error.code, message=error.message)

    async def _record(self, lease: Lease) -> None:
        results = self._unrecorded[:]
        if not results:
            return
        accepted = [
            (s.order.job, s.order.submission, s.engine_id) for s in results if s.engine_id is not None
        ]
        refused = [
            (s.order.job, s.order.submission, s.refusal or _no_reason(self._cluster))
            for s in results
            if s.engine_id is None
        ]
        fleet = await self._applied.fleet() if refused else None
        audience = NOBODY if fleet is None else await self._audiences.get(fleet)
        async with self._ledger.writing(lease) as tx:
            if accepted:
                await tx.dispatch.record_sent(accepted)
            if refused:
                ended = await tx.dispatch.record_refused(refused)
                await tx.job_ends.notify(ended, audience)
        del self._unrecorded[: len(results)]
        self._metrics.sent(self._cluster, len(accepted))
        self._metrics.refused(self._cluster, len(refused))

    async def _change_jobs(self, lease: Lease) -> None:
        """Send requested cancels, holds and releases to the engine, not repeating them too soon."""
        pending = await self._ledger.dispatch.pending_actions(self._cluster, _MAX_ACTIONS)
        now = self._clock()
        open_ = {(job.engine_id, job.desired_state) for job in pending}
        self._requested_at = {
            key: at
            for key, at in self._requested_at.items()
            if key in open_ and now < at + self._limits.retry_seconds
        }
        todo = [job for job in pending if (job.engine_id, job.desired_state) not in self._requested_at]
        if not todo:
            return
        engine = self._engine.get()
        actions: tuple[tuple[DesiredState, _JobAction], ...] = (
            (DesiredState.CANCEL, engine.cancel),
            (DesiredState.HOLD, engine.hold),
            (DesiredState.RUN, engine.release),
        )
        for desired, action in actions:
            jobs = [job for job in todo if job.desired_state is desired and _is_open(job)]
            if jobs:
                await self._request(lease, action, jobs)

    async def _request(self, lease: Lease, action: _JobAction, jobs: Sequence[PendingAction]) -> None:
        refusals = await action([job.engine_id for job in jobs])
        now = self._clock()
        self._requested_at |= {(job.engine_id, job.desired_state): now for job in jobs}
        refused: list[tuple[JobId, FairwayError]] = [
            (job.id, refusals[job.engine_id]) for job in jobs if job.engine_id in refusals
        ]
        if refused:
            async with self._ledger.writing(lease) as tx:
                await tx.dispatch.record_request_refused(refused)

    async def _settle_changes(self, lease: Lease) -> None:
        """Make changes of jobs that were not sent. This loop alone sends them, so none is sent as it was."""
        if not await self._ledger.job_changes.pending(self._cluster, 1):
            return
        async with self._ledger.writing(lease) as tx:
            moved = await tx.job_changes.settle()
        for cluster in moved:
            self._wakeup.notify(cluster)

    async def _change_waiting(self, lease: Lease, fleet: Fleet) -> None:
        """Make requested changes of waiting engine jobs, and record which were made.

        A change that was made and not recorded is made again, which changes nothing.
        """
        pending = await self._ledger.job_changes.pending(self._cluster, _MAX_ACTIONS)
        sent = [(job, job.engine_id) for job in pending if job.engine_id is not None]
        if not sent:
            return
        engine = self._engine.get()
        refusals: dict[EngineId, Refused] = {}
        changes: list[WaitingChange] = []
        for job, engine_id in sent:
            if job.wanted_cluster != job.cluster:
                refusals[engine_id] = other_cluster(job.cluster, job.wanted_cluster)
            elif not isinstance(engine, ChangesWaiting):
                refusals[engine_id] = _cannot_change(self._cluster)
            else:
                changes.append(WaitingChange(engine_id, job.current.order(), job.wanted.order()))
        if changes and isinstance(engine, ChangesWaiting):
            refusals |= await engine.change(changes, fleet)
        async with self._ledger.writing(lease) as tx:
            await tx.job_changes.record(
                [_number(job) for job, engine_id in sent if engine_id not in refusals],
                [
                    (job.current.id, _number(job), refusals[engine_id])
                    for job, engine_id in sent
                    if engine_id in refusals
                ],
            )


@dataclass(frozen=True, slots=True)
class _LedgerTime:
    """The ledger's time, computed from the lease without another query.

    It lags slightly, because the lease was taken slightly earlier: so no wait is cut short.
    """

    token: int
    taken_at: datetime
    since: float
    """By this server's clock."""

    @classmethod
    def of(cls, lease: Lease, clock: float) -> _LedgerTime:
        return cls(lease.token, lease.expires_at - timedelta(seconds=lease.seconds), clock)

    def now(self, clock: float) -> datetime:
        return self.taken_at + timedelta(seconds=clock - self.since)


_NEVER: Final = _LedgerTime(-1, datetime.min.replace(tzinfo=UTC), 0.0)


def _is_open(job: PendingAction) -> bool:
    return job.state in {JobState.WAITING, JobState.HELD, JobState.RUNNING}


def _number(job: ChangeableJob) -> int:
    if job.change is None:
        raise AssertionError(f"job {job.current.id} has no pending change")
    return job.change


def _cannot_change(cluster: ClusterName) -> Refused:
    return Refused("CannotChange", f"cluster {cluster} cannot change jobs that wait", SUBMIT_AGAIN)


def _timed_out(cluster: ClusterName) -> TemporaryError:
    return TemporaryError(
        "SendingTimedOut",
        f"cluster {cluster} did not accept a batch of jobs in time",
        "nothing to do: jobs that arrived are found by name, the others are sent again",
    )


def _no_reason(cluster: ClusterName) -> Refused:
    return Refused("Refused", f"cluster {cluster} refused it without a reason", "check its log")
