"""Plan a cluster and apply the plan: the engine's calls in their order. What is kept of it, `apply` keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from fairway.engines.port import Governs
from fairway.model.errors import FairwayError, PermanentError
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.policy.objects import Change
from fairway.policy.plan import ClusterPlan, Objection, complete, compute_changes, touched_keys

Progress = Callable[[Change], None]
"""Told of each change when it is made."""


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


async def plan_cluster(engine: Governs, fleet: Fleet, cluster: ClusterName) -> ClusterPlan:
    """What `fleet` changes on `cluster` now."""
    found = await engine.find_policy()
    wanted = engine.translate(fleet, found)
    changes = compute_changes(wanted, found)
    touched = touched_keys(changes)
    activity = await engine.activity(touched) if touched else {}
    return complete(cluster, fleet.cluster(cluster).engine, wanted, found, changes, activity)


def standing(plan: ClusterPlan, *, force: bool) -> tuple[Objection, ...]:
    """What keeps the plan from being applied."""
    return tuple(o for o in plan.objections if not (force and o.forceable))


def check_objections(plan: ClusterPlan, *, force: bool) -> None:
    """Raise PlanRefused, with all that stands against it, unless the plan may be applied."""
    against = standing(plan, force=force)
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
    done: list[Change] = []
    made = set()
    refusal: FairwayError | None = None
    for _, stage in groupby(plan.changes, key=lambda c: c.stage):
        try:
            async for change in engine.write(tuple(stage)):
                done.append(change)
                made.add(change.key)
                progress(change)
        except FairwayError as error:
            refusal = error
            break
    left = tuple(c for c in plan.changes if c.key not in made)
    return Applied(tuple(done), left, refusal)
