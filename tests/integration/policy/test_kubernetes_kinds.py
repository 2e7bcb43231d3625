"""Keep promises to workloads of other kinds than Job, on real Kueue with real operators.

A team borrows GPUs with a JobSet, a Deployment and a Ray cluster; another team's guarantee takes them back,
and they return when it is done. None of them names a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.files import parse_fleet
from fairway.services.plans import plan_cluster
from lab.kubernetes import Api, kwok
from lab.kubernetes.api import ApiError, Json
from lab.kubernetes.cluster import Cluster as LabKubernetes
from tests.integration.policy.policy_lab import governed
from tests.integration.policy.test_kubernetes_policy import FLEET, becomes
from tests.kinds.manifests import MANIFESTS
from tests.plans import apply_plan

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    pytest.mark.nightly("half a minute; the kinds' own runs and the attempts past the queue are in CI"),
]

TEAMS = """
teams:
  lender: { guarantee: { gpu: 24 }, members: [bob] }
  borrower: { borrow: { gpu: 24 }, members: [alice] }
"""
GPU, WORKLOAD = "nvidia.com/gpu", "kueue.x-k8s.io/workload"
BORROWERS = {"JobSet": (4, 2), "Deployment": (4, 2), "RayCluster": (8, 1)}
"""GPUs of each pod, and pods: 8 of each kind."""


@dataclass
class Here:
    """Two teams, and their members."""

    admin: Api
    alice: Api
    bob: Api

    def collection(self, body: Json, namespace: str) -> str:
        meta = {**body["metadata"], "namespace": namespace}
        return self.admin.path_of({**body, "metadata": meta}).rpartition("/")[0]

    async def create(self, who: Api, namespace: str, body: Json) -> str:
        """Create it as a member, once the policies are in force; its path."""
        path = self.collection(body, namespace)
        made: Json = {}

        async def queued() -> bool:
            nonlocal made
            try:
                made = await asyncio.to_thread(who.call, "POST", path, body)
            except ApiError as error:
                assert error.status in {403, 409}, error
                return False
            if made["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name") == "main":
                return True
            await asyncio.to_thread(self.admin.delete, f"{path}/{body['metadata']['name']}")
            return False

        await becomes(queued, 20, "a queue is assigned")
        return f"{path}/{body['metadata']['name']}"

    async def held(self, namespace: str) -> dict[str, int]:
        """GPUs that run, by the name of what they belong to."""
        pods = (await asyncio.to_thread(self.admin.get, f"/api/v1/namespaces/{namespace}/pods"))["items"]
        held: dict[str, int] = {}
        for pod in pods:
            gpus = int(pod["spec"]["containers"][0]["resources"].get("limits", {}).get(GPU, 0))
            if gpus and pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                assert WORKLOAD in pod["metadata"]["annotations"], pod["metadata"]["name"]
                name = pod["metadata"]["name"].partition("-")[0]
                held[name] = held.get(name, 0) + gpus
        return held

    async def until(self, namespace: str, true: Callable[[dict[str, int]], bool], what: str) -> None:
        async def asked() -> bool:
            return true(await self.held(namespace))

        await becomes(asked, 60, what)


@pytest.fixture
async def here() -> AsyncIterator[Here]:
    lab = governed("kubernetes")
    cluster = LabKubernetes(lab.instance)
    if not {"jobset", "kuberay"} <= set(cluster.operators):
        pytest.skip("python -m lab up kubernetes --with jobset,kuberay")
    kubeconfig = lab.instance.facts()["fairway_kubeconfig"]
    fleet = parse_fleet(FLEET.format(kubeconfig=kubeconfig, model=kwok.MODEL) + TEAMS, "kinds.yaml")
    engine = KubernetesEngine(fleet.clusters[0], fleet.pools)
    try:
        plan = await plan_cluster(engine, fleet, fleet.clusters[0].name)
        assert (await apply_plan(engine, plan, force=True)).refusal is None
        users = {name: Api.from_kubeconfig(cluster.pki.kubeconfig(name)) for name in ("alice", "bob")}
        yield Here(cluster.api, **users)
    finally:
        await engine.close()
        await lab.clear()
        for namespace in ("lender", "borrower"):
            await asyncio.to_thread(cluster.api.delete, f"/api/v1/namespaces/{namespace}")


async def test_a_guarantee_takes_back_what_other_kinds_borrow_and_they_return(here: Here) -> None:
    paths = {}
    for kind, (gpus, pods) in BORROWERS.items():
        (body,) = MANIFESTS[kind](kind.lower(), gpus, pods)
        paths[kind] = await here.create(here.alice, "borrower", body)
    all_run = {kind.lower(): 8 for kind in BORROWERS}
    await here.until("borrower", lambda held: held == all_run, "all three kinds run with what is lent")

    # access: another team's member may not touch it
    with pytest.raises(ApiError, match="cannot delete"):
        await asyncio.to_thread(here.bob.call, "DELETE", paths["JobSet"])
    # ceiling: 24 are all it may hold, and replicas beyond that wait
    scale = {"spec": {"replicas": 4}}
    await asyncio.to_thread(here.alice.merge, f"{paths['Deployment']}/scale", scale)

    (job,) = MANIFESTS["Job"]("urgent", 8, 3)
    lent = await here.create(here.bob, "lender", job)
    await here.until("lender", lambda held: held == {"urgent": 24}, "the guarantee runs, all of it")
    await here.until("borrower", lambda held: sum(held.values()) <= 8, "what was lent came back")

    options = {"propagationPolicy": "Background"}
    await asyncio.to_thread(here.bob.call, "DELETE", lent, options)
    await here.until("borrower", lambda held: sum(held.values()) == 24, "they return, up to the ceiling")
    assert (await here.held("borrower")).keys() <= all_run.keys()
