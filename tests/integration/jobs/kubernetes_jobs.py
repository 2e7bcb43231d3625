"""A fleet on the lab's Kubernetes, orders for it, and a mirror that is followed all the time."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.engines.kubernetes.policy.admission_policies import QUEUE_NAME
from fairway.engines.port import LogPart, SubmitResult, Unreachable
from fairway.files import parse_fleet
from fairway.model.fleet import Fleet, Folders
from fairway.model.job import (
    OPEN_JOBS,
    EngineId,
    GpuRequest,
    JobId,
    JobSpec,
    JobState,
    Order,
    SeenJob,
    Tolerates,
    engine_name,
)
from fairway.model.names import PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Supply
from fairway.model.workload_kinds import WORKLOAD_KINDS
from fairway.services.plans import plan_cluster
from lab import Instance
from lab.kubernetes import Api, kwok
from lab.kubernetes.api import ApiError
from lab.kubernetes.cluster import Cluster as LabKubernetes
from tests.plans import apply_plan
from tests.waiting import Deadline

IMAGE = "localhost/python:3"
FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: jobs
currency: USD
clusters: {{ lab: {{ engine: kubernetes, kubeconfig: {kubeconfig} }} }}
pools:
  gpu:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 1
    kubernetes: {{ node_labels: {{ nvidia.com/gpu.product: {model} }} }}
    topology: [topology.fairway/rack]
  real:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 1
    kubernetes: {{ node_labels: {{ type: real }} }}
  spot:
    cluster: lab
    gpu: A100-80GB
    capacity: spot
    price: 1
    kubernetes: {{ node_labels: {{ fairway/capacity: spot }}, taints: [fairway/spot] }}
teams:
  ml:
    guarantee: {{ gpu: 32, real: 8 }}
    borrow: {{ spot: 8 }}
    members: [alice, carol]
  counted:
    guarantee: {{ gpu: 8 }}
    limits: {{ user: {{ gpus: 4 }} }}
    members: [bob, dave]
"""
_NUMBERS = itertools.count(random.randrange(1 << 30, 1 << 31))  # no two runs share a job


