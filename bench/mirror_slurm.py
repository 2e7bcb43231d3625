"""How soon Fairway knows what happened to a job, beside whoever runs a bare `squeue` once a second meanwhile.

A queue of real jobs waits for slices that are taken, while others start and end on GPUs as fast as slurmctld
starts them. When a job started and ended is read from slurmctld's log, to the millisecond; Fairway knew of it
when the batch that has it came back. Size: how many jobs wait.
Bare: a second until the next squeue, and the slowest bare one in the same run.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench.figure import Figure, median
from fairway.engines.port import Unreachable
from fairway.engines.slurm.engine import SlurmEngine
from fairway.files import parse_fleet
from fairway.model.fleet import Fleet
from fairway.model.job import ENDED_JOBS, GpuRequest, JobId, JobSpec, JobState, Order, engine_name
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply
from lab import Instance
from lab.instance import obtain
from lab.slurm.fleet import POOLS
from lab.slurm.tokens import mint

TARGET = 1.5
LOOK_SECONDS = 1.0
FILL_SECONDS = float(os.environ.get("FAIRWAY_BENCH_FILL_SECONDS", "420"))
"""What is not queued by then, on a busy machine, comes as one native array: to a mirror as many lines."""
NODES = 8
SMALL = 1_000
RUN_SECONDS = 60
IN_FLIGHT = 200
GPU = Supply(PoolName("gpu"))
MIG = Supply(PoolName("mig"), SliceName("3g.40gb"))
FLEET = (
    """
apiVersion: fairway/v1alpha1
kind: Fleet
name: bench
currency: USD
clusters:
  lab:
    engine: slurm
    url: {url}
    tools: {tools}
    credentials: {{ user: {user}, jwt_key_file: {jwt_key_file} }}
"""
    + POOLS
    + """\
teams:
  lab: {{ share: 1, guarantee: {{ gpu: 16 }}, members: [alice] }}
