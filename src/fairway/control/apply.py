"""The apply loop's step: carries out what is queued for a cluster, and can be killed between any two writes.

What was begun is taken up by computing the plan anew: what is made no longer differs. So nothing is done
twice, and nothing is left half.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import structlog

from fairway.control.applied import held_fleet
from fairway.control.applying import (
    PlanRefused,
    plan_adoption,
    plan_cluster,
    refuse,
    standing,
    write_plan,
)
from fairway.control.held import within
from fairway.control.metrics import PolicyMetrics
from fairway.engines.port import Governs
from fairway.ledger import ApplyKind, ApplyState, ApplyWork, KeptChange, Lease, LeaseLost, Ledger, Revision
from fairway.model.errors import FairwayError, PermanentError, TemporaryError
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.policy.objects import Change, ObjectKey
from fairway.policy.plan import ClusterPlan

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

PROGRESS_SECONDS: Final = 0.5
PATIENCE_SECONDS: Final = 120.0
"""How long an engine that does not answer is asked again before an apply fails."""
PLAN_SECONDS: Final = 120.0


class ApplyToCluster:
    """Takes what is queued for one cluster, oldest first, until nothing is."""

    def __init__(
        self,
        cluster: Cluster,
        pools: tuple[Pool, ...],
        build: Callable[[], Governs],
        ledger: Ledger,
        parse: Callable[[Revision], Fleet],
        metrics: PolicyMetrics,
        writing: asyncio.Lock,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`writing` is held by whoever writes policy to the cluster; `now` tells the month of budgets."""
        self._cluster = cluster
        self._pools = pools
        self._build = build
        self._ledger = ledger
        self._parse = parse
        self._metrics = metrics
        self._writing = writing
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._now = now
        self._trouble: tuple[int, float] | None = None
        """Which apply is held up, and since when."""

    async def __call__(self, lease: Lease) -> None:
        """Carry out everything that waits. A temporary fault is noted and raised on, to slow the loop."""
        while (work := await self._ledger.next_apply(self._cluster.name)) is not None:
            apply = _Apply(work, self._ledger, lease, self._metrics)
            try:
                async with self._writing:
                    fleet = None if work.revision is None else self._parse(work.revision)
                    if await self._is_anothers(work, fleet):
                        return
                    await self._carry_out(apply, fleet)
            except LeaseLost:
                raise
            except TemporaryError as error:
                if apply.made_any or self._is_new_trouble(work):
                    self._trouble = (work.apply, self._clock())
                if not self._is_over(work):
                    await apply.hold_up(error)
                    raise
                await apply.end(ApplyState.FAILED, error)
            except PermanentError as error:
                begun = work.state is ApplyState.RUNNING or apply.begun
                refused = isinstance(error, PlanRefused) and not begun
                await apply.end(ApplyState.REFUSED if refused else ApplyState.FAILED, error)
            except Exception as error:
                await apply.end(ApplyState.FAILED, _defect(error))
                raise

    async def _is_anothers(self, work: ApplyWork, fleet: Fleet | None) -> bool:
        """Whether the loops are about to be started anew for the fleet of this apply.

        Its pools are other ones: this loop's engine would look for them where they no longer are.
        """
        if work.revision is None or fleet is None or fleet.pools_of(self._cluster.name) == self._pools:
            return False
        return work.revision.id == await self._ledger.fleet_revision()

    async def _carry_out(self, apply: _Apply, fleet: Fleet | None) -> None:
        late = TemporaryError(
            "PlanTimedOut",
            f"cluster {self._cluster.name} did not show its policy within {PLAN_SECONDS:g} s",
            "look whether the cluster answers slowly:  fairway get clusters",
        )
        engine = self._build()
        try:
            async with within(PLAN_SECONDS, late):
                plan = await self._plan(engine, apply.work, fleet)
            apply.take_up(plan)
            _check(apply.work, plan)
            await apply.begin(plan)
            await apply.write(engine, plan)
        finally:
            await engine.close()

    async def _plan(self, engine: Governs, work: ApplyWork, fleet: Fleet | None) -> ClusterPlan:
        if fleet is None:
            return await plan_adoption(engine, work.cluster, self._cluster.engine, work.objects)
        return await plan_cluster(engine, await held_fleet(fleet, self._ledger, self._now), work.cluster)

    def _is_new_trouble(self, work: ApplyWork) -> bool:
        return self._trouble is None or self._trouble[0] != work.apply

    def _is_over(self, work: ApplyWork) -> bool:
        return (
            self._trouble is not None
            and self._trouble[0] == work.apply
            and self._clock() - self._trouble[1] >= self._patience_seconds
        )


