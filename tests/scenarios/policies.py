"""Plans and applies on one cluster, by the pieces the server uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from fairway.engines.port import Governs
from fairway.model.fleet import Fleet
from fairway.policy.objects import Change, FoundPolicy, Translation
from fairway.policy.plan import ClusterPlan, Objection, complete, compute_changes, touched_keys

Configure = Callable[[Fleet, Translation], Awaitable[None]]


class Objected(Exception):
    """Something speaks against a plan; nothing was written."""

    def __init__(self, plan: ClusterPlan, objections: Sequence[Objection]) -> None:
        super().__init__("; ".join(f"{o.code}: {o.message} (hint: {o.hint})" for o in objections))
        self.plan = plan
        self.objections = tuple(objections)


async def plan_fleet(engine: Governs, fleet: Fleet) -> ClusterPlan:
    """What the fleet would change on its one cluster now."""
    return await _plan(engine, fleet, await engine.find_policy())


async def apply_fleet(engine: Governs, fleet: Fleet, configure: Configure, *, force: bool) -> ClusterPlan:
    """Make it so, stage by stage, then let the administrator do what only they can."""
    found = await engine.find_policy()
    plan = await _plan(engine, fleet, found)
    against = [o for o in plan.objections if not (force and o.forceable)]
    if against:
        raise Objected(plan, against)
    stages: dict[int, list[Change]] = defaultdict(list)
    for change in plan.changes:
        stages[change.stage].append(change)
    for stage in sorted(stages):
        async for _ in engine.write(stages[stage]):
            pass
    await configure(fleet, engine.translate(fleet, found))
    return plan


async def _plan(engine: Governs, fleet: Fleet, found: FoundPolicy) -> ClusterPlan:
    cluster = fleet.clusters[0]
    wanted = engine.translate(fleet, found)
    changes = compute_changes(wanted, found)
    activity = await engine.activity(touched_keys(changes))
    return complete(cluster.name, cluster.engine, wanted, found, changes, activity)
