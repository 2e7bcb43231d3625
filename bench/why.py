"""`why` for jobs of a long queue, and the snapshot that forecasts begin with, beside plain reads of the rows.

A virtual cluster of 1,000 nodes runs 2,000 jobs, and 10,000 wait; observed and mirrored into a PostgreSQL of
its own, as a server does. `why` is the whole answer of the service: engine, ledger, queue, forecast, help.
"""

from __future__ import annotations

import logging
import random
import statistics
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

import psycopg
import structlog

from bench.figure import Figure, median
from bench.ledger import own_server
from fairway.engines.virtual.engine import VirtualEngine
from fairway.ledger import Lease, Ledger
from fairway.ledger.connection import ConnectionLimits
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.job import JobId
from fairway.model.names import ClusterName, PoolName, TeamName, UserName
from fairway.model.team import Grant, Supply, Team
from fairway.policy.plan import compute_changes
from fairway.server import collect_garbage_less_often
from fairway.services.convert import jobs as convert
from fairway.services.engine_cache import EngineCache
from fairway.services.fleets import Fleets
from fairway.services.snapshots import SnapshotReader
from fairway.services.start_forecasts import ForecastTask, StartForecaster, compute_forecast
from fairway.services.why import JobExplainer
from fairway.simulate.cluster import JobRequest
from fairway.simulate.restore import SnapshotPlan
from fairway.simulate.starts import StartForecast

LAB, POOL = ClusterName("lab"), PoolName("gpu")
TEAMS = 50
SIZES = {"small": (100, 200, 1000), "10000": (1000, 2000, 10_000)}
"""Nodes, running and waiting jobs."""
ROUNDS = 60
MOST_SECONDS = 0.2
SNAPSHOT_SECONDS = 1.0
BARE = (
    "SELECT * FROM device JOIN node ON node.cluster = device.cluster AND node.name = device.node",
    "SELECT job.*, job_class.* FROM job JOIN job_class ON job_class.id = class WHERE state = 'waiting'",
    "SELECT job.*, attempt.nodes FROM job JOIN attempt ON attempt.job = job.id WHERE state = 'running'",
)
AHEAD = "SELECT count(*), sum(devices) FROM job WHERE state = 'waiting' AND submitted_at < %s"


