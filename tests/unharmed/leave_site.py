"""Govern a site as the server does, and leave it again, without a ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairway.engines.port import Governs
from fairway.model.fleet import Fleet
from fairway.policy.objects import Action, ObjectKey, SavedObject
from fairway.policy.plan import ClusterPlan
from fairway.services.leaving import plan_leave, saved_state, write_return
from fairway.services.plans import plan_adoption, plan_cluster, write_plan
from tests.unharmed.imported import SITE, engine_of, imported_fleet

if TYPE_CHECKING:
    from lab.instance import Instance


@dataclass
class GovernedSite:
    """One cluster with what was saved of it, as the ledger has it."""

    engine: Governs
    fleet: Fleet
    saved: dict[ObjectKey, SavedObject] = field(default_factory=dict)

    async def govern(self, fleet: Fleet | None = None) -> ClusterPlan:
        """Adopt all that is in the way of a fleet, then apply it."""
        self.fleet = fleet or self.fleet
        plan = await plan_cluster(self.engine, self.fleet, SITE)
        if plan.in_the_way:
            kind = self.fleet.cluster(SITE).engine
            keys = [o.key for o in plan.in_the_way]
            await self._write(await plan_adoption(self.engine, SITE, kind, keys))
            plan = await plan_cluster(self.engine, self.fleet, SITE)
        await self._write(plan)
        return plan

    async def plan_leave(self) -> ClusterPlan:
        """Plan the return to the state before."""
        kind = self.fleet.cluster(SITE).engine
        return await plan_leave(self.engine, SITE, kind, tuple(self.saved.values()))

    async def leave(self) -> ClusterPlan:
        """Return to the state before; what stays for now keeps what was saved of it."""
        plan = await self.plan_leave()
        assert plan.objections == ()
        result = await write_return(self.engine, plan, progress=lambda change: None)
        assert result.refusal is None, result.refusal
        self.saved = {key: saved for key, saved in self.saved.items() if key in (plan.staying or ())}
        return plan

    async def _write(self, plan: ClusterPlan) -> None:
        for saved in await saved_state(self.engine, SITE, plan.changes):
            self.saved.setdefault(saved.key, saved)
        result = await write_plan(self.engine, plan, force=True)
        for change in result.done:
            if change.action is Action.CREATE:
                self.saved.setdefault(change.key, SavedObject(change.key, {}, None))
            elif change.action is Action.DELETE:
                known = self.saved.get(change.key)
                if known is not None and known.record is None:
                    del self.saved[change.key]
        assert result.refusal is None, result.refusal


@asynccontextmanager
async def imported_site(instance: Instance) -> AsyncIterator[GovernedSite]:
    """A site with the fleet that import makes of it; nothing is written yet."""
    fleet = await imported_fleet(instance)
    async with engine_of(fleet) as engine:
        yield GovernedSite(engine, fleet)
