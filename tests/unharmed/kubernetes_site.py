"""A Kubernetes site before, with and after Fairway, by the very pieces the server uses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.files import compose_fleet, parse_fleet
from fairway.model.names import ClusterName
from fairway.services.import_cluster import import_cluster
from fairway.services.plans import plan_adoption, plan_cluster
from tests.plans import apply_plan

if TYPE_CHECKING:
    from fairway.engines.port import ImportedPolicy
    from fairway.model.fleet import Cluster, Fleet, Pool
    from fairway.policy.plan import ClusterPlan
    from lab.instance import Instance

HEAD = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: site
currency: USD
clusters:
  site: {{ engine: kubernetes, kubeconfig: {fairway_kubeconfig} }}
"""
SITE = ClusterName("site")


@dataclass
class KubernetesSite:
    """One site and the fleet that governs it."""

    instance: Instance
    fleet: Fleet | None = None
    text: str = ""
    """The fleet file."""

    async def import_fleet(self) -> ImportedPolicy:
        """Read what is there; the fleet goes through its file, as a user's does."""
        head = parse_fleet(HEAD.format(**self.instance.facts()), "head.yaml")
        imported = await import_cluster(self.build, head, SITE)
        remarks = [(remark.about, remark.text) for remark in imported.remarks]
        self.text = compose_fleet(imported.fleet, remarks)
        self.fleet = parse_fleet(self.text, "site.yaml")
        return imported

    @property
    def teams(self) -> frozenset[str]:
        """The namespaces whose GPU work the fleet governs."""
        assert self.fleet is not None
        return frozenset(str(team.name) for team in self.fleet.teams)

    async def plan(self) -> ClusterPlan:
        """What the fleet would change now."""
        assert self.fleet is not None
        async with self._engine(self.fleet) as engine:
            return await plan_cluster(engine, self.fleet, SITE)

    async def adopt(self) -> None:
        """As `fairway adopt site --all-in-the-way`."""
        assert self.fleet is not None
        async with self._engine(self.fleet) as engine:
            keys = [found.key for found in (await plan_cluster(engine, self.fleet, SITE)).in_the_way]
            plan = await plan_adoption(engine, SITE, self.fleet.clusters[0].engine, keys)
            applied = await apply_plan(engine, plan)
        assert applied.refusal is None, applied.refusal

    async def apply(self, fleet: Fleet | None = None, *, force: bool = False) -> ClusterPlan:
        """Make the fleet, or another one, the policy of the site."""
        self.fleet = fleet or self.fleet
        assert self.fleet is not None
        async with self._engine(self.fleet) as engine:
            plan = await plan_cluster(engine, self.fleet, SITE)
            applied = await apply_plan(engine, plan, force=force)
        assert applied.refusal is None, applied.refusal
        return plan

    def build(self, cluster: Cluster, pools: tuple[Pool, ...]) -> KubernetesEngine:
        """An engine for the site, as the server builds one."""
        return KubernetesEngine(cluster, pools)

    @asynccontextmanager
    async def _engine(self, fleet: Fleet) -> AsyncIterator[KubernetesEngine]:
        engine = self.build(fleet.clusters[0], fleet.pools)
        try:
            yield engine
        finally:
            await engine.close()

    def running(self) -> dict[str, str]:
        """The site's own Jobs' pods that run, with their nodes: they keep their place."""
        done = self.instance.run("kubectl", "get", "pods", "--all-namespaces", "--output=json")
        return {
            pod["metadata"]["uid"]: f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            for pod in json.loads(done.stdout)["items"]
            if pod["status"].get("phase") == "Running"
            and any(owner["kind"] == "Job" for owner in pod["metadata"].get("ownerReferences", ()))
        }
