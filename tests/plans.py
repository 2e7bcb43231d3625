"""Apply a plan in one call, as tests want it; the server does so by its apply loop."""

from __future__ import annotations

from fairway.engines.port import Governs
from fairway.policy.plan import ClusterPlan
from fairway.services.plans import ApplyResult, blocking, raise_if_blocked, write_plan


async def apply_plan(engine: Governs, plan: ClusterPlan, *, force: bool = False) -> ApplyResult:
    """Make the plan's changes stage by stage; stop at the first refusal.

    Raises PlanRefused, before any write, if something blocks the plan.
    """
    raise_if_blocked(blocking(plan, force=force))
    return await write_plan(engine, plan, force=force)
