"""Keep promises to workloads of other kinds than Job, on real Kueue with real operators.

JobSets, Deployments and Ray clusters beside Jobs, as members create them: none of them names a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.files import parse_fleet
from fairway.services.plans import PlanRefused, plan_cluster
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
    pytest.mark.nightly("two minutes; the kinds' own runs and the attempts past the queue are in CI"),
]

TEAMS = """
teams:
  lender: { guarantee: { gpu: 24 }, members: [bob] }
  borrower: { borrow: { gpu: 24 }, limits: { job: { gpus: 24 } }, members: [alice] }
"""
WITHOUT_BORROWER = """
teams:
  lender: { guarantee: { gpu: 24 }, members: [bob] }
"""
GPU, WORKLOAD, QUEUE_NAME = "nvidia.com/gpu", "kueue.x-k8s.io/workload", "kueue.x-k8s.io/queue-name"
BORROWERS = {"RayCluster": (8, 1), "JobSet": (4, 2), "Deployment": (4, 2)}
"""GPUs of each pod, and pods: 8 of each kind. The first one needs a whole node."""


@dataclass
class Here:
    """Two teams, and their members."""

    admin: Api
    alice: Api
    bob: Api
    engine: KubernetesEngine
    fleet_text: str
    """All but its teams."""

    async def apply(self, teams: str, *, force: bool = False) -> None:
        fleet = parse_fleet(self.fleet_text + teams, "kinds.yaml")
        plan = await plan_cluster(self.engine, fleet, fleet.clusters[0].name)
        assert (await apply_plan(self.engine, plan, force=force)).refusal is None

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
            wanted = body["metadata"].get("labels", {}).get(QUEUE_NAME, "main")
            if made["metadata"].get("labels", {}).get(QUEUE_NAME) == wanted:
                return True
            await asyncio.to_thread(self.admin.delete, f"{path}/{body['metadata']['name']}")
            return False

        await becomes(queued, 20, "a queue is assigned")
        return f"{path}/{body['metadata']['name']}"

    async def create_borrowers(self, priority: str = "") -> dict[str, str]:
        """Create 8 GPUs of each kind in the borrower's namespace; their paths."""
        paths = {}
        for kind, (gpus, pods) in BORROWERS.items():
            (body,) = MANIFESTS[kind](kind.lower(), gpus, pods)
            paths[kind] = await self.create(self.alice, "borrower", with_priority(body, priority))
        return paths

    async def delete(self, who: Api, path: str) -> None:
        await asyncio.to_thread(who.call, "DELETE", path, {"propagationPolicy": "Background"})

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


ALL_RUN = {kind.lower(): 8 for kind in BORROWERS}


def with_priority(body: Json, priority: str) -> Json:
    """What may be preempted by its own team has a queue of its own, of the priority's name."""
    if priority:
        body["metadata"]["labels"] = {"kueue.x-k8s.io/priority-class": priority}
    if priority == "low":
        body["metadata"]["labels"][QUEUE_NAME] = "low"
    return body


@pytest.fixture
async def here() -> AsyncIterator[Here]:
    lab = governed("kubernetes")
    cluster = LabKubernetes(lab.instance)
    if not {"jobset", "kuberay"} <= set(cluster.operators):
        pytest.skip("python -m lab up kubernetes --with jobset,kuberay")
    text = FLEET.format(kubeconfig=lab.instance.facts()["fairway_kubeconfig"], model=kwok.MODEL)
    fleet = parse_fleet(text + TEAMS, "kinds.yaml")
    engine = KubernetesEngine(fleet.clusters[0], fleet.pools)
    alice, bob = (Api.from_kubeconfig(cluster.pki.kubeconfig(name)) for name in ("alice", "bob"))
    own = Here(cluster.api, alice, bob, engine, text)
    try:
        await own.apply(TEAMS, force=True)
        yield own
    finally:
        await engine.close()
        await lab.clear()
        for namespace in ("lender", "borrower"):
            await asyncio.to_thread(cluster.api.delete, f"/api/v1/namespaces/{namespace}")


async def test_a_guarantee_takes_back_what_other_kinds_borrow_and_they_return(here: Here) -> None:
    paths = await here.create_borrowers()
    await here.until("borrower", lambda held: held == ALL_RUN, "all three kinds run with what is lent")

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

    await here.delete(here.bob, lent)
    await here.until("borrower", lambda held: sum(held.values()) == 24, "they return, up to the ceiling")
    assert (await here.held("borrower")).keys() <= ALL_RUN.keys()


