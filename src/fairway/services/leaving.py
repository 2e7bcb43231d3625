"""Plan and write the return of a cluster to its state before Fairway, and the release of its guards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from fairway.engines.port import Governs, Restores
from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName
from fairway.model.text import first_few
from fairway.policy.leave import Return, compute_return
from fairway.policy.objects import Action, Change, Notice, ObjectKey, SavedObject
from fairway.policy.plan import ClusterPlan, fingerprint
from fairway.services.plans import ApplyResult, PlanRefused, Progress, write_plan

_MAX_LISTED = 5


def restoring(engine: Governs, cluster: ClusterName) -> Restores:
    """Return the engine as one whose cluster can be left. Raises PlanRefused if it cannot."""
    if isinstance(engine, Restores):
        return engine
    raise PlanRefused(
        "CannotLeave",
        f"cluster {cluster} is simulated and has nothing to restore",
        "remove it from the fleet file, then:  fairway apply -f fleet.yaml",
    )


async def saved_state(engine: Governs, cluster: ClusterName, changes: Sequence[Change]) -> list[SavedObject]:
    """Read the objects that these changes adopt, as they are before it."""
    adopted = [c.key for c in changes if c.action is Action.ADOPT]
    if not adopted or not isinstance(engine, Restores):
        return []
    records = await engine.read_records(adopted)
    found = {o.key: o.fields for o in (await engine.find_policy()).objects}
    return [SavedObject(key, found.get(key, {}), record) for key, record in records.items()]


async def plan_leave(
    engine: Governs, cluster: ClusterName, kind: EngineKind, saved: Sequence[SavedObject]
) -> ClusterPlan:
    """Plan to restore what Fairway changed on a cluster, and to delete what it created."""
    restores = restoring(engine, cluster)
    found, now = await asyncio.gather(
        engine.find_policy(), restores.read_records([o.key for o in saved if o.record is not None])
    )
    leaving = restores.leaving(found, saved, now)
    created = [o.key for o in saved if o.record is None]
    activity = await engine.activity(created) if created else {}
    returned = compute_return(found, saved, leaving, activity)
    return ClusterPlan(
        cluster=cluster,
        engine=kind,
        engine_version=found.engine_version,
        fingerprint=fingerprint((), found.objects),
        changes=returned.changes,
        managed=sum(o.ours for o in found.objects),
        touched={},
        notices=(*_staying_notice(cluster, returned), *leaving.notices),
        advice=leaving.advice,
        objections=leaving.objections,
        staying=returned.staying,
    )


async def plan_release(engine: Governs, cluster: ClusterName, kind: EngineKind) -> ClusterPlan:
    """Plan to lift every guard of a cluster."""
    restores = restoring(engine, cluster)
    found = await engine.find_policy()
    return ClusterPlan(
        cluster=cluster,
        engine=kind,
        engine_version=found.engine_version,
        fingerprint=fingerprint((), found.objects),
        changes=restores.guards(found),
        managed=sum(o.ours for o in found.objects),
        touched={},
    )


async def write_return(engine: Governs, plan: ClusterPlan, *, progress: Progress) -> ApplyResult:
    """Make the changes of a return, stage by stage; waiting jobs are moved off what is deleted."""
    restores = restoring(engine, plan.cluster)
    done: list[Change] = []
    last_restored = max((c.stage for c in plan.changes if c.action is Action.RESTORE), default=0)
    # Also off objects that stay for running jobs: accounts that are restored no longer allow their use.
    ours = [*(plan.staying or ()), *(c.key for c in plan.changes if c.action is Action.DELETE)]
    moved = False
    for number, stage in groupby(plan.changes, key=lambda c: c.stage):
        changes = tuple(stage)
        if not moved and number > last_restored:
            await restores.requeue_waiting(ours)
            moved = True
        # Jobs that came since the plan are no reason to stop halfway: `force` skips that check.
        result = await write_plan(engine, replace(plan, changes=changes), force=True, progress=progress)
        done += result.done
        if result.refusal is not None:
            break
    else:
        if not moved:
            await restores.requeue_waiting(ours)
        return ApplyResult(tuple(done), ())
    made: set[ObjectKey] = {c.key for c in done}
    left = tuple(c for c in plan.changes if c.key not in made)
    return ApplyResult(tuple(done), left, result.refusal)


def _staying_notice(cluster: ClusterName, returned: Return) -> list[Notice]:
    if not returned.staying:
        return []
    named = first_few([f"{key} ({why})" for key, why in returned.staying.items()], _MAX_LISTED)
    return [
        Notice(
            "StaysForNow",
            f"{named} of Fairway's stay for now, so that no job ends or loses its place in the queue",
            f"when they are no longer needed, repeat:  fairway leave {cluster}",
        )
    ]
