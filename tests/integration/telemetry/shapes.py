"""Hours of GPU use in each shape, made in seconds: stored in a real Prometheus, and read by the loop.

The time is in the future of the test: jobs of real engines have begun now, and have run for hours then.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NoReturn

import psycopg
import pytest

from fairway.control.loops.telemetry import ReadTelemetry
from fairway.engines.port import Mirrors
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.fleet import Cluster, Fleet, Pool, Telemetry
from fairway.model.job import JobId, JobState
from fairway.model.names import UserName
from fairway.services.engine_cache import EngineCache
from fairway.services.fleets import Fleets, LastApplied
from fairway.services.jobs import explain_job
from fairway.services.rights import Person
from fairway.services.why import JobExplainer
from fairway.wire import jobs as wire
from lab import Instance, obtain
from lab.gpus.backfill import backfill
from lab.gpus.dcgm import Options
from lab.gpus.fleet import Fleet as Exporters
from lab.gpus.fleet import Node
from lab.gpus.shapes import Point
from tests.waiting import Deadline

SPAN = 9000
"""Two and a half hours."""
CODES: Mapping[str, str | None] = {
    "good": None,
    "loader": "CpuBound",
    "io": "IoBound",
    "copy": "CopyBound",
    "small": "KernelsTooSmall",
    "comm": "CommunicationBound",
    "idle": "Abandoned",
    "unused": "GpuNeverOpened",
    "some-unused": "SomeGpusUnused",
    "memory-bound": "MemoryBound",
    "no-tensor": "NoTensorCores",
    "too-large": "GpuTooLarge",
}
GPUS = {"good": 2, "comm": 2, "some-unused": 2}
"""One, of the others."""


@pytest.fixture
def prometheus() -> Iterator[Instance]:
    instance = obtain("prometheus", f"test-{os.getpid()}-shapes", None, {})
    try:
        instance.up()
        yield instance
    finally:
        instance.wipe()


@dataclass(frozen=True)
class Held:
    """Where a job's GPUs are, and what exporters call it there."""

    node: str
    holder: str
    gpus: tuple[int, ...]


def holdings(url: str, jobs: Sequence[JobId]) -> dict[JobId, list[Held]]:
    """Where jobs hold GPUs, as the ledger knows it. Where it knows no indices, some that nobody has."""
    found: dict[JobId, list[Held]] = {}
    taken: dict[str, int] = {}
    with psycopg.connect(url) as db:
        rows = db.execute(
            "SELECT a.job, a.node, a.holders, a.gpus, job.gpus FROM attempt_gpu a JOIN job ON job.id = a.job"
            " WHERE a.job = ANY(%s) ORDER BY 1, 2",
            [list(jobs)],
        ).fetchall()
    for job, node, holders, indices, count in rows:
        first = taken.get(node, 0)
        taken[node] = first + count
        gpus = tuple(indices) or tuple(range(first, first + count))
        found.setdefault(JobId(job), []).append(Held(node, holders[0], gpus))
    return found


def serve(
    prometheus: Instance,
    shapes: Mapping[JobId, str],
    held: Mapping[JobId, Sequence[Held]],
    since: int,
    options: Options,
    points: Mapping[JobId, Sequence[Point]] | None = None,
) -> None:
    """Store what exporters would serve of jobs from `since` on."""
    count: dict[str, int] = {}
    for one in (one for places in held.values() for one in places):
        count[one.node] = max(count.get(one.node, 0), max(one.gpus) + 1)
    exporters = Exporters([Node(name, gpus) for name, gpus in count.items()], options)
    for job, places in held.items():
        for one in places:
            said: dict[str, Any] = {
                "job": one.holder,
                "node": one.node,
                "gpus": one.gpus,
                "shape": shapes[job],
                "start": float(since),
                "points": (points or {}).get(job, ()),
            }
            if "/" in one.holder:
                said["namespace"], _, said["pod"] = one.holder.partition("/")
            exporters.hold(said, float(since))
    backfill(prometheus, exporters, since, since + SPAN + 600)


async def started(
    ledger: Ledger, engine: Mirrors, fleet: Fleet, shapes: dict[str, str]
) -> tuple[dict[JobId, str], int]:
    """Follow jobs until all of them run. Returns their shapes, and when the last one began."""
    lease = await ledger.leases.take("mirror", fleet.clusters[0].name, "test", 600)
    assert lease is not None
    mark: str | None = None
    deadline = Deadline(60)
    while True:
        batch = await engine.changes(mark, fleet)
        mark = batch.mark
        async with ledger.writing(lease) as tx:
            await tx.mirror.write_jobs(batch.jobs, batch.mark)
        rows = await ledger.jobs.by_engine_ids(fleet.clusters[0].name, list(shapes))
        begun = [r.started_at.timestamp() for r in rows if r.state is JobState.RUNNING and r.started_at]
        if len(begun) == len(shapes):
            return {row.id: shapes[str(row.engine_id)] for row in rows}, int(max(begun)) + 1
        assert not deadline.passed, [(row.name, row.state, row.reason) for row in rows]
        await asyncio.sleep(0.2)


def no_engine(cluster: Cluster, pools: tuple[Pool, ...]) -> NoReturn:
    raise AssertionError("nobody needs an engine to diagnose a job")


async def diagnosed(
    prometheus: Instance, ledger: Ledger, url: str, fleet: Fleet, jobs: Sequence[JobId], since: int
) -> dict[JobId, wire.Why]:
    """Read what Prometheus has, as the loop of a server does hours later, and ask why of each job."""
    source = Telemetry(prometheus.env()["PROMETHEUS_URL"])
    fleet = replace(fleet, clusters=tuple(replace(c, telemetry=source) for c in fleet.clusters))
    name = fleet.clusters[0].name
    now = float(since + SPAN + 90)
    with psycopg.connect(url, autocommit=True) as db:  # as if jobs were followed until then
        db.execute("UPDATE mirror_mark SET at = to_timestamp(%s) WHERE cluster = %s", (now, name))
    await ledger.revisions.add("fleet", "digest", "test")
    fleets = Fleets(ledger, lambda _: fleet)
    loop = ReadTelemetry(name, source, ledger, LastApplied(name, ledger, fleets), clock=lambda: now)
    lease = await ledger.leases.take("telemetry", name, "test", 600)
    assert lease is not None
    async with ledger.writing(lease) as tx:
        await tx.gpu_use.start(since - since % 300, 60.0)
    for _ in range(2):  # a step reads two hours at most
        await loop(lease)
    await loop.close()
    explainer = JobExplainer(ledger, fleets, EngineCache(no_engine))
    anybody = Person(UserName("viewer"), Role.VIEWER, frozenset())
    said = {}
    for job in jobs:
        found = await ledger.jobs.one(job)
        assert found is not None
        moment = datetime.fromtimestamp(now, UTC)
        said[job] = await explain_job(ledger, fleets, explainer, found, anybody, moment)
    return said
