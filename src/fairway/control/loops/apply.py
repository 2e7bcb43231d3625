"""The step of the apply loop: carry out the applies queued for a cluster, crash-safe between any two writes.

An interrupted apply is resumed by computing the plan again: changes that were made no longer differ. So
nothing is written twice, and nothing is left incomplete.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import structlog

from fairway.control.metrics import PolicyMetrics
from fairway.engines.port import Confirms, Governs
from fairway.ledger import ApplyKind, ApplyState, ApplyWork, Lease, LeaseLost, Ledger, StoredChange
from fairway.model.apply import Lifted
from fairway.model.condition import ConditionType
from fairway.model.errors import FairwayError, PermanentError, TemporaryError
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.policy.objects import Change, ObjectKey, SavedObject
from fairway.policy.pending import pending_condition
from fairway.policy.plan import ClusterPlan
from fairway.services.engine_cache import time_limit
from fairway.services.fleets import Fleets, with_budget_holds
from fairway.services.leaving import plan_leave, plan_release, saved_state, write_return
from fairway.services.plans import (
    PlanRefused,
    blocking,
    plan_adoption,
    plan_cluster,
    raise_if_blocked,
    write_plan,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

PROGRESS_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 120.0
"""How long an unreachable engine is retried before an apply fails."""
PLAN_SECONDS: Final = 120.0
_LIFTS: Final = {ApplyKind.LEAVE: Lifted.LEFT, ApplyKind.RELEASE: Lifted.RELEASED}
"""Kinds after which the cluster's policy is no longer enforced."""


