"""Workloads of every kind on the real controllers: mirrored by their root, explained, held and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from fairway.engines.kubernetes.api.kinds import KUEUE
from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.engines.kubernetes.policy.admission_policies import QUEUE_NAME
from fairway.engines.kubernetes.policy.pod_policies import NOT_COUNTED
from fairway.files import parse_fleet
from fairway.model.job import EngineId, JobState, SeenJob
from lab.kubernetes import kwok
from lab.kubernetes.api import Api, ApiError
from lab.kubernetes.cluster import Cluster as LabKubernetes
from tests.integration.jobs.kubernetes_jobs import Stage
from tests.integration.policy.policy_lab import governed
from tests.kinds.manifests import (
    MANIFESTS,
    UNKNOWN_GROUP,
    UNKNOWN_KIND,
    pod_spec,
    training_runtime,
    unknown_kind,
)
from tests.kinds.pods import gpus_of
from tests.waiting import Deadline, until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(280)]

FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: kinds
currency: USD
clusters: {{ lab: {{ engine: kubernetes, kubeconfig: {kubeconfig} }} }}
pools:
  gpu:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 1
    kubernetes: {{ node_labels: {{ nvidia.com/gpu.product: {model} }} }}
teams:
  kinds: {{ guarantee: {{ gpu: 28 }} }}
  small: {{ guarantee: {{ gpu: 4 }}, borrow: {{ gpu: 0 }} }}
"""
PLURALS = {
    "Job": "apis/batch/v1/{}/jobs",
    "JobSet": "apis/jobset.x-k8s.io/v1alpha2/{}/jobsets",
    "TrainJob": "apis/trainer.kubeflow.org/v1alpha1/{}/trainjobs",
    "RayCluster": "apis/ray.io/v1/{}/rayclusters",
    "LeaderWorkerSet": "apis/leaderworkerset.x-k8s.io/v1/{}/leaderworkersets",
    "StatefulSet": "apis/apps/v1/{}/statefulsets",
    "Deployment": "apis/apps/v1/{}/deployments",
    "Pod": "api/v1/{}/pods",
    UNKNOWN_KIND: f"apis/{UNKNOWN_GROUP}/v1/{{}}/{UNKNOWN_KIND.lower()}s",
}
FULL = {"QuotaInUse", "NotEnoughFree"}
"""Kueue finds either that the quota is used up, or that no node is free."""
SERVICES = {"RayCluster", "LeaderWorkerSet", "StatefulSet", "Deployment"}
KINDS = (
    "Job",
    "JobSet",
    "TrainJob",
    "RayCluster",
    "LeaderWorkerSet",
    "StatefulSet",
    "Deployment",
    "Pod",
    "PodGroup",
)


def path(kind: str, namespace: str, name: str = "") -> str:
    return "/" + PLURALS[kind].format(f"namespaces/{namespace}") + (f"/{name}" if name else "")


class Workloads:
    """Creates workloads as a person does, and finds them in the mirror by kind and name."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.api = stage.cluster.api

    async def create(self, kind: str, namespace: str, gpus: int, pods: int, name: str = "") -> str:
        name = name or kind.lower()
        for body in MANIFESTS[kind](name, gpus, pods):
            await self.when_in_force(path(body["kind"], namespace), body)
        return name

    async def when_in_force(self, at: str, body: Any) -> Any:
        """Create an object, once the API server assigns queues: some seconds after an apply."""
        deadline = Deadline(30)
        while not await asyncio.to_thread(self._gets_queue, at, body):
            assert not deadline.passed, f"{body['kind']} {body['metadata']['name']} gets no queue"
            await asyncio.sleep(0.3)
        return await asyncio.to_thread(self.api.call, "POST", at, body)

    def _gets_queue(self, at: str, body: Any) -> bool:
        try:
            made = self.api.call("POST", f"{at}?dryRun=All", body)
        except ApiError as e:
            assert "needs a queue" in str(e) or NOT_COUNTED in str(e), e
            return False
        gates = made["spec"].get("schedulingGates", [])
        return QUEUE_NAME in made["metadata"].get("labels", {}) and (body["kind"] != "Pod" or bool(gates))

    async def patch(self, kind: str, namespace: str, name: str, body: Any) -> None:
        await asyncio.to_thread(self.api.merge, path(kind, namespace, name), body)

    async def patch_when_up(self, kind: str, namespace: str, name: str, body: Any) -> None:
        """Patch, once the API server and Kueue's webhooks answer."""
        deadline = Deadline(90)
        while True:
            try:
                return await self.patch(kind, namespace, name, body)
            except (ApiError, OSError):
                assert not deadline.passed
                await asyncio.sleep(0.5)

    async def until(
        self, name: str, true: Callable[[SeenJob], object], within: float = 60.0, what: str = ""
    ) -> SeenJob:
        deadline = Deadline(within)
        while True:
            job = next((j for j in self.stage.seen.values() if j.name == name), None)
            if job is not None and true(job):
                return job
            assert not deadline.passed, f"{name} {what}: not within {within:g} s: {job}"
            await asyncio.sleep(0.1)

    async def until_running(self, name: str, devices: int) -> SeenJob:
        return await self.until(name, lambda job: held(job) == devices, what=f"holds {devices} GPUs")


