"""Plans a fleet on all its clusters at once. Nothing is written, to engines or ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fairway.control.applying import BuildGovernor, plan_cluster
from fairway.control.held import within
from fairway.engines.port import Unreachable
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.policy.plan import ClusterPlan

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
        held: Callable[[Fleet], Awaitable[Fleet]] | None = None,
        at_once: int = AT_ONCE,
        cluster_seconds: float = CLUSTER_SECONDS,
    ) -> None:
        """`held` gives a fleet the holds of spent budgets, which its clusters shall have too."""
        self._held = held
        self._build = build
        self._turns = asyncio.Semaphore(at_once)
        self._cluster_seconds = cluster_seconds

    async def plan(self, fleet: Fleet, cluster: ClusterName | None = None) -> FleetPlan:
        """What `fleet` changes now, on all its clusters or on one of them."""
        names = [c.name for c in fleet.clusters if cluster in {None, c.name}]
        if self._held is not None:
            fleet = await self._held(fleet)
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
            async with within(self._cluster_seconds, late):
                return await plan_cluster(engine, fleet, name)
        finally:
            await engine.close()
