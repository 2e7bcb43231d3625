"""Plan a cluster and apply the plan: the engine's calls in their order. What is kept of it, `apply` keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

from fairway.control.held import within
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

Progress = Callable[[Change], None]
"""Told of each change when it is made."""

STALL_SECONDS: Final = 120.0
"""An apply may take as long as it has to; but not so long between two changes."""


class BuildGovernor(Protocol):
    """Makes the engine of one cluster; `wiring` knows them all."""

    def __call__(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Governs: ...


class PlanRefused(PermanentError):
    """Something speaks against a plan, and nobody overruled it. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of applying a plan."""

    done: tuple[Change, ...]
    left: tuple[Change, ...]
    """What was not made; empty when all went well."""
    refusal: FairwayError | None = None
    """Why it stopped."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A fleet beside what a cluster has."""

    wanted: Translation
    found: FoundPolicy
    changes: tuple[Change, ...]


async def compare_cluster(engine: Governs, fleet: Fleet) -> Comparison:
    """Look at the engine's cluster and say how it differs from `fleet`."""
    found = await engine.find_policy()

    def compare() -> Comparison:
        wanted = engine.translate(fleet, found)
        return Comparison(wanted, found, compute_changes(wanted, found))

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


def standing(plan: ClusterPlan, *, force: bool) -> tuple[Objection, ...]:
    """What keeps the plan from being applied."""
    return tuple(o for o in plan.objections if not (force and o.forceable))


def check_objections(plan: ClusterPlan, *, force: bool) -> None:
    """Raise PlanRefused, with all that stands against it, unless the plan may be applied."""
    refuse(standing(plan, force=force))


def refuse(against: Sequence[Objection]) -> None:
    """Raise PlanRefused if there is anything."""
    if against:
        raise PlanRefused(
            against[0].code, "; ".join(o.message for o in against), "; ".join(o.hint for o in against)
        )


async def apply_plan(
    engine: Governs, plan: ClusterPlan, *, force: bool = False, progress: Progress = lambda change: None
) -> Applied:
    """Make the plan's changes stage by stage; stop at the first refusal.

    Raises PlanRefused, before any write, if something speaks against the plan.
    """
    check_objections(plan, force=force)
    return await write_plan(engine, plan, force=force, progress=progress)


async def write_plan(engine: Governs, plan: ClusterPlan, *, force: bool, progress: Progress) -> Applied:
    """Make the changes of a plan that was found good."""
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
    return Applied(tuple(done), tuple(c for c in plan.changes if c.key not in made), refusal)


async def _write_stage(
    engine: Governs, cluster: ClusterName, changes: Sequence[Change], done: list[Change], progress: Progress
) -> None:
    now = asyncio.get_running_loop().time
    late = Unreachable(
        "Unreachable",
        f"cluster {cluster} took no change for {STALL_SECONDS:g} s",
        "look whether its engine is overloaded, then apply again: it goes on where it stopped",
    )
    async with within(STALL_SECONDS, late) as clock:
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
