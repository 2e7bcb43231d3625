"""A real server over Kubernetes with its operators, members who create workloads, a watch of their pods."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fairway.client.client import Client
from fairway.client.contexts import Target
from fairway.wire import jobs as job_wire
from lab import Instance, find
from lab.kubernetes import Api, kwok
from lab.kubernetes.api import ApiError
from lab.kubernetes.cluster import Cluster as LabKubernetes
from tests.contract.driver import absent
from tests.integration.server_process import Home, Server
from tests.kinds.manifests import training_runtime
from tests.kinds.pods import Pod, PodRecorder
from tests.scenarios.conftest import instance_of
from tests.waiting import Deadline

_LOG = logging.getLogger(__name__)
TEAM, OWNER = "kinds", "owner"
SOON: Final = 90.0
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
    price: 3600 # 1 a second
    kubernetes: {{ node_labels: {{ nvidia.com/gpu.product: {model}, type: kwok }} }}
teams:
  {team}: {{ borrow: {{ gpu: unlimited }}, members: [alice] }}
  {owner}: {{ guarantee: {{ gpu: 32 }}, members: [bob] }}
"""
_NEEDS: Final = {
    "JobSet": "jobsets.jobset.x-k8s.io",
    "TrainJob": "trainjobs.trainer.kubeflow.org",
    "RayJob": "rayjobs.ray.io",
    "RayCluster": "rayclusters.ray.io",
    "LeaderWorkerSet": "leaderworkersets.leaderworkerset.x-k8s.io",
}


@dataclass
class Workload:
    """One workload, and what was found of it."""

    kind: str
    name: str
    objects: list[dict[str, Any]]
    id: str = ""
    found: dict[str, str] = field(default_factory=dict)

    def is_row(self, row: job_wire.Job) -> bool:
        """Whether a row is this workload's; each Job that a CronJob creates has one."""
        return row.name == self.name or (self.kind == "CronJob" and row.name.startswith(f"{self.name}-"))


Predicate = Callable[[Workload, job_wire.Job | None], object]


@dataclass
class Show:
    """The cluster and the people in it."""

    instance: Instance
    api: Api
    alice: Api
    bob: Api
    client: Client
    recorder: PodRecorder
    server: Server
    made: list[dict[str, Any]] = field(default_factory=list)

    @property
    def unique(self) -> str:
        """A part of names that no other run has."""
        return f"{self.server.process.pid}"

    def kinds(self, kinds: Iterable[str]) -> list[str]:
        """Those whose controllers run here."""
        listed = self.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
        definitions = {definition["metadata"]["name"] for definition in listed}
        known = [kind for kind in kinds if _NEEDS.get(kind) in {None, *definitions}]
        if "TrainJob" in known:
            self.api.apply(training_runtime())
        return known

    def create(self, who: Api, namespace: str, wanted: dict[str, Any]) -> None:
        """Create it; admission policies take some seconds to be in force after an apply."""
        placed = placed_in(wanted, namespace)
        path = who.path_of(placed).rpartition("/")[0]
        deadline = Deadline(30)
        while True:
            try:
                who.text("POST", path, placed)
            except ApiError as error:
                if deadline.passed or error.status not in {403, 500}:
                    raise
                time.sleep(0.5)
            else:
                self.made.append(placed)
                return

    def delete(self, wanted: dict[str, Any], namespace: str) -> None:
        self.api.delete(self.api.path_of(placed_in(wanted, namespace)), propagationPolicy="Background")

    def rows(self, workloads: Iterable[Workload]) -> dict[str, job_wire.Job]:
        """The newest row of each workload, by its name."""
        newest_last = list(self.client.jobs(team=TEAM))[::-1]
        return {one.name: row for one in workloads for row in newest_last if one.is_row(row)}

    def pods(self, one: Workload) -> list[Pod]:
        """Its pods with GPUs that still run, as the API server has them."""
        return self.recorder.running(one.name)

    async def until(self, what: str, workloads: Iterable[Workload], true: Predicate) -> list[Workload]:
        """Wait until it is true of each; gives those of which it never was."""
        every = list(workloads)
        left, deadline = every, Deadline(SOON)
        rows: dict[str, job_wire.Job] = {}
        while left and not deadline.passed:
            rows = await asyncio.to_thread(self.rows, every)
            left = [one for one in left if not true(one, rows.get(one.name))]
            assert self.server.process.poll() is None, self.server.log[-3000:]
            await asyncio.sleep(0.5)
        for one in left:
            _LOG.warning("%s %s: %s", what, one.kind, rows.get(one.name))
        return left

    def held(self, one: Workload) -> tuple[int, float]:
        """GPU-seconds and cost of all rows of a workload."""
        costs = [
            cost
            for row in self.client.jobs(team=TEAM)
            if one.is_row(row) and (cost := self.client.job(row.id).cost) is not None
        ]
        return sum(cost.device_seconds for cost in costs), sum(float(cost.amount) for cost in costs)


def placed_in(wanted: dict[str, Any], namespace: str) -> dict[str, Any]:
    return {**wanted, "metadata": {**wanted["metadata"], "namespace": namespace}}


@asynccontextmanager
async def showing(home: Home, database_url: str) -> AsyncIterator[Show]:
    """Apply the fleet, and take away afterwards what people made."""
    instance = find(instance_of("kubernetes"))
    if instance is None or instance.state == "down":
        absent("kubernetes", "make lab-up")
    file = home.folder / "fleet.yaml"
    kubeconfig = instance.facts()["fairway_kubeconfig"]
    file.write_text(FLEET.format(kubeconfig=kubeconfig, model=kwok.MODEL, team=TEAM, owner=OWNER))
    words = ("-f", str(file))
    own = {"FAIRWAY_DATABASE_URL": database_url, "FAIRWAY_LEASE_SECONDS": "15"}  # nobody else wants a lease
    server = await asyncio.to_thread(home.start, *words, "--listen", "127.0.0.1:0", **own)
    token = home.token_file.read_text().strip()
    access = {"FAIRWAY_URL": server.url, "FAIRWAY_TOKEN": token}
    done = await asyncio.to_thread(home.fairway, "apply", *words, "--force", "--yes", **access)
    assert done.returncode == 0, done.stdout + done.stderr
    env = instance.env()
    alice, bob = (Api.from_kubeconfig(Path(env[f"{name}_KUBECONFIG"])) for name in ("ALICE", "BOB"))
    recorder = PodRecorder(instance, TEAM)
    recording = asyncio.create_task(recorder.follow())
    with Client(Target(server.url, token)) as client:
        show = Show(instance, LabKubernetes(instance).api, alice, bob, client, recorder, server)
        try:
            yield show
        finally:
            recording.cancel()
            with suppress(asyncio.CancelledError):
                await recording
            server.send(signal.SIGTERM)
            await asyncio.to_thread(server.wait)
            for wanted in show.made:
                with suppress(ApiError):
                    show.delete(wanted, wanted["metadata"]["namespace"])