"""
)
_STARTED = re.compile(r"\[(\S+)\] (?:sched: Allocate|sched/backfill: _start_job: Started) JobId=(\d+) ")
_ENDED = re.compile(r"\[(\S+)\] _job_complete: JobId=(\d+) done")
_numbers = itertools.count(1)


@dataclass
class Seen:
    """When Fairway first knew that a job ran, and that it was over."""

    mark: str | None = None
    running: dict[str, float] = field(default_factory=dict)
    over: dict[str, float] = field(default_factory=dict)
    looks: list[float] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)


async def run(size: str) -> list[Figure]:
    """One figure: the 99th percentile of the delay, in seconds."""
    queued = SMALL if size == "small" else int(size)
    instance = obtain("slurm", f"bench-mirror-{os.getpid()}", "24.11", {"nodes": NODES})
    await asyncio.to_thread(instance.up)
    try:
        return [await _measure(instance, queued)]
    finally:
        await asyncio.to_thread(instance.wipe)


async def _measure(instance: Instance, queued: int) -> Figure:
    fleet = parse_fleet(FLEET.format(**instance.facts()), "fleet.yaml")
    sender = SlurmEngine(fleet.clusters[0], fleet.pools, timeout_seconds=120)
    await _send(sender, fleet, [_order(MIG, "sleep", "86400") for _ in range(2)])
    began = time.perf_counter()
    sent = 0
    while sent < queued and time.perf_counter() - began < FILL_SECONDS:
        await _send(sender, fleet, [_order(MIG, "true") for _ in range(min(500, queued - sent))])
        sent += min(500, queued - sent)
    filling = time.perf_counter() - began
    if sent < queued:
        await asyncio.to_thread(_queue_array, instance, queued - sent)

    before = _resident()
    seen = Seen()
    bare: list[float] = []
    async with _mirroring(fleet, seen) as first_look:
        log = instance.log("slurmctld")
        position = log.stat().st_size
        loading = asyncio.create_task(_load(sender, fleet, seen))
        until = time.monotonic() + RUN_SECONDS
        while time.monotonic() < until:
            bare.append(await asyncio.to_thread(_bare_squeue, instance))
            await asyncio.sleep(5)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await asyncio.sleep(8)  # what was started ends, and is seen
    grown = _resident() - before
    starts, ends = _truth(log, position)
    late = sorted(_delays(starts, seen.running, seen.over) + _delays(ends, seen.over, seen.over))
    await _send(sender, fleet, [_order(GPU, "true") for _ in range(500)])  # while nobody looks
    await asyncio.sleep(15)
    again = Seen(mark=seen.mark)
    async with _mirroring(fleet, again) as catching_up:
        pass
    await sender.close()
    p50, p99 = late[len(late) // 2], late[min(len(late) - 1, int(len(late) * 0.99))]
    return Figure(
        "mirror_slurm",
        str(queued),
        p99,
        LOOK_SECONDS + max(bare),
        "s",
        TARGET,
        "one squeue a second; slurmctld, its nodes, Fairway and this load share the machine's cores",
        {
            "queued": len(again.waiting),
            "changes": len(late),
            "changes_a_second": round(len(late) / RUN_SECONDS, 1),
            "delay_p50_s": round(p50, 2),
            "delay_p99_s": round(p99, 2),
            "delay_most_s": round(late[-1], 2),
            "bare_squeue_s": [round(one, 2) for one in sorted(bare)],
            "look_median_s": round(median(seen.looks), 2),
            "first_look_s": round(first_look, 2),
            "catch_up_s": round(catching_up, 2),
            "memory_mb": round(grown / 2**20, 1),
            "most_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, 1),
            "sent_a_second": round(sent / filling, 1),
            "queued_as_array": queued - sent,
            "load": round(os.getloadavg()[0], 1),
        },
    )


@asynccontextmanager
async def _mirroring(fleet: Fleet, seen: Seen) -> AsyncIterator[float]:
    """A mirror of its own that looks all the while; gives how long its first look took."""
    engine = SlurmEngine(fleet.clusters[0], fleet.pools, timeout_seconds=120)

    async def look() -> None:
        began = time.perf_counter()
        batch = await engine.changes(seen.mark, fleet)
        now = time.time()
        seen.mark = batch.mark
        seen.looks.append(time.perf_counter() - began)
        for job in batch.jobs:
            if job.state is JobState.RUNNING:
                seen.running.setdefault(job.engine_id, now)
            elif job.state in ENDED_JOBS:
                seen.over.setdefault(job.engine_id, now)
            (seen.waiting.add if job.state is JobState.WAITING else seen.waiting.discard)(job.engine_id)

    async def for_ever() -> None:
        while True:
            await look()

    began = time.perf_counter()
    await look()
    first = time.perf_counter() - began
    looking = asyncio.create_task(for_ever())
    try:
        yield first
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await engine.close()


async def _load(engine: SlurmEngine, fleet: Fleet, seen: Seen) -> None:
    """Short jobs, always more of them than run: Slurm starts and ends them at its own rate."""
    sent = 0
    while True:
        if sent - len(seen.over) < IN_FLIGHT:
            await _send(engine, fleet, [_order(GPU, "true") for _ in range(50)])
            sent += 50
        await asyncio.sleep(0.05)


async def _send(engine: SlurmEngine, fleet: Fleet, orders: list[Order]) -> None:
    """All of them; what a busy slurmctld left unanswered is sent again, perhaps twice: here it is no harm."""
    for _ in range(20):
        left = {order.job: order for order in orders}
        try:
            async for sent in engine.submit(orders, fleet):
                if sent.refusal is not None:
                    raise sent.refusal
                del left[sent.order.job]
        except Unreachable:
            orders = list(left.values())
            await asyncio.sleep(2)
            continue
        return
    raise RuntimeError("slurmctld took no more jobs")


def _queue_array(instance: Instance, tasks: int) -> None:
    resource = ("--partition=mig", "--gres=gpu:3g.40gb:1", "--time=1-0")
    nowhere = ("--chdir=/tmp", "--output=/dev/null", "--wrap=true")
    instance.run("sbatch", f"--array=0-{tasks - 1}", *resource, *nowhere, user="alice")


def _order(supply: Supply, *command: str) -> Order:
    number = JobId(next(_numbers))
    return Order(
        number,
        1,
        engine_name("bnch", number, 1, "job"),
        JobSpec("job", GpuRequest(1), command=command, time_seconds=86_400, workdir="/tmp"),
        UserName("alice"),
        TeamName("lab"),
        PriorityName("normal"),
        supply,
    )


def _bare_squeue(instance: Instance) -> float:
    """The tool alone, what it prints thrown away."""
    facts = instance.facts()
    token = mint(Path(facts["jwt_key_file"]).read_bytes(), facts["user"])
    program = f"{facts['tools']}/squeue"
    began = time.perf_counter()
    pid = os.posix_spawn(
        program,
        [
            program,
            "--noheader",
            "--array",
            "--states=all",
            "--format=%i %T %u %a %P %V %S %e %l %r %D %N %b %j",
        ],
        {"PATH": os.defpath, "SLURM_JWT": token, "SLURM_TIME_FORMAT": "%s"},
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"squeue ended with {status}")
    return time.perf_counter() - began


def _truth(log: Path, position: int) -> tuple[dict[str, float], dict[str, float]]:
    """When slurmctld started and ended each job, by its log from a position on."""
    starts, ends = dict[str, float](), dict[str, float]()
    with log.open(errors="replace") as lines:
        lines.seek(position)
        for line in lines:
            for pattern, table in ((_STARTED, starts), (_ENDED, ends)):
                if found := pattern.match(line):
                    table.setdefault(
                        found[2], datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()
                    )
    return starts, ends


def _delays(truth: dict[str, float], seen: dict[str, float], ended: dict[str, float]) -> list[float]:
    """Of what was never seen, for it was over by the next look, the delay is until then."""
    known = {job: seen.get(job, ended.get(job)) for job in truth}
    missed = [job for job, when in known.items() if when is None]
    if len(missed) > len(truth) // 100:
        raise RuntimeError(f"{len(missed)} of {len(truth)} changes were never seen: {missed[:5]}")
    return [when - truth[job] for job, when in known.items() if when is not None]


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
