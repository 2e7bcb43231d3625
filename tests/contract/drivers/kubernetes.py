"""Moves a real Kubernetes of the lab: kubectl, and what KWOK does to its nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import yaml

from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.engines.port import Observes
from fairway.model.fleet import Capacity, Cluster, KubernetesConnection, KubernetesPlace, Pool
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName
from lab import Instance, find
from lab.kubernetes import kwok
from lab.kubernetes.cluster import Cluster as LabCluster
from tests.contract.addresses import silent_port, unused_port
from tests.contract.driver import Driver, Kind, absent
from tests.waiting import eventually

_GPU = GpuType("A100-80GB", memory_gb=80)
_PRODUCT = "nvidia.com/gpu.product"
_REASON = "fairway.dev/drain-reason"
_ENDED = ("Succeeded", "Failed")


class KubernetesDriver:
    def __init__(self, instance: Instance, scratch: Path) -> None:
        self.instance = instance
        self.kubeconfig = Path(instance.facts()["fairway_kubeconfig"])
        self.cluster = Cluster(ClusterName(instance.name), KubernetesConnection(str(self.kubeconfig)))
        self.whole = self.pool("whole", {_PRODUCT: kwok.MODEL})
        self.sliced = self.pool("sliced", {_PRODUCT: f"{kwok.MODEL}-MIG"}, slices=("1g.10gb", "3g.40gb"))
        self._lab = LabCluster(instance)
        self._scratch = scratch

    def pool(self, name: str, labels: Mapping[str, str], slices: tuple[str, ...] = ()) -> Pool:
        return Pool(
            PoolName(name),
            self.cluster.name,
            _GPU,
            Capacity.OWNED,
            Decimal(1),
            KubernetesPlace(labels),
            slices=tuple(SliceName(profile) for profile in slices),
        )

    def engine(self, *pools: Pool) -> Observes:
        return KubernetesEngine(self.cluster, pools)

    def nobody_there(self) -> Observes:
        return self.reached_by(server=f"https://127.0.0.1:{unused_port()}")

    @asynccontextmanager
    async def silent(self) -> AsyncIterator[Observes]:
        async with silent_port() as port:
            yield self.reached_by(server=f"https://127.0.0.1:{port}", timeout_seconds=2)

    def not_let_in(self) -> Observes:
        return self.reached_by(token="not a token of this cluster")

    def reached_by(
        self, *, server: str | None = None, token: str | None = None, timeout_seconds: float = 30
    ) -> KubernetesEngine:
        """An adapter that goes another way to the cluster, or astray."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        if server:
            config["clusters"][0]["cluster"]["server"] = server
        if token:
            config["users"][0]["user"] = {"token": token}
        written = self._scratch / f"kubeconfig-{uuid4().hex}"
        written.write_text(yaml.safe_dump(config))
        astray = Cluster(self.cluster.name, KubernetesConnection(str(written)))
        return KubernetesEngine(astray, (), timeout_seconds=timeout_seconds)

    async def counts(self) -> Mapping[Kind, int]:
        counted: dict[Kind, int] = {}
        for pool in (self.whole, self.sliced):
            for node in await asyncio.to_thread(self._nodes, pool):
                for slice_ in pool.slices or (None,):
                    count = int(node["status"]["capacity"].get(_resource(slice_), 0))
                    counted[pool.name, slice_] = counted.get((pool.name, slice_), 0) + count
        return counted

    @asynccontextmanager
    async def held(
        self, pool: Pool, devices: int, slice_: SliceName | None = None
    ) -> AsyncIterator[NodeName]:
        await self._until(lambda: self._idle(pool), "a node is idle")
        node = self._idle(pool)[-1]
        name = f"contract-{uuid4().hex[:10]}"
        wanted = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": {kwok.RUN_FOR: "300s"}},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "containers": [
                    {
                        "name": "main",
                        "image": "none",
                        "resources": {"limits": {_resource(slice_): str(devices)}},
                    }
                ],
            },
        }
        await self.run("kubectl", "create", "-f", "-", stdin=json.dumps(wanted))
        try:
            await self._until(lambda: self._phase(name) == "Running", f"pod {name} runs")
            yield NodeName(node)
        finally:
            await self.run("kubectl", "delete", "pod", name, "--now", "--ignore-not-found")

    @asynccontextmanager
    async def drained(self, node: NodeName, reason: str) -> AsyncIterator[None]:
        # the reason first: a look between the two must not find a drained node without one
        await self.run("kubectl", "annotate", "node", node, f"{_REASON}={reason}")
        await self.run("kubectl", "cordon", node)
        try:
            yield
        finally:
            await self.run("kubectl", "uncordon", node)
            await self.run("kubectl", "annotate", "node", node, f"{_REASON}-")

    @asynccontextmanager
    async def lost(self, node: NodeName) -> AsyncIterator[None]:
        await asyncio.to_thread(self._lab.set_node_ready, node, False)
        try:
            yield
        finally:
            await asyncio.to_thread(self._lab.set_node_ready, node, True)
            await self._until(lambda: node in self._idle(self.whole), f"{node} is back", seconds=60)

    @asynccontextmanager
    async def sick(self, node: NodeName, pool: Pool, devices: int) -> AsyncIterator[None]:
        await asyncio.to_thread(self._lab.set_sick_gpus, node, devices)
        try:
            yield
        finally:
            await asyncio.to_thread(self._lab.set_sick_gpus, node, 0)

    async def run(self, *command: str, stdin: str | None = None) -> str:
        done = await asyncio.to_thread(self.instance.run, *command, stdin=stdin)
        return done.stdout.strip()

    def _get(self, *what: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(
            self.instance.run("kubectl", "get", *what, "-o", "json").stdout
        )["items"]
        return items

    def _nodes(self, pool: Pool) -> list[dict[str, Any]]:
        assert isinstance(pool.place, KubernetesPlace)
        labels = ",".join(f"{k}={v}" for k, v in pool.place.node_labels.items())
        return self._get("nodes", f"--selector={labels}")

    def _idle(self, pool: Pool) -> list[str]:
        """Ready, open nodes of the pool on which no pod runs. Ended pods stay until their Job is deleted."""
        pods = self._get("pods", "--all-namespaces")
        busy = {pod["spec"].get("nodeName") for pod in pods if pod["status"].get("phase") not in _ENDED}
        fit = [n for n in self._nodes(pool) if kwok.is_ready(n) and not n["spec"].get("unschedulable")]
        return sorted({n["metadata"]["name"] for n in fit} - busy)

    def _phase(self, pod: str) -> str:
        return self.instance.run("kubectl", "get", "pod", pod, "-o", "jsonpath={.status.phase}").stdout

    async def _until(self, true: Callable[[], object], what: str, *, seconds: float = 45) -> None:
        await eventually(true, seconds, f"{self.instance.name}: {what}")


def _resource(slice_: SliceName | None) -> str:
    return f"nvidia.com/mig-{slice_}" if slice_ else "nvidia.com/gpu"


@asynccontextmanager
async def open_driver(name: str) -> AsyncIterator[Driver]:
    instance = find(name)
    if instance is None or instance.state == "down":
        absent(name, f"python -m lab up kubernetes --name {name}")
    with TemporaryDirectory() as scratch:
        yield KubernetesDriver(instance, Path(scratch))
