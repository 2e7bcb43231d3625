"""Plan clusters and write plans to their engines. The apply loop records the outcome in the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Protocol

from fairway.engines.port import Governs, Inspects, Observes, Unreachable, Withdraws
from fairway.model.errors import FairwayError, PermanentError, Refused
from fairway.model.fleet import Cluster, EngineKind, Fleet, Pool
from fairway.model.names import ClusterName
from fairway.policy.guarantees import count_devices, guarantees_to_check, guarantees_too_high
from fairway.policy.objects import Action, Change, FoundPolicy, Notice, ObjectKey, Translation
from fairway.policy.plan import (
    ClusterPlan,
    Objection,
    build_plan,
    compute_adoption,
    compute_changes,
    touched_keys,
)
from fairway.services.engine_cache import time_limit
from fairway.telemetry.inspection import inspect

Progress = Callable[[Change], None]
"""Called with each change when it is made."""

STALL_SECONDS: Final = 120.0
"""Time limit between two changes; an apply as a whole has none."""
MAX_CONCURRENT: Final = 8
"""Clusters that are planned concurrently."""
CLUSTER_SECONDS: Final = 60.0


class BuildGovernor(Protocol):
    """Builds the engine of one cluster; `server` implements it for every kind."""

    def __call__(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Governs: ...


class PlanRefused(PermanentError):
    """A plan has objections that were not overruled. Nothing was written."""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The outcome of writing a plan."""

    done: tuple[Change, ...]
    left: tuple[Change, ...]
    """Changes that were not made; empty if it succeeded."""
    refusal: FairwayError | None = None
    """The error that stopped it."""


@dataclass(frozen=True, slots=True)
class ClusterComparison:
    """The wanted and the found policy of a cluster, and the changes between them."""

    wanted: Translation
    found: FoundPolicy
    changes: tuple[Change, ...]


async def compare_cluster(engine: Governs, fleet: Fleet) -> ClusterComparison:
    """Read the policy of the engine's cluster and compare it with `fleet`."""
    found = await engine.find_policy()

    def compare() -> ClusterComparison:
        wanted = engine.translate(fleet, found)
        return ClusterComparison(wanted, found, compute_changes(wanted, found))

    # In a thread: thousands of teams take a second, and other requests run meanwhile.
    compared = await asyncio.to_thread(compare)
    if not isinstance(engine, Inspects) or not fleet.teams:
        return compared
    files = await engine.inspect(fleet, found)
    return replace(compared, wanted=replace(compared.wanted, advice=(*compared.wanted.advice, *files)))


async def plan_cluster(
    engine: Governs, fleet: Fleet, cluster: ClusterName, source: str = "fleet.yaml"
) -> ClusterPlan:
    """Plan the changes of `fleet`, whose file is called `source`, on `cluster`."""
    compared = await compare_cluster(engine, fleet)
    touched = touched_keys(compared.changes)
    activity = await engine.activity(touched) if touched else {}
    kind = fleet.cluster(cluster).engine
    plan = await asyncio.to_thread(
        build_plan, cluster, kind, compared.wanted, compared.found, compared.changes, activity, source
    )
    if isinstance(engine, Withdraws) and fleet.teams:
        taken = await engine.taken_away(fleet, compared.found, compared.changes)
        plan = replace(plan, taken=taken)
    if not plan.changes:
        return plan
    return replace(plan, objections=(*plan.objections, *await _above_capacity(engine, fleet, cluster)))


async def _above_capacity(engine: Governs, fleet: Fleet, cluster: ClusterName) -> tuple[Objection, ...]:
    """Compare guarantees with the nodes, for pools whose file does not say how many GPUs they have."""
    supplies = guarantees_to_check(fleet, cluster)
    if not supplies or not isinstance(engine, Observes):
        return ()
    try:
        seen = await engine.observe()
    except Refused:  # a partition that is not there yet: the advice names it
        return ()
    return tuple(guarantees_too_high(fleet, supplies, count_devices(seen.nodes)))


async def plan_adoption(
    engine: Governs, cluster: ClusterName, kind: EngineKind, keys: Sequence[ObjectKey]
) -> ClusterPlan:
    """Plan to put Fairway's mark on these objects. Raises PlanRefused if one of them does not exist."""
    found = await engine.find_policy()
    existing = {o.key for o in found.objects}
    missing = [key for key in keys if key not in existing]
    if missing:
        raise PlanRefused(
            "NothingToAdopt",
            f"there is no {' and no '.join(str(key) for key in missing[:5])} on {cluster}",
            "fairway plan  names the objects that are in the way",
        )
    wanted, changes = Translation(()), compute_adoption(found, keys)
    return build_plan(cluster, kind, wanted, found, changes, {})


def blocking(plan: ClusterPlan, *, force: bool) -> tuple[Objection, ...]:
    """List the objections that keep the plan from being applied."""
    return tuple(o for o in plan.objections if not (force and o.forceable))


def raise_if_blocked(objections: Sequence[Objection]) -> None:
    """Raise PlanRefused with all of these objections, if there are any."""
    if objections:
        raise PlanRefused(
            objections[0].code,
            "; ".join(o.message for o in objections),
            "; ".join(o.hint for o in objections),
        )