class _Apply:
    """One apply on one cluster, under one lease: what is made, and how the ledger hears of it."""

    def __init__(self, work: ApplyWork, ledger: Ledger, lease: Lease, metrics: PolicyMetrics) -> None:
        self.work = work
        self.begun = False
        self.made_any = False
        self._ledger = ledger
        self._lease = lease
        self._metrics = metrics
        self._changes: dict[ObjectKey, KeptChange] = {c.change.key: c for c in work.changes}
        self._current = ""
        self._log = log.bind(apply=work.apply, cluster=work.cluster)

    def take_up(self, plan: ClusterPlan) -> None:
        """What an earlier life was to do and is not in the plan any more, it did."""
        if self.work.state is ApplyState.RUNNING:
            self._changes = _taken_up(self._changes, plan)

    async def begin(self, plan: ClusterPlan) -> None:
        """Keep what will be done before the first of it is."""
        self._changes = _taken_up(self._changes, plan)
        async with self._ledger.writing(self._lease) as tx:
            await tx.start_apply(self.work.apply, tuple(self._changes.values()))
        self.begun = True
        again = self.work.state is ApplyState.RUNNING
        self._log.info(
            "apply goes on" if again else "apply begins", changes=len(plan.changes), by=self.work.created_by
        )

    async def write(self, engine: Governs, plan: ClusterPlan) -> None:
        """Make the changes, telling the ledger how far it is, and how it ended."""
        keeping = asyncio.create_task(self._keep_progress())
        writing = asyncio.create_task(write_plan(engine, plan, force=self.work.force, progress=self._note))
        try:
            # If the lease is lost the writing must end too: somebody else writes now.
            await asyncio.wait([keeping, writing], return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()
            refusal = (await writing).refusal
        finally:
            for task in (keeping, writing):
                task.cancel()
            for task in (keeping, writing):
                with suppress(asyncio.CancelledError, Exception):
                    await task
        if refusal is not None:
            raise refusal
        await self.end(ApplyState.DONE)

    async def end(self, state: ApplyState, error: FairwayError | None = None) -> None:
        """Keep how it ended, with what was made and what was not."""
        applied = state is ApplyState.DONE and self.work.kind is ApplyKind.APPLY
        async with self._ledger.writing(self._lease) as tx:
            await tx.finish_apply(
                self.work.apply, state, tuple(self._changes.values()), error=error, applied=applied
            )
        self._metrics.ended(self.work.cluster, state.value)
        said = {} if error is None else {"code": error.code, "message": error.message}
        done = sum(c.made for c in self._changes.values())
        self._log.info(f"apply {state.value}", done=done, of=len(self._changes), **said)

    async def hold_up(self, error: TemporaryError) -> None:
        """Keep what it waits for."""
        await self._keep(error)

    def _note(self, change: Change) -> None:
        self.made_any = True
        self._changes[change.key] = KeptChange(self._changes[change.key].change, made=True)
        self._current = str(change.key)

    async def _keep_progress(self) -> None:
        """At most twice a second, however fast the writes are; ends only by LeaseLost."""
        shown = ""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            if self._current == shown:
                continue
            shown = self._current
            try:
                await self._keep()
            except LeaseLost:
                raise
            except TemporaryError as error:  # the ledger may be back for the next; the engine's work goes on
                self._log.warning("progress not kept", code=error.code, message=error.message)

    async def _keep(self, trouble: FairwayError | None = None) -> None:
        done, current = sum(c.made for c in self._changes.values()), self._current
        async with self._ledger.writing(self._lease) as tx:
            await tx.progress_apply(self.work.apply, done, current, trouble)


def _check(work: ApplyWork, plan: ClusterPlan) -> None:
    """Raise PlanRefused if the plan is not the one that was read, or something speaks against it."""
    if work.state is ApplyState.RUNNING:
        # Its own first half moved the cluster on, and how much may change was judged then.
        refuse([o for o in standing(plan, force=work.force) if o.code != "TooManyChanges"])
        return
    if work.fingerprint and work.fingerprint != plan.fingerprint:
        raise PlanRefused(
            "PlanOutdated",
            f"cluster {work.cluster} is no longer as it was when this was planned",
            "plan again, read what changed, and apply that:  fairway plan -f FILE --out PLAN",
        )
    refuse(standing(plan, force=work.force))


def _taken_up(before: Mapping[ObjectKey, KeptChange], plan: ClusterPlan) -> dict[ObjectKey, KeptChange]:
    """What was to be done when it began, made unless the plan has it still; and what came to it since."""
    left = {c.key: KeptChange(c, made=False) for c in plan.changes}
    return {key: left.get(key, KeptChange(c.change, made=True)) for key, c in before.items()} | left


def _defect(error: Exception) -> PermanentError:
    return PermanentError(
        "Unexpected",
        f"a defect of Fairway's stopped it: {type(error).__name__}: {error}",
        "the log of  fairway server  has the traceback; please report it",
    )
