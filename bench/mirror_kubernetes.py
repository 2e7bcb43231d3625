"""Changes of jobs on Kueue as Fairway's mirror tells them, beside a bare watch of the same Workloads.

So many Jobs wait in a queue that is on hold while others come, run and end. What is timed are changes made
here: a waiting job is held or released, and the clock runs from the request until it is told.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from pathlib import Path

import httpx2
import msgspec
import yaml

from bench.figure import Figure
from bench.fleets import A100, PRIORITIES, PRODUCT
from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.engines.port import Unreachable
from fairway.model.fleet import Capacity, Cluster, Fleet, KubernetesConnection, KubernetesPlace, Pool
from fairway.model.job import (
    ENDED_JOBS,
    EngineId,
    GpuRequest,
    JobId,
    JobSpec,
    JobState,
    Order,
    SeenJob,
    engine_name,
)
from fairway.model.names import ClusterName, PoolName, TeamName, UserName
from fairway.model.team import Grant, Supply, Team
from fairway.services.plans import blocking, plan_cluster, raise_if_blocked, write_plan
from lab import Instance, find
from lab.kubernetes import kwok
from lab.kubernetes.api import Api, ApiError, Json

TARGET = 3.0
SMALL, CHANGES, AT_ONCE = 40, 80, 4
MAX_SECONDS = 600.0
RUNS, WAITS = TeamName("bench-runs"), TeamName("bench-waits")
POOL = PoolName("gpu")
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Spec(msgspec.Struct, frozen=True):
    active: bool = True


class _Workload(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = _Spec()


class _Event(msgspec.Struct):
    type: str
    object: _Workload


class _List(msgspec.Struct):
    metadata: _Meta


def _fleet(instance: Instance) -> Fleet:
    cluster = Cluster(ClusterName("bench"), KubernetesConnection(instance.facts()["fairway_kubeconfig"]))
    pool = Pool(POOL, cluster.name, A100, Capacity.OWNED, Decimal(1), KubernetesPlace(PRODUCT))
    grant = (Grant(Supply(POOL), 16),)
    teams = (
        Team(RUNS, grants=grant, priorities=PRIORITIES),
        Team(WAITS, grants=grant, priorities=PRIORITIES, draining=True),
    )
    return Fleet("bench", "USD", (cluster,), (pool,), teams)


def _order(number: int, team: TeamName, seconds: int) -> Order:
    spec = JobSpec("bench", GpuRequest(1), ("x",), image="x:1", env={kwok.RUN_FOR_ENV: f"{seconds}s"})
    job = JobId(number)
    name = engine_name("b3nc", job, 1, spec.name)
    return Order(job, 1, name, spec, UserName("bench"), team, PRIORITIES[1], Supply(POOL))


async def _apply(engine: KubernetesEngine, fleet: Fleet) -> None:
    plan = await plan_cluster(engine, fleet, fleet.clusters[0].name)
    raise_if_blocked(blocking(plan, force=True))
    applied = await write_plan(engine, plan, force=True)
    if applied.refusal is not None:
        raise SystemExit(f"error: {applied.refusal}\n\nhint: {applied.refusal.hint}")


class _Told:
    """When each change was told first, by either way."""

    def __init__(self) -> None:
        self.asked: dict[tuple[str, bool], float] = {}
        self.ours: dict[tuple[str, bool], float] = {}
        self.bare: dict[tuple[str, bool], float] = {}
        self.seen: dict[EngineId, SeenJob] = {}
        self.batches = 0

    def delays(self, of: dict[tuple[str, bool], float]) -> list[float]:
        return sorted(of[key] - asked for key, asked in self.asked.items() if key in of)


async def _mirror(engine: KubernetesEngine, fleet: Fleet, told: _Told) -> None:
    mark: str | None = None
    while True:
        try:
            batch = await engine.changes(mark, fleet)
        except Unreachable:
            continue
        mark, now = batch.mark, time.perf_counter()
        told.batches += bool(batch.jobs)
        for job in batch.jobs:
            told.seen[job.engine_id] = job
            if job.state in {JobState.HELD, JobState.WAITING}:
                told.ours.setdefault((job.engine_id.split("/")[1], job.state is JobState.HELD), now)


async def _watch(client: httpx2.AsyncClient, told: _Told) -> None:
    """The bare way: one watch, each line decoded to three fields."""
    event = msgspec.json.Decoder(_Event)
    listed = msgspec.json.decode((await client.get(WORKLOADS, params={"limit": "1"})).content, type=_List)
    params = {"watch": "true", "resourceVersion": listed.metadata.resource_version}
    async with client.stream("GET", WORKLOADS, params=params) as lines:
        async for line in lines.aiter_lines():
            seen = event.decode(line).object
            name = seen.metadata.name.removeprefix("job-").rpartition("-")[0]
            key = (name, not seen.spec.active)
            if key in told.asked:
                told.bare.setdefault(key, time.perf_counter())


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@asynccontextmanager
async def _client(instance: Instance) -> AsyncIterator[httpx2.AsyncClient]:
    config = yaml.safe_load(Path(instance.facts()["fairway_kubeconfig"]).read_text())
    server = config["clusters"][0]["cluster"]["server"]
    headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
    async with httpx2.AsyncClient(base_url=server, headers=headers, verify=False, timeout=600) as client:
        yield client


async def _run_others(engine: KubernetesEngine, fleet: Fleet, told: _Told, first: int) -> None:
    """Eight jobs of a second, and when they are over the next eight."""
    while True:
        orders = [_order(first + i, RUNS, 1) for i in range(8)]
        first += 8
        ids: list[EngineId | None] = []
        with suppress(Unreachable):
            ids = [sent.engine_id async for sent in engine.submit(orders, fleet)]
        for _ in range(120):
            if all((job := told.seen.get(i)) and job.state in ENDED_JOBS for i in ids if i is not None):
                break
            await asyncio.sleep(0.5)


async def _change(engine: KubernetesEngine, told: _Told, ids: list[EngineId]) -> None:
    """Hold each and let it go again, a few at a time."""
    few = asyncio.Semaphore(AT_ONCE)

    async def one(engine_id: EngineId) -> None:
        name = engine_id.split("/")[1]
        async with few:
            for hold in (True, False):
                told.ours.pop((name, hold), None)
                told.asked[name, hold] = time.perf_counter()
                try:
                    await (engine.hold if hold else engine.release)([engine_id])
                except Unreachable:  # a busy machine: what was not asked for is not timed
                    told.asked.pop((name, hold), None)
                    return
                for _ in range(100):
                    if (name, hold) in told.ours and (name, hold) in told.bare:
                        break
                    await asyncio.sleep(0.05)

    await asyncio.gather(*(one(engine_id) for engine_id in ids))


async def _measure(instance: Instance, count: int, size: str) -> Figure:
    fleet, told = _fleet(instance), _Told()
    engine = KubernetesEngine(fleet.clusters[0], fleet.pools)
    await _apply(engine, fleet)
    await asyncio.sleep(1)
    first = random.randrange(1 << 30, 1 << 31)
    async with _client(instance) as client:
        began = time.perf_counter()
        waiting = [
            s.engine_id
            async for s in engine.submit([_order(first + i, WAITS, 600) for i in range(count)], fleet)
        ]
        sent_seconds = time.perf_counter() - began
        ids = [engine_id for engine_id in waiting if engine_id is not None]
        rss = _rss_mb()
        tasks = [
            asyncio.create_task(_mirror(engine, fleet, told)),
            asyncio.create_task(_watch(client, told)),
            asyncio.create_task(_run_others(engine, fleet, told, first + count)),
        ]
        queued = await _until_queued(engine, fleet, told, ids)
        chosen = random.sample(queued, min(CHANGES, len(queued)))
        await _change(engine, told, chosen)
        grown = _rss_mb() - rss
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await engine.close()
        again = KubernetesEngine(fleet.clusters[0], fleet.pools)
        began = time.perf_counter()
        whole = await again.changes("an older mark", fleet)
        catch_up = time.perf_counter() - began
        await again.close()
    ours, bare = told.delays(told.ours), told.delays(told.bare)
    return Figure(
        "mirror-kubernetes", size, _at(ours, 99), _at(bare, 99), "s", TARGET,
        "Kueue and the API server share the cores with both ways; the mirror gathers for 20 ms",
        {
            "waiting": len(queued), "sent": len(ids),
            "changes": f"{len(ours)} of {len(told.asked)}, bare {len(bare)}",
            "p50_s": round(statistics.median(ours), 4), "bare_p50_s": round(statistics.median(bare), 4),
            "submitted_per_s": round(len(ids) / sent_seconds, 1),
            "catch_up_s": round(catch_up, 3), "jobs_in_whole_batch": len(whole.jobs),
            "memory_grown_mb": round(grown, 1), "batches": told.batches,
        },
    )  # fmt: skip


async def _until_queued(
    engine: KubernetesEngine, fleet: Fleet, told: _Told, ids: list[EngineId]
) -> list[EngineId]:
    """Those that Kueue has taken in, all of them if time allows: it makes some 26 Workloads a second."""
    deadline = time.perf_counter() + MAX_SECONDS
    while True:
        queued = [i for i in ids if (job := told.seen.get(i)) is not None and job.reason]
        if len(queued) == len(ids) or time.perf_counter() > deadline:
            return queued
        await asyncio.sleep(1)


def _at(values: list[float], percent: int) -> float:
    return values[min(len(values) - 1, len(values) * percent // 100)] if values else float("inf")


def _clear(instance: Instance) -> None:
    api = Api.from_kubeconfig(Path(instance.env()["KUBECONFIG"]))

    def delete(job: Json) -> None:
        with suppress(ApiError):
            api.delete(f"{path}/{job['metadata']['name']}?propagationPolicy=Background")

    for team in (RUNS, WAITS):
        path = f"/apis/batch/v1/namespaces/{team}/jobs"
        with suppress(ApiError):
            api.each(delete, api.get(path)["items"])


async def run(size: str) -> list[Figure]:
    """small: 200 waiting jobs. A number: as many. On the lab's `kubernetes`, or FAIRWAY_BENCH_KUBERNETES."""
    name = os.environ.get("FAIRWAY_BENCH_KUBERNETES", "kubernetes")
    instance = find(name)
    if instance is None or instance.state == "down":
        raise SystemExit(f"error: the lab's {name} is not up\n\nhint: make lab-up")
    _clear(instance)
    try:
        return [await _measure(instance, SMALL if size == "small" else int(size), size)]
    finally:
        _clear(instance)