class ApplyToCluster:
    """Executes the applies queued for one cluster, oldest first, until none is left."""

    def __init__(
        self,
        cluster: Cluster,
        pools: tuple[Pool, ...],
        build: Callable[[], Governs],
        ledger: Ledger,
        fleets: Fleets,
        metrics: PolicyMetrics,
        writing: asyncio.Lock,
        *,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`writing` is the lock for writing policy to the cluster; `now` determines the budgets' month."""
        self._cluster = cluster
        self._pools = pools
        self._build = build
        self._ledger = ledger
        self._fleets = fleets
        self._metrics = metrics
        self._writing = writing
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._now = now
        self._delayed: tuple[int, float] | None = None
        """The apply that is delayed by a temporary error, and since when."""

    async def __call__(self, lease: Lease) -> None:
        """Execute all queued applies. A temporary error is recorded and raised: the loop backs off."""
        while (work := await self._ledger.applies.next_work(self._cluster.name)) is not None:
            apply = _Apply(work, self._ledger, lease, self._metrics)
            try:
                async with self._writing:
                    fleet = None if work.revision is None else await self._fleets.parsed(work.revision)
                    if await self._restart_pending(work, fleet):
                        return
                    await self._execute(apply, fleet)
            except LeaseLost:
                raise
            except TemporaryError as error:
                if apply.made_any or self._delayed is None or self._delayed[0] != work.apply:
                    self._delayed = (work.apply, self._clock())
                if self._clock() - self._delayed[1] < self._retry_seconds:
                    await apply.record(error)
                    raise
                await apply.end(ApplyState.FAILED, error)
            except PermanentError as error:
                begun = work.state is ApplyState.RUNNING or apply.begun
                refused = isinstance(error, PlanRefused) and not begun
                await apply.end(ApplyState.REFUSED if refused else ApplyState.FAILED, error)
            except Exception as error:
                await apply.end(ApplyState.FAILED, _internal_error(error))
                raise

    async def _restart_pending(self, work: ApplyWork, fleet: Fleet | None) -> bool:
        """Return whether the loops are about to restart with the fleet of this apply.

        Its pools differ: this loop's engine would look for them in the wrong place.
        """
        if work.revision is None or fleet is None or fleet.engine_parts(self._cluster.name)[1] == self._pools:
            return False
        return work.revision.id == await self._ledger.revisions.newest_id()

    async def _execute(self, apply: _Apply, fleet: Fleet | None) -> None:
        timed_out = TemporaryError(
            "PlanTimedOut",
            f"cluster {self._cluster.name} did not return its policy within {PLAN_SECONDS:g} s",
            "check whether the cluster responds slowly:  fairway get clusters",
        )
        engine = self._build()
        try:
            async with time_limit(PLAN_SECONDS, timed_out):
                plan = await self._plan(engine, apply.work, fleet)
            apply.resume(plan)
            _check_plan(apply.work, plan)
            if isinstance(engine, Confirms) and apply.work.kind is ApplyKind.APPLY:
                await engine.confirm(())  # what nobody would get is not written
            saved = await saved_state(engine, self._cluster.name, plan.changes)
            await apply.begin(plan, saved)
            await apply.write(engine, plan)
        finally:
            await engine.close()

    async def _plan(self, engine: Governs, work: ApplyWork, fleet: Fleet | None) -> ClusterPlan:
        if work.kind is ApplyKind.LEAVE:
            saved = await self._ledger.applies.saved(work.cluster)
            return await plan_leave(engine, work.cluster, self._cluster.engine, saved)
        if work.kind is ApplyKind.RELEASE:
            return await plan_release(engine, work.cluster, self._cluster.engine)
        if fleet is None:
            return await plan_adoption(engine, work.cluster, self._cluster.engine, work.objects)
        with_holds = await with_budget_holds(fleet, self._ledger, self._now)
        return await plan_cluster(engine, with_holds, work.cluster)


class _Apply:
    """One apply on one cluster under one lease: the changes made so far, and their record in the ledger."""

    def __init__(self, work: ApplyWork, ledger: Ledger, lease: Lease, metrics: PolicyMetrics) -> None:
        self.work = work
        self.begun = False
        self.made_any = False
        self._ledger = ledger
        self._lease = lease
        self._metrics = metrics
        self._changes: dict[ObjectKey, StoredChange] = {c.change.key: c for c in work.changes}
        self._current = ""
        self._staying: tuple[ObjectKey, ...] = ()
        self._log = log.bind(apply=work.apply, cluster=work.cluster)

    def resume(self, plan: ClusterPlan) -> None:
        """Mark changes of an interrupted run as made if the new plan no longer has them."""
        if self.work.state is ApplyState.RUNNING:
            self._changes = _merged_changes(self._changes, plan)

    async def begin(self, plan: ClusterPlan, saved: Sequence[SavedObject]) -> None:
        """Record the changes to make, and what they change, before making the first one."""
        self._changes = _merged_changes(self._changes, plan)
        self._staying = tuple(plan.staying or ())
        async with self._ledger.writing(self._lease) as tx:
            await tx.applies.save(saved)
            await tx.applies.start(self.work.apply, tuple(self._changes.values()))
        self.begun = True
        resumed = self.work.state is ApplyState.RUNNING
        self._log.info(
            "apply goes on" if resumed else "apply begins", changes=len(plan.changes), by=self.work.created_by
        )

    async def write(self, engine: Governs, plan: ClusterPlan) -> None:
        """Make the changes, recording the progress and the outcome in the ledger."""
        recording = asyncio.create_task(self._record_progress())
        write = (
            write_return(engine, plan, progress=self._on_change)
            if self.work.kind in _LIFTS
            else write_plan(engine, plan, force=self.work.force, progress=self._on_change)
        )
        writing = asyncio.create_task(write)
        try:
            # If the lease is lost, writing must stop too: another server writes now.
            await asyncio.wait([recording, writing], return_when=asyncio.FIRST_COMPLETED)
            if recording.done():
                recording.result()
            refusal = (await writing).refusal
        finally:
            for task in (recording, writing):
                task.cancel()
            for task in (recording, writing):
                with suppress(asyncio.CancelledError, Exception):
                    await task
        if refusal is not None:
            raise refusal
        if isinstance(engine, Confirms) and self.work.kind is ApplyKind.APPLY:
            await engine.confirm([c.change for c in self._changes.values()])
        await self._record_pending(plan)
        await self.end(ApplyState.DONE)

    async def _record_pending(self, plan: ClusterPlan) -> None:
        """Record at once what an administrator has yet to install: without it the policy is not in force."""
        if self.work.kind not in (ApplyKind.APPLY, ApplyKind.LEAVE):
            return
        advice = plan.advice if self.work.kind is ApplyKind.APPLY else ()  # who left needs nothing more
        async with self._ledger.writing(self._lease) as tx:
            await tx.conditions.write((ConditionType.INSTALL_PENDING,), pending_condition(advice))

    async def end(self, state: ApplyState, error: FairwayError | None = None) -> None:
        """Record the outcome, with the changes that were made and those that were not."""
        applied = state is ApplyState.DONE and self.work.kind is ApplyKind.APPLY
        async with self._ledger.writing(self._lease) as tx:
            await tx.applies.finish(
                self.work.apply, state, tuple(self._changes.values()), error=error, applied=applied
            )
            if state is ApplyState.DONE and self.work.kind in _LIFTS:
                await tx.applies.lift(_LIFTS[self.work.kind], self.work.created_by, self._staying)
                types = (ConditionType.INSTALL_PENDING, ConditionType.DRIFT_NOT_CHECKED)
                await tx.conditions.write(types, ())
        self._metrics.ended(self.work.cluster, state.value)
        fields = {} if error is None else {"code": error.code, "message": error.message}
        done = sum(c.made for c in self._changes.values())
        self._log.info(f"apply {state.value}", done=done, of=len(self._changes), **fields)

    def _on_change(self, change: Change) -> None:
        self.made_any = True
        self._changes[change.key] = StoredChange(self._changes[change.key].change, made=True)
        self._current = str(change.key)

    async def _record_progress(self) -> None:
        """Record the progress at most twice a second, however fast the writes are; ends only by LeaseLost."""
        recorded = ""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            if self._current == recorded:
                continue
            recorded = self._current
            try:
                await self.record()
            except LeaseLost:
                raise
            except TemporaryError as error:  # the next record may succeed; the engine continues
                self._log.warning("progress not kept", code=error.code, message=error.message)

    async def record(self, delay: TemporaryError | None = None) -> None:
        """Record the progress, and the temporary error that delays the apply, if any."""
        done, current = sum(c.made for c in self._changes.values()), self._current
        async with self._ledger.writing(self._lease) as tx:
            await tx.applies.progress(self.work.apply, done, current, delay)


def _check_plan(work: ApplyWork, plan: ClusterPlan) -> None:
    """Raise PlanRefused if the plan is not the one that was reviewed, or if it has objections."""
    if work.state is ApplyState.RUNNING:
        # The first part of this apply changed the cluster, and the number of changes was checked then.
        raise_if_blocked([o for o in blocking(plan, force=work.force) if o.code != "TooManyChanges"])
        return
    if work.fingerprint and work.fingerprint != plan.fingerprint:
        raise PlanRefused(
            "PlanOutdated",
            f"cluster {work.cluster} has changed since the plan was made",
            "plan again, review it and apply the new plan:  fairway plan -f FILE --out PLAN",
        )
    raise_if_blocked(blocking(plan, force=work.force))


def _merged_changes(
    before: Mapping[ObjectKey, StoredChange], plan: ClusterPlan
) -> dict[ObjectKey, StoredChange]:
    """Merge recorded and planned changes: recorded ones are made unless the plan still has them."""
    left = {c.key: StoredChange(c, made=False) for c in plan.changes}
    return {key: left.get(key, StoredChange(c.change, made=True)) for key, c in before.items()} | left


def _internal_error(error: Exception) -> PermanentError:
    return PermanentError(
        "Unexpected",
        f"internal error: {type(error).__name__}: {error}",
        "the log of  fairway server  has the traceback: please report this bug",
    )