async def test_an_urgent_workload_takes_the_place_of_its_own_teams_low_ones(here: Here) -> None:
    (guaranteed,) = MANIFESTS["Job"]("guaranteed", 8, 1)
    await here.create(here.bob, "lender", guaranteed)
    paths = await here.create_borrowers("low")
    await here.until("borrower", lambda held: held == ALL_RUN, "all three kinds run with what is lent")

    (urgent,) = MANIFESTS["Job"]("urgent", 8, 1)
    created = await here.create(here.alice, "borrower", with_priority(urgent, "urgent"))
    await here.until("borrower", lambda held: held.get("urgent") == 8, "the urgent job runs")
    held = await here.held("borrower")
    assert sum(held.values()) <= 24, held
    assert await here.held("lender") == {"guaranteed": 8}, "another team's guarantee is no place to take"

    await here.delete(here.alice, created)
    for path in paths.values():
        await here.delete(here.alice, path)
    await here.until("borrower", lambda held: not held, "nothing of the team is left")
    for number in range(3):
        (low,) = MANIFESTS["Job"](f"low{number}", 8, 1)
        await here.create(here.alice, "borrower", with_priority(low, "low"))
    await here.until("borrower", lambda held: sum(held.values()) == 24, "low Jobs hold all that is lent")
    await here.create_borrowers("urgent")
    await here.until("borrower", lambda held: held == ALL_RUN, "every kind takes the place of a low Job")
    assert await here.held("lender") == {"guaranteed": 8}


async def test_gangs_of_other_kinds_start_whole_or_not_at_all(here: Here) -> None:
    """Each needs all that the team may hold, so that any two would half fit."""
    (first,) = MANIFESTS["JobSet"]("first", 8, 3)
    (ray,) = MANIFESTS["RayCluster"]("ray", 8, 3)
    (last,) = MANIFESTS["JobSet"]("last", 8, 3)
    paths = {
        body["metadata"]["name"]: await here.create(here.alice, "borrower", body)
        for body in (first, ray, last)
    }
    seen: list[dict[str, int]] = []

    def one_is_whole(held: dict[str, int]) -> bool:
        seen.append(held)
        return list(held.values()) == [24]

    for _ in range(3):
        await here.until("borrower", one_is_whole, "a gang runs with all its pods")
        (name,) = seen[-1]
        await here.delete(here.alice, paths.pop(name))
    assert all(len(held) <= 1 for held in seen), "never do two hold a part"


async def test_the_limit_of_a_job_counts_every_pod_of_a_group_once(here: Here) -> None:
    (body,) = MANIFESTS["LeaderWorkerSet"]("served", 8, 3)
    template = body["spec"]["leaderWorkerTemplate"]
    template["leaderTemplate"] = template["workerTemplate"]
    path = await here.create(here.alice, "borrower", body)
    await here.delete(here.alice, path)
    template["size"] = 4
    body["metadata"]["name"] = "larger"

    async def rejected() -> bool:
        try:
            await asyncio.to_thread(
                here.alice.call, "POST", f"{here.collection(body, 'borrower')}?dryRun=All", body
            )
        except ApiError as error:
            return "limit of GPUs a job" in str(error)
        return False

    await becomes(rejected, 20, "a larger group is rejected")


@pytest.mark.parametrize("kind", BORROWERS)
async def test_a_team_with_workloads_is_drained_not_removed(here: Here, kind: str) -> None:
    gpus, pods = BORROWERS[kind]
    (body,) = MANIFESTS[kind](kind.lower(), gpus, pods)
    path = await here.create(here.alice, "borrower", body)
    runs = {kind.lower(): 8}
    await here.until("borrower", lambda held: held == runs, f"the {kind} runs")

    with pytest.raises(PlanRefused) as refusal:
        await here.apply(WITHOUT_BORROWER)
    assert "drain" in refusal.value.hint, refusal.value.hint
    assert await here.held("borrower") == runs, "the refused removal touches nothing"

    await here.apply(TEAMS.replace("members: [alice]", "draining: true, members: [alice]"))
    assert await here.held("borrower") == runs, "what runs may end"
    (late,) = MANIFESTS[kind]("late", gpus, pods)

    with suppress(ApiError):  # refused at once, or held back by its queue
        await asyncio.to_thread(here.alice.call, "POST", here.collection(late, "borrower"), late)
    for _ in range(10):
        held = await here.held("borrower")
        assert held == runs, f"nothing new starts: {held}"
        await asyncio.sleep(0.3)
    with suppress(ApiError):
        await here.delete(here.alice, f"{here.collection(late, 'borrower')}/late")
    await here.delete(here.alice, path)
    await here.until("borrower", lambda held: not held, "its last workload has gone")
    await becomes(lambda: _applies(here), 60, "the drained team goes")


async def _applies(here: Here) -> bool:
    try:
        await here.apply(WITHOUT_BORROWER)
    except PlanRefused:  # Kueue's Workload, or a pod that ends, is still there
        return False
    return True