@dataclass
class Stage:
    """The cluster under the fleet, and one engine that runs and mirrors."""

    instance: Instance
    engine: KubernetesEngine
    fleet: Fleet
    cluster: LabKubernetes
    seen: dict[EngineId, SeenJob] = field(default_factory=dict)
    history: list[tuple[float, SeenJob]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    mark: str | None = None
    _task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, instance: Instance, checkpoints: str | None = None) -> Stage:
        kubeconfig = instance.facts()["fairway_kubeconfig"]
        fleet = parse_fleet(FLEET.format(kubeconfig=kubeconfig, model=kwok.MODEL), "jobs.yaml")
        (cluster,) = fleet.clusters
        fleet = replace(fleet, clusters=(replace(cluster, folders=Folders(checkpoints=checkpoints)),))
        return cls(instance, KubernetesEngine(fleet.clusters[0], fleet.pools), fleet, LabKubernetes(instance))

    async def apply(self) -> None:
        await self.apply_only()
        await self._until_in_force()

    async def apply_only(self) -> None:
        plan = await plan_cluster(self.engine, self.fleet, self.fleet.clusters[0].name)
        applied = await apply_plan(self.engine, plan, force=True)
        assert applied.refusal is None, applied.refusal

    async def _until_in_force(self) -> None:
        """Return once the API server assigns queues and refuses what passes them by."""
        alice, deadline = member(self, "alice"), Deadline(30)
        while not await asyncio.to_thread(_in_force, alice, "ml"):
            assert not deadline.passed, "the admission policies are not in force"
            await asyncio.sleep(0.2)

    # the mirror

    def follow(self) -> None:
        self._task = asyncio.create_task(self._follow())

    async def leave(self) -> None:
        """As if the server went away: nothing of the mirror's memory stays."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self.engine.close()

    def come_back(self) -> None:
        self.engine = KubernetesEngine(self.fleet.clusters[0], self.fleet.pools)
        self.seen.clear()
        self.follow()

    async def _follow(self) -> None:
        while True:
            try:
                batch = await self.engine.changes(self.mark, self.fleet)
            except Unreachable as e:
                self.failures.append(e.code)
                await asyncio.sleep(0.2)
                continue
            self.mark = batch.mark
            now = time.time()
            for job in batch.jobs:
                self.seen[job.engine_id] = job
                self.history.append((now, job))

    async def until(
        self, engine_id: EngineId, true: Callable[[SeenJob], object], within: float = 45.0
    ) -> SeenJob:
        deadline = Deadline(within)
        while True:
            job = self.seen.get(engine_id)
            if job is not None and true(job):
                return job
            assert self._task is None or not self._task.done(), self._task.exception()
            assert not deadline.passed, f"{engine_id}: not within {within:g} s: {job}"
            await asyncio.sleep(0.05)

    async def until_state(self, engine_id: EngineId, *states: JobState, within: float = 45.0) -> SeenJob:
        return await self.until(engine_id, lambda job: job.state in states, within)

    async def until_over(self, engine_id: EngineId, within: float = 60.0) -> SeenJob:
        return await self.until(engine_id, lambda job: job.state not in OPEN_JOBS, within)

    # orders

    def order(self, *command: str, pool: str = "real", **more: Any) -> Order:
        """An order of one GPU for a command; words of the spec or of the order may be said."""
        number = JobId(next(_NUMBERS))
        own = {
            key: more.pop(key)
            for key in ("user", "team", "priority", "hold", "attempts_before", "array", "array_index")
            if key in more
        }
        spec = JobSpec(
            name=more.pop("name", "try"),
            gpus=GpuRequest(more.pop("gpus", 1)),
            command=command,
            image=IMAGE,
            tolerates=frozenset({Tolerates.SPOT}) if pool == "spot" else frozenset(),
            **more,
        )
        return Order(
            job=number,
            submission=1,
            engine_name=engine_name("t3st", number, 1, spec.name),
            spec=spec,
            user=UserName(own.pop("user", "alice")),
            team=TeamName(own.pop("team", "ml")),
            priority=PriorityName(own.pop("priority", "normal")),
            supply=Supply(PoolName(pool)),
            **own,
        )

    async def send(self, *orders: Order) -> tuple[EngineId, ...]:
        sent = await self.submit(*orders)
        refused = [s.refusal for s in sent if s.refusal]
        assert not refused, refused[0]
        by_order = {s.order.job: s.engine_id for s in sent}
        return tuple(e for o in orders if (e := by_order[o.job]) is not None)

    async def submit(self, *orders: Order) -> list[SubmitResult]:
        return [sent async for sent in self.engine.submit(orders, self.fleet)]

    async def log(self, order: Order, engine_id: EngineId, attempt: int = 1, **more: int) -> LogPart:
        return await self.engine.read_log(
            order, engine_id, attempt, more.get("offset", 0), more.get("limit", 1 << 16), more.get("node", 0)
        )

    def job(self, engine_id: EngineId) -> Mapping[str, Any]:
        namespace, name = engine_id.split("/")[:2]
        found: Mapping[str, Any] = self.cluster.api.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}")
        return found

    def clear(self) -> None:
        """Every workload of the teams ends."""
        for team, kind in itertools.product(self.fleet.teams, WORKLOAD_KINDS):
            path = kind.path(team.name)
            with suppress(ApiError):
                names = [job["metadata"]["name"] for job in self.cluster.api.get(path)["items"]]
                self.cluster.api.each(partial(self._delete, path), names)

    def _delete(self, path: str, name: str) -> None:
        with suppress(ApiError):
            self.cluster.api.delete(f"{path}/{name}?propagationPolicy=Background")


def member(stage: Stage, name: str) -> Api:
    return Api.from_kubeconfig(Path(stage.instance.env()[f"{name.upper()}_KUBECONFIG"]))


def native(name: str, gpus: int = 1, **more: Any) -> dict[str, Any]:
    """A Job as people write it."""
    limits = {"nvidia.com/gpu": str(gpus)}
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {"type": "kwok", "nvidia.com/gpu.product": kwok.MODEL},
        "containers": [{"name": "main", "image": "some/image:1", "resources": {"limits": limits}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, **more},
        "spec": {"template": {"spec": pod}},
    }


def _in_force(api: Api, namespace: str) -> bool:
    """Whether a job gets a queue, and one that passes Kueue by is refused."""
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs?dryRun=All"
    bypass = native("bypass")
    bypass["spec"]["template"]["spec"]["schedulerName"] = "mine"
    try:
        made = json.loads(api.text("POST", path, native("try")))
        if QUEUE_NAME not in made["metadata"].get("labels", {}):
            return False
    except ApiError as error:
        if error.status != 403:
            raise
        return False
    try:
        api.text("POST", path, bypass)
    except ApiError as error:
        return error.status == 403
    return False


def create(api: Api, namespace: str, job: dict[str, Any]) -> EngineId:
    made = json.loads(api.text("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", job))
    return EngineId(f"{namespace}/{job['metadata']['name']}/{made['metadata']['uid'][:8]}")
