"""The dispatch loop's step: makes the engine jobs that are due, each exactly once, and does what people ask.

An order's name is its own, so what became of it can always be found out. Where an engine would make a second
job of the same name, `begin_sending` is written first: whoever finds such a mark and does not know what
came of it waits until nothing sent under it can arrive any more, looks, and only then sends again. So
sending stops well before that moment: what is under way must still have time to arrive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import structlog

from fairway.control.applied import LastApplied
from fairway.control.held import HeldEngine
from fairway.control.metrics import JobMetrics
from fairway.engines.port import Refused, Runs, Sent
from fairway.ledger import Lease, LeaseLost, Ledger
from fairway.ledger.job_records import ToDo, ToSend, Wish
from fairway.model.errors import FairwayError, TemporaryError
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId, EngineName, JobId, JobState
from fairway.model.names import ClusterName

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")


@dataclass(frozen=True, slots=True)
class Patience:
    """How much at once, and how long. Tests have less of it."""

    batch: int = 400
    """Orders that are sent under one mark: few enough to be through long before it ends."""
    window: int = 800
    """Jobs that are looked at for a batch: those whose fate is open must not hold up the rest."""
    sending_seconds: float = 30.0
    """How long after `begin_sending` an order may still arrive."""
    stop_seconds: float = 15.0
    """When sending stops: what is under way then has as long again to arrive."""
    keep_seconds: float = 0.5
    """How often what was sent is kept while more is being sent."""
    step_seconds: float = 20.0
    """How long a step goes on while there is more to send."""
    ask_again_seconds: float = 5.0
    """How soon an engine is told again what it did not do yet."""
    settle_seconds: float = 2.0


PATIENCE: Final = Patience()
_DO_AT_ONCE: Final = 1000
_FEWEST: Final = 5


class DispatchJobs:
    """Sends the jobs of one cluster while the lease is held; its engine is built when the first is due."""

    def __init__(
        self,
        cluster: ClusterName,
        build: Callable[[], Runs],
        ledger: Ledger,
        applied: LastApplied,
        metrics: JobMetrics,
        *,
        patience: Patience = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._engine = HeldEngine(build)
        self._ledger = ledger
        self._applied = applied
        self._metrics = metrics
        self._patience = patience
        self._clock = clock
        self._times = _NEVER
        self._batch = patience.batch
        self._unkept: list[Sent] = []
        """Sent or refused, and the ledger did not hear of it yet."""
        self._asked: dict[tuple[EngineId, Wish], float] = {}
        self._settled = float("-inf")

    async def __call__(self, lease: Lease) -> None:
        """Send what is due, until nothing is or it took long enough; then cancel, hold and release."""
        if self._times.token != lease.token:
            self._times = _LedgerTime.of(lease, self._clock())
        await self._keep(lease)
        fleet = await self._applied.fleet()
        if fleet is None:
            return
        until = self._clock() + self._patience.step_seconds
        try:
            while await self._send(lease, fleet) and self._clock() < until:
                await self._do(lease)  # who wants to stop a job need not wait for all others to be sent
        except LeaseLost:
            raise
        except FairwayError:
            await self._do(lease)  # an engine that takes no orders may still end jobs
            raise
        await self._do(lease)
        if self._clock() >= self._settled + self._patience.settle_seconds:
            async with self._ledger.writing(lease) as tx:
                await tx.settle_after()
            self._settled = self._clock()

    async def close(self) -> None:
        """Let the engine go; the next step builds a new one."""
        self._unkept.clear()  # whoever comes next finds them by their names
        self._asked.clear()
        await self._engine.close()

    # sending

    async def _send(self, lease: Lease, fleet: Fleet) -> bool:
        """Send one batch; whether more may be due."""
        due = await self._ledger.to_send(self._cluster, self._patience.window)
        if not due:
            return False
        fresh = [job for job in due if job.sending_until is None]
        again = await self._not_there(lease, [job for job in due if job.sending_until is not None])
        # One order that an engine chokes on must not hold up the rest: after a failure those go first that
        # had no part in it, and few at a time, for all of a batch that fails are in doubt.
        first, second = (fresh, again) if self._batch < self._patience.batch else (again, fresh)
        batch = (first or second)[: self._batch]
        if not batch:
            return False
        self._batch, whole = max(_FEWEST, self._batch // 4), self._batch
        await self._send_batch(lease, fleet, batch)
        self._batch = min(self._patience.batch, 2 * whole)
        return len(fresh) + len(again) > len(batch) or len(due) >= self._patience.window

    async def _not_there(self, lease: Lease, doubtful: Sequence[ToSend]) -> list[ToSend]:
        """Those that somebody began to send and that certainly never arrived; what did is kept."""
        engine = self._engine.get()
        if engine.unique_names or not doubtful:
            return list(doubtful)
        now = self._times.now(self._clock())
        over = [job for job in doubtful if job.sending_until is not None and job.sending_until < now]
        if not over:
            return []
        there: Mapping[EngineName, EngineId] = await engine.find([job.engine_name for job in over])
        found = [(j.id, j.submission, there[j.engine_name]) for j in over if j.engine_name in there]
        if found:
            log.info("found again", cluster=self._cluster, jobs=len(found), sent_again=len(over) - len(found))
            async with self._ledger.writing(lease) as tx:
                await tx.keep_sent(found)
        return [job for job in over if job.engine_name not in there]

    async def _send_batch(self, lease: Lease, fleet: Fleet, batch: Sequence[ToSend]) -> None:
        """Send it, keeping what is known at least every half a second."""
        # The clock starts before the mark is written: by the ledger's clock there is even more time.
        stop_at = self._clock() + self._patience.stop_seconds
        async with self._ledger.writing(lease) as tx:
            begun = await tx.begin_sending([job.id for job in batch], self._patience.sending_seconds)
        # Without those that somebody cancelled, or the mirror found, since they were read.
        sending = asyncio.create_task(self._collect([j for j in batch if j.id in begun], fleet, stop_at))
        try:
            while not sending.done():
                await asyncio.wait([sending], timeout=self._patience.keep_seconds)
                await self._keep_meanwhile(lease)
            await self._keep(lease)
            sending.result()
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await sending

    async def _collect(self, batch: Sequence[ToSend], fleet: Fleet, stop_at: float) -> None:
        stream = self._engine.get().submit([job.order() for job in batch], fleet)
        left = stop_at - self._clock()
        if left <= 0:
            raise _too_slow(self._cluster)
        try:
            async with asyncio.timeout(left):
                async for sent in stream:
                    self._unkept.append(sent)
        except TimeoutError as error:
            raise _too_slow(self._cluster) from error

    async def _keep_meanwhile(self, lease: Lease) -> None:
        """The ledger may be back in a moment; to stop sending would leave more orders in doubt."""
        try:
            await self._keep(lease)
        except LeaseLost:
            raise
        except TemporaryError as error:
            log.warning("not kept yet", cluster=self._cluster, code=error.code, message=error.message)

    async def _keep(self, lease: Lease) -> None:
        known = self._unkept[:]
        if not known:
            return
        made = [(s.order.job, s.order.submission, s.engine_id) for s in known if s.engine_id is not None]
        refused = [
            (s.order.job, s.order.submission, s.refusal or _no_reason(self._cluster))
            for s in known
            if s.engine_id is None
        ]
        async with self._ledger.writing(lease) as tx:
            if made:
                await tx.keep_sent(made)
            if refused:
                await tx.keep_refused(refused)
        del self._unkept[: len(known)]
        self._metrics.sent(self._cluster, len(made))
        self._metrics.refused(self._cluster, len(refused))

    # what people ask

    async def _do(self, lease: Lease) -> None:
        """Tell the engine what people want of their jobs, and not again before it had time to do it."""
        wanted = await self._ledger.to_do(self._cluster, _DO_AT_ONCE)
        now = self._clock()
        open_ = {(job.engine_id, job.wish) for job in wanted}
        self._asked = {
            key: at
            for key, at in self._asked.items()
            if key in open_ and now < at + self._patience.ask_again_seconds
        }
        todo = [job for job in wanted if (job.engine_id, job.wish) not in self._asked]
        if not todo:
            return
        engine = self._engine.get()
        verbs: tuple[tuple[Wish, _Verb], ...] = (
            (Wish.CANCEL, engine.cancel),
            (Wish.HOLD, engine.hold),
            (Wish.RUN, engine.release),
        )
        for wish, verb in verbs:
            jobs = [job for job in todo if job.wish is wish and _is_open(job)]
            if jobs:
                await self._ask(lease, verb, jobs)

    async def _ask(self, lease: Lease, verb: _Verb, jobs: Sequence[ToDo]) -> None:
        refusals = await verb([job.engine_id for job in jobs])
        now = self._clock()
        self._asked |= {(job.engine_id, job.wish): now for job in jobs}
        refused: list[tuple[JobId, FairwayError]] = [
            (job.id, refusals[job.engine_id]) for job in jobs if job.engine_id in refusals
        ]
        if refused:
            async with self._ledger.writing(lease) as tx:
                await tx.keep_wish_refused(refused)


class _Verb(Protocol):
    """Something an engine can be told to do with its jobs."""

    def __call__(self, ids: Sequence[EngineId], /) -> Awaitable[Mapping[EngineId, Refused]]: ...


@dataclass(frozen=True, slots=True)
class _LedgerTime:
    """The ledger's clock without asking it again: what it showed when the lease was taken, and since.

    A little behind, for the lease was taken a little before: so waiting is never cut short.
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


def _is_open(job: ToDo) -> bool:
    return job.state in {JobState.WAITING, JobState.HELD, JobState.RUNNING}


def _too_slow(cluster: ClusterName) -> TemporaryError:
    return TemporaryError(
        "SendingTimedOut",
        f"cluster {cluster} did not take a batch of jobs in time",
        "nothing to do: what arrived is found by its name, the rest is sent again",
    )


def _no_reason(cluster: ClusterName) -> Refused:
    return Refused("Refused", f"cluster {cluster} would not take it and gave no reason", "look at its log")
