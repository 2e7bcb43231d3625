"""Replay jobs under a fleet's rules and measure the result, beside the same jobs through a bare queue.

`--size JOBS` (small: 20000) on 1,000 nodes with 20 teams, on one core; `--size growth`: by jobs, nodes and
teams, one after the other. The jobs ask for 92 % of the cluster on average, more by day than by night, so
that a queue builds up each day, and for more with what they repeat after preemptions: half the cluster is
guaranteed, and of three priorities one is preemptible. Every job has a time limit.
"""

from __future__ import annotations

import random
import resource
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from heapq import heappop, heappush
from math import cos, pi

import fairway.simulate.cluster.scheduler as compiled_or_not
from bench.figure import Figure
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Grant, Supply, Team
from fairway.model.trace import TraceJob
from fairway.simulate.garbage import collect_garbage_less_often
from fairway.simulate.replay import RunMetrics, measure, replay

NODES, TEAMS = 1000, 20
MOST = 60.0
"""Microseconds a job: a million in a minute."""
TARGET = 40.0
"""About what that is beside a bare queue, which takes 1.5 µs a job."""
LOAD = 0.92
DAY = 86_400.0
LAB, POOL = ClusterName("lab"), PoolName("gpu")


@dataclass(frozen=True, slots=True)
class Case:
    """The size of one run."""

    jobs: int
    nodes: int = NODES
    teams: int = TEAMS

    @property
    def text(self) -> str:
        return f"{self.jobs:,} jobs, {self.nodes:,} nodes, {self.teams:,} teams"


def fleet(case: Case) -> Fleet:
    """Return a fleet with the case's teams in families of two, which share half the cluster by guarantee."""
    gpus = case.nodes * 8
    place = VirtualPlace(case.nodes, nodes_per_rack=16)
    pool = Pool(POOL, LAB, GpuType("A100-80GB", memory_gb=80), Capacity.OWNED, Decimal(2), place)
    return Fleet(
        "bench", "USD", (Cluster(LAB, VirtualConnection()),), (pool,), tuple(_teams(gpus, case.teams))
    )


def _teams(gpus: int, teams: int) -> Iterator[Team]:
    supply, families = Supply(POOL), max(1, teams // 2)
    priorities = tuple(PriorityName(name) for name in ("urgent", "normal", "low"))
    part = gpus // (2 * families)
    for family in range(families):
        name = TeamName(f"family-{family}")
        yield Team(name, None, 1 + family % 3, (Grant(supply, part, None),), priorities=priorities)
        for child in (2 * family, 2 * family + 1):
            grant = Grant(supply, part // 4, max(gpus // 4, part))
            yield Team(TeamName(f"team-{child}"), name, 1 + child % 2, (grant,), priorities=priorities)


def trace(case: Case) -> list[TraceJob]:
    """Return the jobs of the case, by arrival; the same for the same case."""
    dice = random.Random(20)
    gang = max(4, min(16, case.nodes // 60))
    shapes = [_shape(dice, gang) for _ in range(case.jobs)]
    devices = sum(nodes * gpus * seconds for nodes, gpus, seconds in shapes)
    rate = case.jobs * case.nodes * 8 * LOAD / devices
    at, found = 0.0, []
    priorities = (None, PriorityName("urgent"), PriorityName("low"))
    for nodes, gpus, seconds in shapes:
        at += dice.expovariate(rate * (1 - 0.2 * cos(2 * pi * at / DAY)))
        team = dice.randrange(case.teams)
        found.append(
            TraceJob(
                at,
                seconds,
                gpus,
                nodes,
                UserName(f"user-{team}"),
                TeamName(f"team-{team}"),
                limit_seconds=2 * seconds + 600,
                priority=dice.choices(priorities, (87, 5, 8))[0],
            )
        )
    return found


def _shape(dice: random.Random, gang: int) -> tuple[int, int, float]:
    nodes = dice.choices((1, 2, 4, gang), (93, 4, 2, 1))[0]
    gpus = 8 if nodes > 1 else dice.choices((1, 2, 4, 8), (50, 15, 15, 20))[0]
    return nodes, gpus, float(round(dice.lognormvariate(8, 1.2)) + 1)


def bare(case: Case, jobs: Sequence[TraceJob]) -> float:
    """First come, first served by a count of free GPUs: no teams, no nodes. Returns the mean wait."""
    free, waited = case.nodes * 8, 0.0
    queue: deque[TraceJob] = deque()
    ends: list[tuple[float, int]] = []
    for job in (*jobs, None):
        until = job.at if job is not None else float("inf")
        while ends and ends[0][0] <= until:
            now, gpus = heappop(ends)
            free += gpus
            while queue and queue[0].devices <= free:
                first = queue.popleft()
                free -= first.devices
                waited += now - first.at
                heappush(ends, (now + first.seconds, first.devices))
        if job is not None:
            if not queue and job.devices <= free:
                free -= job.devices
                heappush(ends, (until + job.seconds, job.devices))
            else:
                queue.append(job)
    return waited / len(jobs)


@dataclass(frozen=True, slots=True)
class Timing:
    """CPU seconds of one run."""

    replayed: float
    measured: float
    bare: float
    metrics: RunMetrics


def timing(case: Case) -> Timing:
    jobs, rules = trace(case), fleet(case)
    start = time.process_time()
    result = replay(rules, jobs)
    replayed = time.process_time()
    metrics = measure(result)
    measured = time.process_time()
    bare(case, jobs)
    return Timing(replayed - start, measured - replayed, time.process_time() - measured, metrics)


def is_compiled() -> bool:
    """Return whether the compiled scheduler is installed."""
    return not (compiled_or_not.__file__ or "").endswith(".py")


def figure(case: Case, size: str) -> Figure:
    """Run a case and tell what a job took."""
    took = timing(case)
    total, metrics = took.replayed + took.measured, took.metrics
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Figure(
        "simulate",
        size,
        total / case.jobs * 1e6,
        took.bare / case.jobs * 1e6,
        "µs a job",
        TARGET,
        "the compiled scheduler, then the replay's own Python" if is_compiled() else "Python, in small steps",
        {
            "case": case.text,
            "scheduler": "compiled" if is_compiled() else "pure Python",
            "seconds of CPU": f"{took.replayed:.1f}, measure {took.measured:.1f}, bare {took.bare:.1f}",
            "utilisation": f"{100 * metrics.utilisation:.1f} %",
            "waits": f"median {metrics.total.median_wait:.0f} s, p95 {metrics.total.p95_wait:.0f} s",
            "preemptions": metrics.preemptions,
            "memory": f"{memory:.0f} MiB at most so far",
        },
        most=MOST,
    )


GROWTH = (
    *(Case(jobs) for jobs in (10_000, 100_000, 1_000_000)),
    *(Case(100_000, nodes) for nodes in (100, 500, 2_000, 5_000)),
    *(Case(100_000, NODES, teams) for teams in (10, 100, 1_000)),
)


async def run(size: str) -> list[Figure]:
    collect_garbage_less_often()  # as the processes of a study do
    if size == "growth":
        return [figure(case, case.text) for case in GROWTH]
    return [figure(Case(20_000 if size == "small" else int(size)), size)]
