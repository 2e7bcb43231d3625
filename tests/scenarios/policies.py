"""Plans and applies on a scenario's one cluster, by the very pieces the server uses."""

from __future__ import annotations

from fairway.engines.port import Governs
from fairway.model.fleet import Fleet
from fairway.policy.plan import ClusterPlan
from fairway.services.plans import plan_cluster
from tests.plans import apply_plan
from tests.scenarios.hand import Hand


async def plan_fleet(engine: Governs, fleet: Fleet) -> ClusterPlan:
    """What the fleet would change on its cluster now."""
    return await plan_cluster(engine, fleet, fleet.clusters[0].name)


async def apply_fleet(hand: Hand, engine: Governs, fleet: Fleet, *, force: bool) -> ClusterPlan:
    """Make it so, then let the administrator do what only they can. Raises PlanRefused before any write."""
    plan = await plan_fleet(engine, fleet)
    applied = await apply_plan(engine, plan, force=force)
    if applied.refusal is not None:
        raise applied.refusal
    await hand.configure(fleet, engine.translate(fleet, await engine.find_policy()))
    return plan
