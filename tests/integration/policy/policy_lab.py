"""Any fleet on a real cluster of the lab: its connection becomes the lab's, its pools get places there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from fairway.model.fleet import (
    Capacity,
    Cluster,
    Connection,
    EngineKind,
    Fleet,
    KubernetesConnection,
    KubernetesPlace,
    Place,
    Pool,
    SlurmConnection,
    SlurmPlace,
)
from fairway.model.names import ClusterName
from fairway.server import build_engine
from fairway.services.plans import plan_cluster
from lab import Instance, find
from lab.kubernetes.api import Api, ApiError
from lab.kubernetes.cluster import Cluster as LabKubernetes
from lab.slurm import configure as configure_slurm
from tests.contract.driver import absent
from tests.plans import apply_plan
from tests.scenarios.conftest import instance_of
from tests.waiting import until

if TYPE_CHECKING:
    from fairway.engines.port import Governs
    from fairway.policy.plan import ClusterPlan

KINDS: Mapping[str, EngineKind] = {
    "slurm-24": EngineKind.SLURM,
    "slurm-26": EngineKind.SLURM,
    "kubernetes": EngineKind.KUBERNETES,
}
SPOT_TAINT = "fairway/spot"


@dataclass(frozen=True, slots=True)
class Governed:
    """One real cluster under whatever fleet comes."""

    instance: Instance
    kind: EngineKind

    def home(self, fleet: Fleet, cluster: ClusterName, *, own_places: bool = True) -> Fleet:
        """The fleet with that cluster only, which is this one; with places of ours unless theirs will do."""
        pools = tuple(
            replace(pool, place=self._place(pool)) if own_places else pool for pool in fleet.pools_of(cluster)
        )
        here = {pool.name for pool in pools}
        teams = tuple(
            replace(team, grants=tuple(g for g in team.grants if g.supply.pool in here))
            for team in fleet.teams
        )
        return replace(fleet, clusters=(Cluster(cluster, self.connection),), pools=pools, teams=teams)

    @property
    def connection(self) -> Connection:
        facts = self.instance.facts()
        if self.kind is EngineKind.SLURM:
            return SlurmConnection(facts["url"], user=facts["user"], jwt_key_file=facts["jwt_key_file"])
        return KubernetesConnection(facts["fairway_kubeconfig"])

    def _place(self, pool: Pool) -> Place:
        if self.kind is EngineKind.SLURM:
            return SlurmPlace("mig" if pool.slices else "gpu", None if pool.slices else "a100")
        taints = (SPOT_TAINT,) if pool.capacity is Capacity.SPOT else ()
        return KubernetesPlace({"fairway.test/pool": pool.name}, taints)

    async def plan(self, fleet: Fleet) -> ClusterPlan:
        """What the fleet, which is at home here, would change now."""
        async with self._engine(fleet) as engine:
            return await plan_cluster(engine, fleet, fleet.clusters[0].name)

    async def apply(self, fleet: Fleet) -> ClusterPlan:
        """Make it so, whatever speaks against it that can be overruled; gives the plan that was applied."""
        async with self._engine(fleet) as engine:
            plan = await plan_cluster(engine, fleet, fleet.clusters[0].name)
            applied = await apply_plan(engine, plan, force=True)
        if applied.refusal is not None:
            raise applied.refusal
        assert not applied.left
        return plan

    async def settle(self, fleet: Fleet) -> ClusterPlan:
        """Apply it, and see that the next plan is empty; gives the plan that was applied."""
        plan = await self.apply(fleet)
        again = await self.plan(fleet)
        assert not again.changes, [(c.action, str(c.key), c.fields) for c in again.changes]
        return plan

    async def count_devices(self, fleet: Fleet) -> None:
        """What an administrator of Slurm does as advised: kinds of GPU must be counted to be limited."""
        advised = [
            a.line for a in (await self.plan(fleet)).advice if a.line.startswith("AccountingStorageTRES")
        ]
        if advised:
            await asyncio.to_thread(configure_slurm, self.instance, advised)

    async def clear(self) -> None:
        """Take everything away that Fairway made, and what was configured for it.

        A team's namespace outlives it, for it may hold people's files: see `drop_namespaces`.
        """
        lab = Cluster(ClusterName("lab"), self.connection)
        await self.settle(Fleet("nothing", "USD", (lab,), ()))
        if self.kind is EngineKind.SLURM:
            await asyncio.to_thread(configure_slurm, self.instance, [])
        else:
            await asyncio.to_thread(_until_ungoverned, LabKubernetes(self.instance).api)

    def drop_namespaces(self) -> None:
        """Remove what former teams leave on Kubernetes. It takes a while: once, when all is done."""
        if self.kind is EngineKind.KUBERNETES:
            _drop_namespaces(LabKubernetes(self.instance))

    @asynccontextmanager
    async def _engine(self, fleet: Fleet) -> AsyncIterator[Governs]:
        (cluster,) = fleet.clusters
        engine = cast("Governs", build_engine(cluster, fleet.pools_of(cluster.name)))
        try:
            yield engine
        finally:
            await engine.close()


def _until_ungoverned(api: Api) -> None:
    """Wait until GPU pods may run in any namespace: API servers drop an admission policy a little later."""
    container = {"name": "main", "image": "some/image:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "try"}, "spec": spec}

    def allowed() -> bool:
        try:
            api.text("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod)
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return False
        return True

    until(allowed, 30, "no admission policy is in force")


def governed(name: str) -> Governed:
    """The lab's cluster of that name, or the one named in FAIRWAY_SCENARIOS_ON."""
    instance = find(instance_of(name))
    if instance is None or instance.state == "down":
        absent(name, "make lab-up")
    return Governed(instance, KINDS[name])


def _drop_namespaces(cluster: LabKubernetes) -> None:
    path = "/api/v1/namespaces"

    def left() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = cluster.api.get(f"{path}?labelSelector=fairway.dev/released")["items"]
        return found

    cluster.api.each(lambda namespace: cluster.api.delete(f"{path}/{namespace['metadata']['name']}"), left())
    until(lambda: not left(), 180, "the namespaces of former teams are gone", pause=0.5)


def shown(thing: Mapping[str, Any]) -> str:
    """A Kubernetes object without what its own controllers write: equal text, nobody changed it."""
    metadata = {k: v for k, v in thing["metadata"].items() if k not in ("resourceVersion", "managedFields")}
    managers = [f for f in thing["metadata"].get("managedFields", []) if f.get("subresource") != "status"]
    told = {k: v for k, v in thing.items() if k not in ("metadata", "status")}
    return json.dumps({**told, "metadata": metadata, "managers": managers}, sort_keys=True)
