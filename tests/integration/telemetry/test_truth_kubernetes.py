"""Jobs of real Kubernetes, their GPUs named by pod: each gets what the exporter served while its pods ran."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from fairway.ledger import Ledger
from fairway.model.job import EngineId
from lab import Instance, obtain
from lab.gpus import Exporter
from lab.kubernetes import Api, kwok
from tests.integration.jobs.kubernetes_jobs import Stage, create, member, native
from tests.integration.telemetry.kubernetes_stage import afterwards, stage
from tests.integration.telemetry.telemetry_site import INTERVAL, Following, Reading, faults, scraped

__all__ = ["afterwards", "stage"]
pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.nightly("a minute; how pods are named, the unit tests of the mirror find too"),
]

SHARED, SLICED = "shared", "sliced"
"""Parts of names: pods whose device plugin gives them one GPU together, or an instance of one."""


@pytest.fixture
def gpus(stage: Stage) -> Iterator[Instance]:
    options = {"interval": INTERVAL, "pods": 1, "no_hpc_job": 1}
    instance = obtain("gpus", f"test-{os.getpid()}-pods", None, options)
    try:
        instance.up()
        names = [node["metadata"]["name"] for node in stage.cluster.api.get("/api/v1/nodes")["items"]]
        mig = {"9": ["3g.40gb", "3g.40gb"]}
        Exporter(instance.env()["EXPORTER_URL"]).nodes(
            *({"name": name, "gpus": 10, "mig": mig} for name in names if name.startswith("gpu-"))
        )
        yield instance
    finally:
        instance.wipe()


class Plugin:
    """Gives the GPUs of each node to the pods that run there, and tells the exporter.

    Beyond the eight that Kubernetes counts, a node has one GPU that is shared and one that is cut.
    """

    def __init__(self, api: Api, exporter: Exporter) -> None:
        self._api = api
        self._exporter = exporter
        self._held: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._strangers = set(self._running())
        """Pods of whatever was there before."""
        self.pods: dict[str, str] = {}
        """The Job of every pod that ran, by `namespace:pod`; the pod's own name if it has none."""

    async def run(self) -> None:
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(0.1)

    def _look(self) -> None:
        running = {name: pod for name, pod in self._running().items() if name not in self._strangers}
        gone = {n for n, p in running.items() if p["metadata"].get("deletionTimestamp")}
        for name in [name for name in self._held if name not in running or name in gone]:
            self._exporter.end(name)
            del self._held[name]
        for name, pod in running.items():
            node = pod["spec"].get("nodeName", "")
            if name in self._held or name in gone or not node.startswith("gpu-"):
                continue
            devices = self._give(name, node, _gpus(pod))
            self._held[name] = (node, devices)
            namespace, _, own = name.partition(":")
            self.pods[name] = pod["metadata"].get("labels", {}).get("job-name", own)
            self._exporter.hold(name, node, devices, "small", namespace=namespace, pod=own)

    def _running(self) -> dict[str, Mapping[str, Any]]:
        listed = self._api.get("/api/v1/pods?fieldSelector=status.phase%3DRunning")["items"]
        return {f"{p['metadata']['namespace']}:{p['metadata']['name']}": p for p in listed if _gpus(p)}

    def _give(self, name: str, node: str, count: int) -> tuple[str, ...]:
        if SLICED in name:
            return ("9.1",)
        if SHARED in name:
            return ("8",)
        taken = {gpu for other, gpus in self._held.values() if other == node for gpu in gpus}
        return tuple([gpu for gpu in map(str, range(8)) if gpu not in taken][:count])


def _gpus(pod: Mapping[str, Any]) -> int:
    limits = [c.get("resources", {}).get("limits", {}) for c in pod["spec"]["containers"]]
    return sum(int(one.get("nvidia.com/gpu", 0)) for one in limits)


