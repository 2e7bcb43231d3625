"""Changes of workloads of two kinds, with three GPU pods each, as the mirror tells them, beside a bare watch.

The API server is played in this process, so that Fairway's own time and memory are measured: it lists objects
as the real one writes them, and sends the same events to both ways.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from bench.figure import Figure
from bench.fleets import A100, PRIORITIES, PRODUCT
from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.connection import ApiConnection
from fairway.engines.kubernetes.jobs.mirror import KubernetesMirror
from fairway.model.fleet import Capacity, Cluster, Fleet, KubernetesConnection, KubernetesPlace, Pool
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.team import Team

TARGET, MOST = 100.0, 2.0
SECONDS, A_SECOND = 20, 200
SMALL = 500
CREATED = "2026-11-18T12:00:00Z"
GPU = "nvidia.com/gpu"
SERVER = "https://bench.example"
PODS, WORKLOADS, JOBS = "/api/v1/pods", "/apis/kueue.x-k8s.io/v1beta2/workloads", "/apis/batch/v1/jobs"
KINDS = {
    "apps/v1": {"ReplicaSet": "replicasets", "Deployment": "deployments"},
    "jobset.x-k8s.io/v1alpha2": {"JobSet": "jobsets"},
}

Json = dict[str, Any]


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct):
    name: str = ""


class _Named(msgspec.Struct):
    metadata: _Meta


def _reference(api_version: str, kind: str, name: str) -> Json:
    uid = f"{kind.lower()}-{name}-0000-4000-8000"
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}


class PlayedServer:
    """Deployments of two pods and JobSets of four: lists, metadata and watches of them."""

    def __init__(self, count: int) -> None:
        self.version = 1
        self.objects: dict[str, list[Json]] = defaultdict(list)
        self.watches: dict[str, list[asyncio.Queue[bytes]]] = defaultdict(list)
        for i in range(count // 2):
            self._deployment(f"chat-{i}")
            self._job_set(f"gang-{i}")

    def _add(self, path: str, kind: str, name: str, owner: Json | None = None, **body: Any) -> Json:
        meta = {
            "name": name, "namespace": "team", "uid": f"{kind.lower()}-{name}-0000-4000-8000",
            "resourceVersion": str(self.version), "creationTimestamp": CREATED,
            "labels": {"app": name, "kueue.x-k8s.io/queue-name": "main"},
            "annotations": body.pop("annotations", {}), "ownerReferences": [owner] if owner else [],
            "managedFields": [{"manager": "controller", "fieldsV1": {"f:spec": {"f:x": {}}}}] * 3,
        }  # fmt: skip
        made = {"metadata": meta, **body}
        self.objects[path].append(made)
        self.version += 1
        return made

    def _pod(self, name: str, owner: Json, workload: str) -> None:
        state = {"running": {"startedAt": CREATED}}
        resources = {"limits": {GPU: "1"}, "requests": {GPU: "1", "cpu": "8", "memory": "64Gi"}}
        env = [{"name": f"VARIABLE_{i}", "value": "x" * 40} for i in range(20)]
        self._add(
            PODS, "Pod", name, owner, annotations={"kueue.x-k8s.io/workload": workload},
            spec={
                "nodeName": "gpu-1",
                "restartPolicy": "Always",
                "containers": [{"name": "main", "image": "x:1", "env": env, "resources": resources}],
            },
            status={
                "phase": "Running",
                "startTime": CREATED,
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": CREATED}],
                "containerStatuses": [{"name": "main", "restartCount": 0, "state": state}],
            },
        )  # fmt: skip

    def _workload(self, name: str, owner: Json, pods: int) -> None:
        container = {"name": "main", "resources": {"limits": {GPU: "1"}}}
        pod_set = {"name": "main", "count": pods, "template": {"spec": {"containers": [container]}}}
        usage = {"flavors": {GPU: "gpu"}, "resourceUsage": {GPU: str(pods)}}
        self._add(
            WORKLOADS, "Workload", name, owner,
            spec={"active": True, "queueName": "main", "podSets": [pod_set]},
            status={
                "admission": {"clusterQueue": "team", "podSetAssignments": [usage]},
                "conditions": [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": CREATED}],
            },
        )  # fmt: skip

    def _deployment(self, name: str) -> None:
        self._add("/apis/apps/v1/deployments", "Deployment", name)
        deployment = _reference("apps/v1", "Deployment", name)
        self._add("/apis/apps/v1/replicasets", "ReplicaSet", f"{name}-a", deployment)
        for i in range(2):
            self._pod(f"{name}-a-{i}", _reference("apps/v1", "ReplicaSet", f"{name}-a"), f"pod-{name}-a-{i}")
            self._workload(f"pod-{name}-a-{i}", _reference("v1", "Pod", f"{name}-a-{i}"), 1)

    def _job_set(self, name: str) -> None:
        api_version = "jobset.x-k8s.io/v1alpha2"
        self._add(f"/apis/{api_version}/jobsets", "JobSet", name)
        owner = _reference(api_version, "JobSet", name)
        template = {"spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: "1"}}}]}}
        self._add(JOBS, "Job", f"{name}-w", owner, spec={"parallelism": 4, "template": template}, status={})
        self._workload(f"jobset-{name}", owner, 4)
        for i in range(4):
            self._pod(f"{name}-w-{i}", _reference("batch/v1", "Job", f"{name}-w"), f"jobset-{name}")

    def change(self, index: int) -> str:
        """A pod reports something else: its event goes out, and its name comes back."""
        pod = self.objects[PODS][index]
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        pod["status"]["phase"] = "Failed"
        end = {"terminated": {"exitCode": 1, "startedAt": CREATED, "finishedAt": "2026-11-18T13:00:00Z"}}
        pod["status"]["containerStatuses"][0]["state"] = end
        line = msgspec.json.encode({"type": "MODIFIED", "object": pod}) + b"\n"
        for queue in self.watches[PODS]:
            queue.put_nowait(line)
        return str(pod["metadata"]["name"])

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        path, params = request.url.path, request.url.params
        if "watch" in params:
            return httpx2.Response(200, content=self._watch(path))
        version = path.removeprefix("/apis/").removeprefix("/api/")
        if version in KINDS:
            found = [{"name": p, "kind": k, "namespaced": True} for k, p in KINDS[version].items()]
            return httpx2.Response(200, json={"resources": found})
        path = path.replace("/namespaces/team", "")
        first, limit = int(params.get("continue") or 0), int(params.get("limit") or 500)
        items = self.objects[path]
        more = str(first + limit) if first + limit < len(items) else ""
        page = {"metadata": {"resourceVersion": str(self.version), "continue": more}}
        body = json.dumps({**page, "items": items[first : first + limit]}).encode()
        await asyncio.sleep(0)
        return httpx2.Response(200, content=body)

    async def _watch(self, path: str) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.watches[path].append(queue)
        try:
            yield b""
            while True:
                lines = [await queue.get()]
                while not queue.empty():
                    lines.append(queue.get_nowait())
                yield b"".join(lines)
        finally:
            self.watches[path].remove(queue)


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def _bare(client: httpx2.AsyncClient, told: dict[str, float]) -> None:
    """The bare way: one watch, each line decoded to its name."""
    event, named = msgspec.json.Decoder(_Event), msgspec.json.Decoder(_Named)
    async with client.stream("GET", PODS, params={"watch": "true"}) as lines:
        async for line in lines.aiter_lines():
            name = named.decode(event.decode(line).object).metadata.name
            told.setdefault(name, time.perf_counter())


async def _follow(mirror: KubernetesMirror, mark: str, fleet: Fleet, told: dict[str, float]) -> None:
    while True:
        batch = await mirror.changes(mark, fleet)
        mark, now = batch.mark, time.perf_counter()
        for job in batch.jobs:
            for attempt in job.attempts:
                if attempt.ended_at is not None and attempt.replica:
                    told.setdefault(attempt.replica, now)


async def _measure(count: int, size: str) -> Figure:
    server = PlayedServer(count)
    cluster = Cluster(ClusterName("bench"), KubernetesConnection("/none"))
    pool = Pool(PoolName("gpu"), cluster.name, A100, Capacity.OWNED, Decimal(1), KubernetesPlace(PRODUCT))
    fleet = Fleet("bench", "USD", (cluster,), (pool,), (Team(TeamName("team"), priorities=PRIORITIES),))

    def client() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(server.answer), base_url=SERVER, timeout=600)

    async def connect(_: KubernetesConnection) -> ApiServer:
        return ApiServer(client(), SERVER)

    mirror = KubernetesMirror(ApiConnection(cluster, 60, connect=connect), fleet.pools)
    rss, began = _rss_mb(), time.perf_counter()
    whole = await mirror.changes(None, fleet)
    catch_up, grown = time.perf_counter() - began, _rss_mb() - rss
    objects = sum(len(server.objects[path]) for path in (PODS, WORKLOADS, JOBS))
    ours: dict[str, float] = {}
    bare: dict[str, float] = {}
    asked: dict[str, float] = {}
    tasks = [
        asyncio.create_task(_follow(mirror, whole.mark, fleet, ours)),
        asyncio.create_task(_bare(client(), bare)),
    ]
    while len(server.watches[PODS]) < 2:
        await asyncio.sleep(0.05)
    replicas = [i for i, pod in enumerate(server.objects[PODS]) if pod["metadata"]["name"].startswith("chat")]
    changes = min(SECONDS * A_SECOND, len(replicas))
    for number in range(changes):
        name = server.change(replicas[number])
        asked[name] = time.perf_counter()
        await asyncio.sleep(1 / A_SECOND)
    for _ in range(200):
        if len(ours) == len(bare) == changes:
            break
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await mirror.close()
    delays = [sorted(told[name] - at for name, at in asked.items() if name in told) for told in (ours, bare)]
    return Figure(
        "mirror-workloads", size, _at(delays[0], 99), _at(delays[1], 99), "s", TARGET,
        "the API server is played in the same process, so the bare watch waits for nothing but the mirror, "
        "which gathers for 20 ms",
        {
            "workloads": len(whole.jobs), "objects": objects, "pods": len(server.objects[PODS]),
            "changes": f"{len(delays[0])} of {changes}, bare {len(delays[1])}",
            "p50_s": round(statistics.median(delays[0]), 4),
            "bare_p50_s": round(statistics.median(delays[1]), 4),
            "catch_up_s": round(catch_up, 2), "memory_grown_mb": round(grown, 1),
            "bytes_an_object": round(grown * 1e6 / objects),
        },
        most=MOST,
    )  # fmt: skip


def _at(values: list[float], percent: int) -> float:
    return values[min(len(values) - 1, len(values) * percent // 100)] if values else float("inf")


async def run(size: str) -> list[Figure]:
    """small: 500 workloads. A number: as many, half of them Deployments and half JobSets."""
    return [await _measure(SMALL if size == "small" else int(size), size)]