def fleet(nodes: int) -> Fleet:
    pool = Pool(
        POOL, LAB, GpuType("A100-80GB", 80), Capacity.OWNED, Decimal(1), VirtualPlace(nodes, gpus_per_node=8)
    )
    teams = tuple(
        Team(
            TeamName(f"team-{n}"),
            grants=(Grant(Supply(POOL), 8 if n < TEAMS // 2 else 0),),
            priorities=(),
            members=(UserName(f"user-{n}"),),
        )
        for n in range(TEAMS)
    )
    return Fleet("bench", "USD", (Cluster(LAB, VirtualConnection()),), (pool,), teams)


def requests(running: int, waiting: int, nodes: int) -> list[JobRequest]:
    """Return what fills the cluster with so many jobs, and what waits behind them."""
    chance = random.Random(1)
    each = max(1, 8 * nodes // running)

    def one(gpus: int, wide: int, seconds: float) -> JobRequest:
        number = chance.randrange(TEAMS)
        return JobRequest(
            UserName(f"user-{number}"),
            POOL,
            gpus,
            wide,
            team=TeamName(f"team-{number}"),
            seconds=seconds,
            limit_seconds=86_400.0,
            name=f"train-{chance.randrange(1000)}",
        )

    first = [one(each, 1, chance.uniform(40_000, 80_000)) for _ in range(running)]
    return first + [
        one(chance.choice([2, 4, 8]), chance.choice([1, 1, 1, 2, 4]), chance.uniform(600, 80_000))
        for _ in range(waiting)
    ]


async def take(ledger: Ledger, loop: str) -> Lease:
    lease = await ledger.leases.take(loop, LAB, "bench", 600)
    assert lease is not None
    return lease


async def fill(ledger: Ledger, engine: VirtualEngine, jobs: list[JobRequest], plan: Fleet) -> None:
    """Submit the jobs to the engine, and store what it shows, as the loops do."""
    await ledger.revisions.add("bench", "bench", "bench")
    found = await engine.find_policy()
    for change in compute_changes(engine.translate(plan, found), found):
        async for _ in engine.write([change]):
            pass
    await engine.observe()
    engine.simulator.submit_many(jobs)
    async with ledger.writing(await take(ledger, "observe")) as tx:
        await tx.observations.write(await engine.observe())
    lease = await take(ledger, "mirror")
    batch = await engine.changes(None, plan)
    for first in range(0, len(batch.jobs), 1000):
        async with ledger.writing(lease) as tx:
            await tx.mirror.write_jobs(batch.jobs[first : first + 1000], None, complete=False)


async def compute(task: ForecastTask) -> Mapping[JobId, StartForecast]:
    return compute_forecast(task)


async def snapshot_figure(ledger: Ledger, fleets: Fleets, url: str, size: str) -> Figure:
    """Measure reading a snapshot and restoring a simulated cluster of it, beside reading the rows alone."""
    ours: list[float] = []
    restores: list[float] = []
    bare: list[float] = []
    snapshot = await SnapshotReader(ledger, fleets).read(LAB)
    assert snapshot is not None
    for _ in range(5):
        began = time.perf_counter()
        snapshot = await SnapshotReader(ledger, fleets).read(LAB) or snapshot
        read = time.perf_counter()
        SnapshotPlan(snapshot).restore(lambda _: 3600.0)
        ended = time.perf_counter()
        ours.append(ended - began)
        restores.append(ended - read)
        with psycopg.connect(url) as db:
            began = time.perf_counter()
            for query in BARE:
                db.execute(query).fetchall()
            bare.append(time.perf_counter() - began)
    return Figure(
        "why: snapshot",
        size,
        median(ours),
        median(bare),
        "s",
        30.0,
        "objects of Python for each job: rows, requests, jobs of the simulator",
        details={
            "restore": round(median(restores), 3),
            "running": len(snapshot.running),
            "waiting": len(snapshot.waiting),
            "nodes": len(snapshot.nodes),
        },
        most=SNAPSHOT_SECONDS,
    )


async def run(size: str) -> list[Figure]:
    """`small`: 100 nodes and 1,000 waiting jobs; `10000`: 1,000 nodes and 10,000."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    collect_garbage_less_often()  # as a server does
    nodes, running, waiting = SIZES[size]
    plan = fleet(nodes)
    cluster, pools = plan.engine_parts(LAB)
    engine = VirtualEngine(cluster, pools)
    with own_server() as (url, _):
        ledger = await Ledger.connect(url, ConnectionLimits())
        await ledger.migrate()
        try:
            fleets = Fleets(ledger, lambda _: plan)
            await fill(ledger, engine, requests(running, waiting, nodes), plan)
            with psycopg.connect(url, autocommit=True) as db:
                db.execute("ANALYZE")
            found = [await snapshot_figure(ledger, fleets, url, size)]
            forecaster = StartForecaster(ledger, SnapshotReader(ledger, fleets), compute, waited_seconds=0)
            began = time.perf_counter()
            forecast = await forecaster.forecast(LAB)
            took = time.perf_counter() - began
            assert forecast is not None
            async with ledger.writing(await take(ledger, "starts")) as tx:
                await tx.job_forecasts.write(forecast.jobs, datetime.now(UTC))
            explainer = JobExplainer(ledger, fleets, EngineCache(lambda _cluster, _pools: engine))
            ids = random.Random(1).sample([f.job for f in forecast.jobs], ROUNDS)
            chosen = await ledger.jobs.rows(ids)
            times: list[float] = []
            bare: list[float] = []
            known = 0
            with psycopg.connect(url) as db:
                for row in (chosen[0], *chosen):
                    began = time.perf_counter()
                    detail = await ledger.jobs.one(row.id)
                    assert detail is not None
                    why = await explainer.why(convert.job_detail(detail, readable=True), detail)
                    times.append(time.perf_counter() - began)
                    known += why.expected is not None and not why.expected.unknown
                    began = time.perf_counter()
                    db.execute(AHEAD, (row.submitted_at,)).fetchall()
                    bare.append(time.perf_counter() - began)
            found.append(
                Figure(
                    "why: p95",
                    size,
                    statistics.quantiles(times[1:], n=20)[-1],
                    statistics.quantiles(bare[1:], n=20)[-1],
                    "s",
                    100.0,
                    "counting the jobs ahead, in the engine and by team in PostgreSQL",
                    details={
                        "median": round(median(times[1:]), 4),
                        "with a forecast": f"{known - 1} of {len(chosen)}",
                        "first round of forecasts, s": round(took, 2),
                        "jobs forecast": sum(f.expected is not None for f in forecast.jobs),
                    },
                    most=MOST_SECONDS,
                )
            )
            return found
        finally:
            await ledger.close()