def held(job: SeenJob) -> int:
    """GPUs that it holds now."""
    return sum(a.devices for a in job.attempts if a.ended_at is None)


@pytest.fixture(scope="module")
def lab() -> LabKubernetes:
    instance = governed("kubernetes").instance
    cluster = LabKubernetes(instance)
    if len(cluster.operators) < 4:
        pytest.skip("the lab has no operators: lab up kubernetes --with jobset,lws,trainer,kuberay")
    return cluster


@pytest.fixture(scope="module", autouse=True)
def afterwards() -> Iterator[None]:
    """The next module finds the cluster as this one did."""
    yield
    asyncio.run(governed("kubernetes").clear())


def empty(lab: LabKubernetes) -> None:
    """Every workload of the teams is deleted, and its quota is free."""
    workloads = f"{KUEUE}/namespaces/{{}}/workloads"
    for namespace in ("kinds", "small"):
        for kind in PLURALS:
            with suppress(ApiError):
                lab.api.delete(f"{path(kind, namespace)}?propagationPolicy=Background")
        with suppress(ApiError):
            lab.api.delete(workloads.format(namespace))
        left = [workloads.format(namespace), path("Pod", namespace)]
        until(partial(_is_empty, lab, left), 60, f"{namespace} is empty")


def _is_empty(lab: LabKubernetes, lists: list[str]) -> bool:
    return not any(_items(lab, at) for at in lists)


def _items(lab: LabKubernetes, at: str) -> Any:
    try:
        return lab.api.get(at)["items"]
    except ApiError:
        return ()


@pytest.fixture
async def stage(lab: LabKubernetes) -> AsyncIterator[Stage]:
    kubeconfig = lab.instance.facts()["fairway_kubeconfig"]
    fleet = parse_fleet(FLEET.format(kubeconfig=kubeconfig, model=kwok.MODEL), "kinds.yaml")
    own = Stage(lab.instance, KubernetesEngine(fleet.clusters[0], fleet.pools), fleet, lab)
    await asyncio.to_thread(empty, lab)
    await own.apply_only()
    own.follow()
    yield own
    await own.leave()
    await asyncio.to_thread(empty, lab)


@pytest.fixture
def workloads(stage: Stage) -> Workloads:
    return Workloads(stage)


