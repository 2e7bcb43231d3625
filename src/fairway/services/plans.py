"""Plan a cluster and apply the plan: the engine's calls in their order. What is kept of it, `apply` keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

from fairway.engines.port import Governs, Unreachable
from fairway.model.errors import FairwayError, PermanentError
from fairway.model.fleet import Cluster, EngineKind, Fleet, Pool
from fairway.model.names import ClusterName
from fairway.policy.objects import Action, Activity, Change, FoundPolicy, ObjectKey, Translation
from fairway.policy.plan import (
    ClusterPlan,
    Objection,
    complete,
    compute_adoption,
    compute_changes,
    touched_keys,
)
from fairway.services.engine_pool import time_limit

Progress = Callable[[Change], None]
"""Told of each change when it is made."""


STALL_SECONDS: Final = 120.0
"""An apply may take as long as it has to; but not so long between two changes."""


class BuildGovernor(Protocol):
    """Makes the engine of one cluster; `server` knows them all."""

    def __call__(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Governs: ...


class PlanRefused(PermanentError):
    """Something speaks against a plan, and nobody overruled it. Nothing was written."""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What came of applying a plan."""

    done: tuple[Change, ...]
    left: tuple[Change, ...]
    """What was not made; empty when all went well."""
    refusal: FairwayError | None = None
    """Why it stopped."""


@dataclass(frozen=True, slots=True)
class ClusterComparison:
    """A fleet beside what a cluster has."""

    wanted: Translation
    found: FoundPolicy
    changes: tuple[Change, ...]


async def compare_cluster(engine: Governs, fleet: Fleet) -> ClusterComparison:
    """Look at the engine's cluster and say how it differs from `fleet`."""
    found = await engine.find_policy()

    def compare() -> ClusterComparison:
        wanted = engine.translate(fleet, found)
        return ClusterComparison(wanted, found, compute_changes(wanted, found))

    # In a thread: thousands of teams take a second, and the server has others to serve meanwhile.
    return await asyncio.to_thread(compare)


async def plan_cluster(engine: Governs, fleet: Fleet, cluster: ClusterName) -> ClusterPlan:
    """What `fleet` changes on `cluster` now."""
    seen = await compare_cluster(engine, fleet)
    touched = touched_keys(seen.changes)
    activity = await engine.activity(touched) if touched else {}
    kind = fleet.cluster(cluster).engine
    return await asyncio.to_thread(complete, cluster, kind, seen.wanted, seen.found, seen.changes, activity)


async def plan_adoption(
    engine: Governs, cluster: ClusterName, kind: EngineKind, keys: Sequence[ObjectKey]
) -> ClusterPlan:
    """What puts Fairway's mark on these objects; raises PlanRefused if one of them does not exist."""
    found = await engine.find_policy()
    here = {o.key for o in found.objects}
    missing = [key for key in keys if key not in here]
    if missing:
        raise PlanRefused(
            "NothingToAdopt",
            f"there is no {' and no '.join(str(key) for key in missing[:5])} on {cluster}",
            "fairway plan  names the objects that are in the way",
        )
    wanted, changes = Translation(()), compute_adoption(found, keys)
    return complete(cluster, kind, wanted, found, changes, {})


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
    """Make the changes of a plan that is not blocked, stage by stage; stop at the first refusal."""
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
    late = Unreachable(
        "Unreachable",
        f"cluster {cluster} took no change for {STALL_SECONDS:g} s",
        "look whether its engine is overloaded, then apply again: it goes on where it stopped",
    )
    async with time_limit(STALL_SECONDS, late) as clock:
        async for change in engine.write(changes):
            done.append(change)
            progress(change)
            clock.reschedule(now() + STALL_SECONDS)


async def _check_still_idle(engine: Governs, plan: ClusterPlan, changes: Sequence[Change]) -> None:
    """What goes was looked at when the plan was made; a job may have come since."""
    going = tuple(c.key for c in changes if c.action is Action.DELETE)
    busy = _busy(await engine.activity(going)) if going else ()
    if busy:
        raise PlanRefused(
            "WouldEndJobs",
            f"{busy[0]} was to go from {plan.cluster}, and jobs have come to it meanwhile",
            "keep the team with  draining: true  until they have ended, or apply again with --force",
        )


def _busy(activity: Mapping[ObjectKey, Activity]) -> tuple[ObjectKey, ...]:
    return tuple(sorted(key for key, jobs in activity.items() if jobs.running or jobs.waiting))


AT_ONCE: Final = 8
"""Clusters that are looked at side by side."""

CLUSTER_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ClusterFailure:
    """Why a cluster has no plan."""

    cluster: ClusterName
    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What a fleet changes, cluster by cluster, in the order of the file."""

    fleet: str
    clusters: tuple[ClusterPlan, ...]
    failures: tuple[ClusterFailure, ...]


class Planner:
    """Computes plans. Safe to use by many at once."""

    def __init__(
        self,
        build: BuildGovernor,
        *,
        with_holds: Callable[[Fleet], Awaitable[Fleet]] | None = None,
        at_once: int = AT_ONCE,
        cluster_seconds: float = CLUSTER_SECONDS,
    ) -> None:
        """`with_holds` gives a fleet the holds of spent budgets, which its clusters shall have too."""
        self._with_holds = with_holds
        self._build = build
        self._turns = asyncio.Semaphore(at_once)
        self._cluster_seconds = cluster_seconds

    async def plan(self, fleet: Fleet, cluster: ClusterName | None = None) -> FleetPlan:
        """What `fleet` changes now, on all its clusters or on one of them."""
        names = [c.name for c in fleet.clusters if cluster in {None, c.name}]
        if self._with_holds is not None:
            fleet = await self._with_holds(fleet)
        plans = await asyncio.gather(*(self._plan(fleet, name) for name in names))
        return FleetPlan(
            fleet=fleet.name,
            clusters=tuple(p for p in plans if isinstance(p, ClusterPlan)),
            failures=tuple(p for p in plans if isinstance(p, ClusterFailure)),
        )

    async def _plan(self, fleet: Fleet, name: ClusterName) -> ClusterPlan | ClusterFailure:
        async with self._turns:
            try:
                return await self._look(fleet, name)
            except FairwayError as error:
                return ClusterFailure(name, error.code, error.message, error.hint)

    async def _look(self, fleet: Fleet, name: ClusterName) -> ClusterPlan:
        late = Unreachable(
            "Unreachable",
            f"cluster {name} did not show its policy within {self._cluster_seconds:g} s",
            "look whether its engine is overloaded",
        )
        engine = self._build(fleet.cluster(name), fleet.pools_of(name))
        try:
            async with time_limit(self._cluster_seconds, late):
                return await plan_cluster(engine, fleet, name)
        finally:
            await engine.close()
