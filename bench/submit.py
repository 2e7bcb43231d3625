"""Jobs through Fairway until the engine has them, beside the very same jobs sent bare.

Fairway's half is a real server: one request with all jobs, then the wait until the ledger has heard of each
engine job. The bare half sends what Fairway would send (the same bodies, other names) by a plain client over
as many connections. Jobs ask for a whole node, so all but a few wait: starting them is not what is compared.
Slurm remembers ended jobs for a while, and each makes the next submit dearer: 2,000 bare ones took 4.3 s on a
controller that remembered none and 12.2 s after 4,000. So the bare half runs before and after, and counts
with the mean of both.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec

from bench.figure import Figure, median
from bench.lab_server import NAME, USER, WAIT_SECONDS, apply_by, apply_policy, cancel_all, lab_fleet, server
from fairway.client.client import Client
from fairway.client.contexts import Target
from fairway.engines.kubernetes.api.client import connect, connection_of
from fairway.engines.kubernetes.api.errors import ApiCall
from fairway.engines.kubernetes.jobs.manifest import job_manifest
from fairway.engines.slurm.jobs.submit import SubmitContext, body
from fairway.engines.slurm.policy.partitions import sites
from fairway.model.errors import FairwayError
from fairway.model.fleet import (
    Fleet,
)
from fairway.model.job import GpuRequest, JobId, JobSpec, Order, engine_name
from fairway.model.names import PoolName
from fairway.wire import jobs as job_wire
from lab import Instance, find
from lab.slurm.tokens import mint

TARGET: Final = 1.25
"""At least 0.8 of what the bare engine takes in."""
SIZES: Final = {"small": 100, "500": 500, "2000": 2000}
SINGLES: Final = {"small": 10, "500": 20, "2000": 50}
INSTANCES: Final = ("slurm-24", "slurm-26", "kubernetes")
CONNECTIONS: Final = {"slurm": 8, "kubernetes": 16}
SPEC: Final = JobSpec(
    "bench", GpuRequest(8), command=("sleep", "600"), time_seconds=3600, image="none", pool=PoolName("gpu")
)

Send = Callable[[Order], Awaitable[None]]


async def _ours(fleet: Fleet, count: int, singles: int) -> tuple[float, list[float], list[float], float]:
    """Seconds for the batch; of single submits for the answer and until the engine has it; of the request."""

    def measure() -> tuple[float, list[float], list[float], float]:
        with server(fleet) as (url, token), Client(Target(url, token)) as client:
            apply_by(client, fleet)
            spec = job_wire.JobSpec.from_model(SPEC)
            answers, sent = [], []
            for _ in range(singles):
                start = time.perf_counter()
                (made,) = client.submit(spec, as_user=USER)
                answers.append(time.perf_counter() - start)
                while client.job(made.id).state == "queued":
                    time.sleep(0.02)
                sent.append(time.perf_counter() - start)
            start = time.perf_counter()
            client.submit([spec] * count, as_user=USER)
            answered = time.perf_counter() - start
            deadline = start + WAIT_SECONDS
            while any(row.state == "queued" for row in client.job_counts()):
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"not all of {count} jobs were sent")
                time.sleep(0.2)
            whole = time.perf_counter() - start
            refused = list(client.jobs(states=["refused"], most=1))
            if refused:
                raise RuntimeError(f"refused: {refused[0].reason}")
            return whole, answers, sent, answered

    return await asyncio.to_thread(measure)


def _orders(fleet: Fleet, count: int) -> Iterator[Order]:
    team = fleet.teams[0]
    priority = next(p.name for p in fleet.priorities if p.default)
    mark = "".join(reversed(f"{time.time_ns():x}"))[:4]
    for number in itertools.islice(itertools.count(1), count):
        name = engine_name(mark, JobId(number), 1, SPEC.name)
        yield Order(JobId(number), 1, name, SPEC, USER, team.name, priority, fleet.pools[0].supplies[0])


async def _bare(instance: Instance, fleet: Fleet, count: int, singles: int) -> tuple[float, list[float]]:
    """The same bodies over a plain client; first a few one after the other."""
    async with _plain(instance, fleet) as send:
        orders = list(_orders(fleet, count + singles))
        one: list[float] = []
        for order in orders[:singles]:
            start = time.perf_counter()
            await send(order)
            one.append(time.perf_counter() - start)
        left = iter(orders[singles:])

        async def worker() -> None:
            for order in left:
                await send(order)

        start = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(CONNECTIONS[instance.kind])))
        return time.perf_counter() - start, one


@asynccontextmanager
async def _plain(instance: Instance, fleet: Fleet) -> AsyncIterator[Send]:
    cluster = fleet.clusters[0]
    if instance.kind == "slurm":
        facts = instance.facts()
        terms = SubmitContext(
            sites(fleet, NAME, {})[0],
            cluster.folders,
            next(p.name for p in fleet.priorities if p.default),
        )
        key = await asyncio.to_thread(Path(facts["jwt_key_file"]).read_bytes)
        headers = {"X-SLURM-USER-NAME": USER, "X-SLURM-USER-TOKEN": mint(key, USER)}
        async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:

            async def post(order: Order) -> None:
                whole = msgspec.json.encode(body(order, terms))
                how = {"Content-Type": "application/json"}
                answer = await http.post(
                    f"{facts['url']}/slurm/v0.0.42/job/submit", content=whole, headers=how
                )
                answer.raise_for_status()

            yield post
    else:
        api = await connect(connection_of(cluster))
        asked = ApiCall(api.server, "create", "jobs")
        try:

            async def create(order: Order) -> None:
                whole: Any = job_manifest(order, fleet, cluster)
                path = f"/apis/batch/v1/namespaces/{order.team}/jobs"
                status, said = await api.send("POST", path, asked, timeout_seconds=60, body=whole)
                if status != 201:
                    raise RuntimeError(said[:300])

            yield create
        finally:
            await api.close()


async def _measure(instance: Instance, size: str) -> list[Figure]:
    count, singles, fleet = SIZES[size], SINGLES[size], lab_fleet(instance)
    await apply_policy(instance, fleet)
    try:
        await cancel_all(instance)
        before, one = await _bare(instance, fleet, count, singles)
        await cancel_all(instance)
        ours, answers, sent, answered = await _ours(fleet, count, singles)
        await cancel_all(instance)
        after, _ = await _bare(instance, fleet, count, 0)
        bare = (before + after) / 2
    finally:
        await cancel_all(instance)
        await apply_policy(instance, replace(fleet, teams=()))
    batch = Figure(
        f"submit {count} jobs to {instance.name}",
        size,
        ours,
        bare,
        "s",
        TARGET,
        "the engine's own submits, and two short writes in the ledger around each batch",
        {
            "jobs_per_s": round(count / ours, 1),
            "bare_jobs_per_s": round(count / bare, 1),
            "of_bare": round(bare / ours, 3),
            "bare_before_and_after_s": f"{before:.2f}, {after:.2f}",
            "answered_after_s": round(answered, 3),
            "connections": CONNECTIONS[instance.kind],
        },
    )
    single = Figure(
        f"submit one job to {instance.name}",
        size,
        median(answers),
        median(one),
        "s",
        10.0,
        "a request to the server and a write in the ledger",
        {"until_the_engine_has_it_s": round(median(sent), 3), "rounds": singles},
    )
    return [batch, single]


async def run(size: str) -> list[Figure]:
    """Two figures for each engine that is up."""
    figures: list[Figure] = []
    for name in _chosen():
        instance = find(name)
        if instance is None or instance.state != "up":
            print(f"submit: {name} is not up, left out (make lab-up)")
            continue
        try:
            figures += await _measure(instance, size)
        except (FairwayError, TimeoutError, RuntimeError, httpx2.HTTPError) as error:
            print(f"submit: {name} could not be measured: {type(error).__name__}: {error}")
    return figures


def _chosen() -> Sequence[str]:
    """FAIRWAY_BENCH_ON names the lab's instances, else the usual ones."""
    return (
        os.environ.get("FAIRWAY_BENCH_ON", "").split(",") if "FAIRWAY_BENCH_ON" in os.environ else INSTANCES
    )