async def test_every_kind_is_one_job_that_can_be_cancelled(stage: Stage, workloads: Workloads) -> None:
    api = stage.cluster.api
    trainer, extensions = "trainer.kubeflow.org/v1alpha1", "apiextensions.k8s.io/v1"
    for made, at in (
        (training_runtime(), f"/apis/{trainer}/clustertrainingruntimes"),
        (unknown_kind(), f"/apis/{extensions}/customresourcedefinitions"),
    ):
        try:
            await asyncio.to_thread(api.call, "POST", at, made)
        except ApiError as e:
            assert e.status == 409, e
    names = {kind: await workloads.create(kind, "kinds", 1, 2) for kind in KINDS}
    names[UNKNOWN_KIND] = await _unknown(workloads)
    jobs = {kind: await workloads.until_running(name, 2) for kind, name in names.items()}
    for kind, job in jobs.items():
        shown = "" if kind == "Job" else kind
        assert (job.kind, job.service, job.state) == (shown, kind in SERVICES, JobState.RUNNING), job
        assert (job.team, job.supply is not None) == ("kinds", True), job
        assert job.reason == "", f"{kind} is counted: {job}"
        replicas = [a.replica for a in job.attempts if a.ended_at is None]
        assert len(replicas) == (2 if kind in SERVICES else 1), job
        assert all(replicas) == (kind in SERVICES), job
    here = {job.name for job in stage.seen.values() if job.engine_id.startswith("kinds/")}
    assert len(here) == len(jobs), "none has a part that is a job, too"
    times = await asyncio.to_thread(pod_starts, stage, "kinds")
    for kind, job in jobs.items():
        for attempt in job.attempts:
            started = times[attempt.replica] if attempt.replica else min(times[p] for p in pods_of(attempt))
            assert attempt.started_at == started, (kind, attempt)

    refused = await stage.engine.cancel([job.engine_id for job in jobs.values()])
    assert [(id_, e.code) for id_, e in refused.items()] == [(jobs[UNKNOWN_KIND].engine_id, "Forbidden")]
    await asyncio.to_thread(api.delete, path(UNKNOWN_KIND, "kinds", names[UNKNOWN_KIND]))
    for kind, name in names.items():
        job = await workloads.until(
            name, lambda j: j.state is JobState.CANCELLED, what=f"{kind} is cancelled"
        )
        assert held(job) == 0


def pods_of(attempt: Any) -> list[str]:
    return [holder.partition("/")[2] for node in attempt.gpus for holder in node.holders]


def pod_starts(stage: Stage, namespace: str) -> dict[str, datetime]:
    """When the containers of pods started, by KWOK's own words."""
    found = {}
    for pod in stage.cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]:
        statuses = pod.get("status", {}).get("containerStatuses") or ()
        starts = [s["state"]["running"]["startedAt"] for s in statuses if "running" in s["state"]]
        if starts:
            found[pod["metadata"]["name"]] = datetime.fromisoformat(min(starts))
    return found


async def _unknown(workloads: Workloads) -> str:
    """An object of a kind that nobody knows, whose operator creates one pod."""
    name = UNKNOWN_KIND.lower()
    body = {"apiVersion": f"{UNKNOWN_GROUP}/v1", "kind": UNKNOWN_KIND, "metadata": {"name": name}, "spec": {}}
    deadline = Deadline(20)
    while True:
        try:
            made = await asyncio.to_thread(workloads.api.call, "POST", path(UNKNOWN_KIND, "kinds"), body)
            break
        except ApiError as e:
            assert e.status == 404 and not deadline.passed, e
            await asyncio.sleep(0.2)
    owner = {
        "apiVersion": body["apiVersion"], "kind": UNKNOWN_KIND, "name": name, "uid": made["metadata"]["uid"],
        "controller": True,
    }  # fmt: skip
    meta = {
        "name": f"{name}-0", "ownerReferences": [owner], "labels": {"kueue.x-k8s.io/queue-name": "main"},
        "annotations": {kwok.RUN_FOR: "3600s"},
    }  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec(2)}
    await workloads.when_in_force(path("Pod", "kinds"), pod)
    return name


async def test_a_service_that_grows_past_its_quota_waits_in_part(stage: Stage, workloads: Workloads) -> None:
    await workloads.create("Job", "kinds", 4, 7, "others")  # nothing is left to borrow
    await workloads.until_running("others", 28)
    name = await workloads.create("Deployment", "small", 2, 2, "chat")
    await workloads.until_running(name, 4)
    await workloads.patch("Deployment", "small", name, {"spec": {"replicas": 4}})
    job = await workloads.until(name, lambda j: j.nodes == 4 and j.reason_code in FULL)
    assert (job.state, held(job), job.gpus) == (JobState.RUNNING, 4, 2)
    why = await stage.engine.explain(job.engine_id, stage.fleet)
    assert why is not None
    assert why.code in FULL and why.reason.startswith("couldn't assign flavors"), why

    assert await stage.engine.hold([job.engine_id]) == {}
    job = await workloads.until(name, lambda j: j.state is JobState.HELD)
    assert (job.reason, held(job), job.nodes) == ("scaled to 0", 0, 0)
    assert await stage.engine.release([job.engine_id]) == {}
    await workloads.until(name, lambda j: j.nodes == 4 and held(j) == 4)

    for daemon in ("kube-apiserver", "kueue"):
        await asyncio.to_thread(stage.instance.kill, daemon)
        await asyncio.to_thread(stage.instance.start, daemon)
    await workloads.patch_when_up("Deployment", "small", name, {"spec": {"replicas": 1}})
    job = await workloads.until(name, lambda j: j.nodes == 1 and held(j) == 2, within=90)
    assert (job.state, job.reason) == (JobState.RUNNING, "")
    ended = [a for _, seen in stage.history for a in seen.attempts if seen.name == name and a.ended_at]
    assert len({(a.replica, a.ended_at) for a in ended}) == len({a.replica for a in ended}) == 3