async def write_plan(
    engine: Governs, plan: ClusterPlan, *, force: bool, progress: Progress = lambda change: None
) -> ApplyResult:
    """Make the changes of a plan that is not blocked, stage by stage, up to the first error."""
    done: list[Change] = []
    refusal: FairwayError | None = None
    for _, stage in groupby(plan.changes, key=lambda c: c.stage):
        changes = tuple(stage)
        try:
            if not force:
                await _check_still_idle(engine, plan, changes)
            await _write_stage(engine, plan.cluster, changes, done, progress)
        except FairwayError as error:
            refusal = error
            break
    made = {c.key for c in done}
    return ApplyResult(tuple(done), tuple(c for c in plan.changes if c.key not in made), refusal)


async def _write_stage(
    engine: Governs, cluster: ClusterName, changes: Sequence[Change], done: list[Change], progress: Progress
) -> None:
    now = asyncio.get_running_loop().time
    timed_out = Unreachable(
        "Unreachable",
        f"cluster {cluster} took no change for {STALL_SECONDS:g} s",
        "check whether its engine is overloaded, then apply again: it goes on where it stopped",
    )
    async with time_limit(STALL_SECONDS, timed_out) as timeout:
        async for change in engine.write(changes):
            done.append(change)
            progress(change)
            timeout.reschedule(now() + STALL_SECONDS)


async def _check_still_idle(engine: Governs, plan: ClusterPlan, changes: Sequence[Change]) -> None:
    """Raise PlanRefused if an object to delete got jobs since the plan was made."""
    deleted = tuple(c.key for c in changes if c.action is Action.DELETE)
    activity = await engine.activity(deleted) if deleted else {}
    busy = sorted(key for key, jobs in activity.items() if jobs.running or jobs.waiting)
    if busy:
        raise PlanRefused(
            "WouldEndJobs",
            f"{busy[0]} was to be removed from {plan.cluster}, and it has new jobs",
            "keep the team with  draining: true  until they have ended, or apply again with --force",
        )


@dataclass(frozen=True, slots=True)
class ClusterFailure:
    """The error that kept a cluster from being planned."""

    cluster: ClusterName
    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The plans of a fleet's clusters, in the order of the file."""

    fleet: str
    clusters: tuple[ClusterPlan, ...]
    failures: tuple[ClusterFailure, ...]


class Planner:
    """Plans fleets on all their clusters. Safe for concurrent use."""

    def __init__(
        self, build: BuildGovernor, *, with_holds: Callable[[Fleet], Awaitable[Fleet]] | None = None
    ) -> None:
        """`with_holds` sets the holds of spent budgets on a fleet, which are part of its plan."""
        self._with_holds = with_holds
        self._build = build
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def plan(
        self, fleet: Fleet, cluster: ClusterName | None = None, source: str = "fleet.yaml"
    ) -> FleetPlan:
        """Plan the changes of `fleet` on all its clusters or on one of them. `source`: its file's name."""
        names = [c.name for c in fleet.clusters if cluster in {None, c.name}]
        if self._with_holds is not None:
            fleet = await self._with_holds(fleet)
        plans = await asyncio.gather(*(self._plan(fleet, name, source) for name in names))
        return FleetPlan(
            fleet=fleet.name,
            clusters=tuple(p for p in plans if isinstance(p, ClusterPlan)),
            failures=tuple(p for p in plans if isinstance(p, ClusterFailure)),
        )

    async def plan_with(
        self, fleet: Fleet, name: ClusterName, plan: Callable[[Governs], Awaitable[ClusterPlan]]
    ) -> FleetPlan:
        """Plan one cluster by `plan` instead of by a fleet file."""
        async with self._slots:
            try:
                return FleetPlan(fleet.name, (await self._with_engine(fleet, name, plan),), ())
            except FairwayError as error:
                failure = ClusterFailure(name, error.code, error.message, error.hint)
                return FleetPlan(fleet.name, (), (failure,))

    async def _plan(self, fleet: Fleet, name: ClusterName, source: str) -> ClusterPlan | ClusterFailure:
        async with self._slots:
            try:
                planned, lacking = await asyncio.gather(
                    self._with_engine(fleet, name, lambda engine: plan_cluster(engine, fleet, name, source)),
                    inspect(fleet.cluster(name)),
                )
                return replace(
                    planned,
                    notices=(*planned.notices, *(Notice(f.code, f.message, f.hint) for f in lacking)),
                )
            except FairwayError as error:
                return ClusterFailure(name, error.code, error.message, error.hint)

    async def _with_engine(
        self, fleet: Fleet, name: ClusterName, plan: Callable[[Governs], Awaitable[ClusterPlan]]
    ) -> ClusterPlan:
        timed_out = Unreachable(
            "Unreachable",
            f"cluster {name} did not return its policy within {CLUSTER_SECONDS:g} s",
            "check whether its engine is overloaded",
        )
        engine = self._build(*fleet.engine_parts(name))
        try:
            async with time_limit(CLUSTER_SECONDS, timed_out):
                return await plan(engine)
        finally:
            await engine.close()