@pytest.fixture
async def plugin(stage: Stage, gpus: Instance) -> AsyncIterator[Plugin]:
    made = Plugin(stage.cluster.api, Exporter(gpus.env()["EXPORTER_URL"]))
    task = asyncio.create_task(made.run())
    yield made
    assert not task.done(), task.exception()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def running_for(job: dict[str, Any], seconds: int, **spec: Any) -> dict[str, Any]:
    template = {**job["spec"]["template"], "metadata": {"annotations": {kwok.RUN_FOR: f"{seconds}s"}}}
    return {**job, "spec": {**job["spec"], **spec, "template": template}}


@pytest.fixture
def exempt(stage: Stage) -> Iterator[str]:
    """A namespace in which Fairway lets pods run that no Job made."""
    api, name = stage.cluster.api, f"exempt-{time.time_ns()}"
    meta = {"name": name, "labels": {"fairway.dev/exempt": "true"}}
    api.text("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


def lone_pod(api: Api, namespace: str, name: str) -> EngineId:
    """One that runs until it is deleted."""
    template = native(name)["spec"]["template"]["spec"]
    meta = {"name": name}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template}
    made = json.loads(api.text("POST", f"/api/v1/namespaces/{namespace}/pods", pod))
    return EngineId(f"{namespace}/pod/{name}/{made['metadata']['uid'][:8]}")


async def test_every_job_gets_what_its_pods_gpus_did(
    stage: Stage, gpus: Instance, plugin: Plugin, exempt: str, ledger: Ledger, database_url: str
) -> None:
    reading = await Reading.of(gpus, ledger, database_url, stage.fleet)
    api, unique = stage.cluster.api, time.time_ns()
    async with Following(stage.engine, stage.fleet, [reading]) as following:
        await scraped(reading.gpus)
        await reading.step(reading.telemetry)

        def env(seconds: int) -> dict[str, str]:
            return {kwok.RUN_FOR_ENV: f"{seconds}s"}

        ours, gang = await stage.send(
            stage.order("x", pool="gpu", env=env(14), gpus=2),
            stage.order("x", pool="gpu", env=env(12), gpus=2, nodes=2),
        )
        alice = member(stage, "alice")
        job = await asyncio.to_thread(
            create, alice, "ml", running_for(native(f"own-{unique}"), 11, completions=2, parallelism=2)
        )
        back = await asyncio.to_thread(
            create, alice, "ml", running_for(native(f"own-7-{unique}-{SLICED}"), 9)
        )
        alone = await asyncio.to_thread(lone_pod, api, exempt, f"{SHARED}-a-{unique}")
        other = await asyncio.to_thread(lone_pod, api, exempt, f"{SHARED}-b-{unique}")
        ids = [ours, gang, job, back, alone, other]
        await following.until(ids, ["running"])
        await asyncio.sleep(4)
        evicted = next(n for n, of in plugin.pods.items() if of == back.split("/")[1])
        namespace, _, pod = evicted.partition(":")
        await asyncio.to_thread(api.delete, f"/api/v1/namespaces/{namespace}/pods/{pod}?gracePeriodSeconds=0")
        await following.until([ours, gang, job], ["done"])
        for id_ in (alone, other):
            name = id_.split("/")[2]
            await asyncio.to_thread(
                api.delete, f"/api/v1/namespaces/{exempt}/pods/{name}?gracePeriodSeconds=0"
            )
        await following.until(ids, ["done", "cancelled"])
        await reading.read_to(time.time())
    sums = reading.sums()
    assert len(following.jobs[back].attempts) == 2
    pods = {id_: _pods_of(id_, plugin.pods) for id_ in ids}
    assert [len(pods[id_]) for id_ in ids] == [1, 2, 2, 2, 1, 1]
    assert sums[back].devices == {(sums_node(sums, back), "9", "1")}
    assert faults(reading, {id_: pods[id_] for id_ in ids}) == []
    logging.getLogger(__name__).info("%s", sums)


def sums_node(sums: Mapping[str, Any], id_: str) -> str:
    (node,) = {node for node, *_ in sums[id_].devices}
    return str(node)


def _pods_of(engine_id: str, pods: Mapping[str, str]) -> tuple[str, ...]:
    """What ran for a job, by the names that the API server has."""
    name = engine_id.split("/")[2 if "/pod/" in engine_id else 1]
    return tuple(sorted(pod for pod, of in pods.items() if of == name))