async def test_a_ray_cluster_that_scales_itself_grows_by_slices_of_quota(
    stage: Stage, workloads: Workloads
) -> None:
    """Its workers go on while it grows; beyond the quota it waits with what it has.

    Kueue looks for places for the whole new size beside the old one, so some GPUs have to be free.
    """
    api, at = stage.cluster.api, path("RayCluster", "small", "ray")
    await workloads.create("Job", "kinds", 4, 5, "others")
    await workloads.until_running("others", 20)
    (body,) = MANIFESTS["RayCluster"]("ray", 2, 1)
    body["spec"]["enableInTreeAutoscaling"] = True
    await workloads.when_in_force(path("RayCluster", "small"), body)
    await workloads.until_running("ray", 2)
    before = await asyncio.to_thread(worker_pods, stage, "small")
    for replicas in (2, 3):
        await asyncio.to_thread(resize, api, at, replicas)
        await workloads.until_running("ray", 4)
    job = await workloads.until("ray", lambda j: j.reason_code in FULL, what="waits for the third worker")
    assert (job.state, held(job)) == (JobState.RUNNING, 4), job
    (again,) = MANIFESTS["RayCluster"]("ray", 2, 3)
    await asyncio.to_thread(api.merge, at, {"spec": again["spec"]})  # as `kubectl apply` of a manifest does
    await asyncio.to_thread(resize, api, at, 2)
    assert before <= await asyncio.to_thread(worker_pods, stage, "small"), "no worker was restarted"


def resize(api: Api, at: str, replicas: int) -> None:
    """As Ray's autoscaler does: nothing else of the object changes."""
    deadline = Deadline(20)
    while True:
        found = api.get(at)
        found["spec"]["workerGroupSpecs"][0]["replicas"] = replicas
        try:
            api.call("PUT", at, found)
        except ApiError as e:
            assert e.status == 409 and not deadline.passed, e
        else:
            return


def worker_pods(stage: Stage, namespace: str) -> set[str]:
    """The uids of pods with GPUs."""
    pods = stage.cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {pod["metadata"]["uid"] for pod in pods if gpus_of(pod)}


async def test_a_gang_is_held_while_it_waits(stage: Stage, workloads: Workloads) -> None:
    await workloads.create("Job", "kinds", 4, 7, "others")
    await workloads.until_running("others", 28)
    await workloads.create("StatefulSet", "small", 2, 2, "llm")
    await workloads.until_running("llm", 4)
    await workloads.create("JobSet", "small", 1, 2, "gang")
    job = await workloads.until("gang", lambda j: j.reason_code in FULL)
    assert await stage.engine.hold([job.engine_id]) == {}
    await workloads.until("gang", lambda j: j.state is JobState.HELD)
    llm = EngineId(next(j.engine_id for j in stage.seen.values() if j.name == "llm"))
    assert await stage.engine.hold([llm]) == {}
    await workloads.until("llm", lambda j: j.state is JobState.HELD and held(j) == 0)
    assert await stage.engine.release([job.engine_id]) == {}
    await workloads.until_running("gang", 2)
    assert await stage.engine.cancel([llm, job.engine_id]) == {}
    await workloads.until("gang", lambda j: j.state is JobState.CANCELLED)
    await workloads.until("llm", lambda j: j.state is JobState.CANCELLED)
