"""Jobs a second through the virtual engine's simulator, beside the same jobs through a bare queue.

`--size NODES` (small: 100) with 10 waiting jobs a node: 20 teams in 10 families, guarantees of half
the cluster, three priorities, gangs up to 16 nodes, a time limit on every job.
"""

from __future__ import annotations

import cProfile
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from heapq import heappop, heappush
from pathlib import Path

from bench.figure import Figure, median
from fairway.model.fleet import Capacity, Pool, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Grant, Supply, Team
from fairway.simulate.cluster import ClusterTerms, JobRequest, Simulator

GOAL = 20_000
"""Jobs a second that a replay of a million in a minute asks for, with room to spare."""
TARGET = 35.0
"""About what the goal is beside a bare queue, which takes 1.5 µs a job."""
POOL = PoolName("gpu")
FAMILIES = 10
USERS = {team: UserName(f"user-{team}") for team in range(2 * FAMILIES)}


@dataclass(frozen=True, slots=True)
class World:
    """A cluster, its terms, and jobs that keep it full with a queue behind."""

    pool: Pool
    terms: ClusterTerms
    backlog: tuple[JobRequest, ...]
    trace: tuple[JobRequest, ...]


def world(nodes: int, jobs: int, waiting: int) -> World:
    """The same for the same numbers."""
    dice = random.Random(20)
    gpu = GpuType("A100-80GB", memory_gb=80)
    pool = Pool(
        POOL, ClusterName("lab"), gpu, Capacity.OWNED, Decimal(1), VirtualPlace(nodes, nodes_per_rack=16)
    )
    teams = tuple(_teams(nodes * 8))
    gang = max(4, min(16, nodes // 60))
    requests = [_request(dice, gang) for _ in range(jobs + waiting)]
    default_teams = {user: TeamName(f"team-{number}") for number, user in USERS.items()}
    return World(
        pool,
        ClusterTerms(teams, default_teams=default_teams),
        tuple(requests[:waiting]),
        tuple(requests[waiting:]),
    )


def _teams(gpus: int) -> Iterator[Team]:
    supply = Supply(POOL)
    priorities = tuple(PriorityName(name) for name in ("urgent", "normal", "low"))
    for family in range(FAMILIES):
        name = TeamName(f"family-{family}")
        part = gpus // (2 * FAMILIES)
        yield Team(name, None, 1 + family % 3, (Grant(supply, part, None),), priorities=priorities)
        for child in (2 * family, 2 * family + 1):
            grant = Grant(supply, part // 4, gpus // 4)
            yield Team(
                TeamName(f"team-{child}"),
                name,
                1 + child % 2,
                (grant,),
                priorities=priorities,
                members=(USERS[child],),
            )


def _request(dice: random.Random, gang: int) -> JobRequest:
    nodes = dice.choices((1, 2, 4, gang), (93, 4, 2, 1))[0]
    gpus = 8 if nodes > 1 else dice.choices((1, 2, 4, 8), (50, 15, 15, 20))[0]
    seconds = float(round(dice.lognormvariate(7, 1)) + 1)
    priority = dice.choices((None, PriorityName("urgent"), PriorityName("low")), (80, 5, 15))[0]
    user = USERS[dice.randrange(2 * FAMILIES)]
    return JobRequest(
        user, POOL, gpus, nodes, seconds=seconds, limit_seconds=2 * seconds + 600, priority=priority
    )


def filled(world: World) -> Simulator:
    simulator = Simulator((world.pool,), world.terms, history_size=0)
    simulator.submit_many(world.backlog)
    return simulator


def keep_full(simulator: Simulator, trace: Iterable[JobRequest]) -> None:
    """As many jobs arrive as end, at the same moment: the queue stays as long as it is."""
    ended = simulator.ended
    for request in trace:
        while simulator.ended == ended:
            at = simulator.next_at()
            assert at is not None, "something always runs"
            simulator.advance(at)
        ended += 1
        simulator.submit(request)


def bare(world: World) -> int:
    """First come, first served by a count of free GPUs: no teams, no nodes. Gives how many ended."""
    place = world.pool.place
    assert isinstance(place, VirtualPlace)
    free, ended, now = place.nodes * 8, 0, 0.0
    queue = deque((r.gpus * r.nodes, r.seconds) for r in world.backlog)
    ends: list[tuple[float, int, int]] = []
    number = 0
    for request in world.trace:
        while queue and queue[0][0] <= free:
            gpus, seconds = queue.popleft()
            free -= gpus
            number += 1
            heappush(ends, (now + seconds, number, gpus))
        now, _, gpus = heappop(ends)
        free += gpus
        ended += 1
        queue.append((request.gpus * request.nodes, request.seconds))
    return ended


def profile(world: World) -> str:
    """Where the time goes, by module."""
    simulator = filled(world)
    profiler = cProfile.Profile()
    profiler.enable()
    keep_full(simulator, world.trace)
    profiler.disable()
    spent: dict[str, float] = {}
    for entry in profiler.getstats():
        code = entry.code
        module = "built-ins" if isinstance(code, str) else Path(code.co_filename).stem
        spent[module] = spent.get(module, 0.0) + entry.inlinetime
    total = sum(spent.values())
    most = sorted(spent.items(), key=lambda item: -item[1])[:6]
    return ", ".join(f"{name} {100 * part / total:.0f} %" for name, part in most)


async def run(size: str) -> list[Figure]:
    nodes = 100 if size == "small" else int(size)
    rounds = 3
    jobs, waiting = 30 * nodes, 13 * nodes  # some of them start at once
    made = world(nodes, jobs, waiting)
    ours: list[float] = []
    plain: list[float] = []
    events = ended = queued = 0
    for _ in range(rounds):
        simulator = filled(made)
        before, over = simulator.events, simulator.ended
        start = time.process_time()
        keep_full(simulator, made.trace)
        ours.append(time.process_time() - start)
        events, ended, queued = simulator.events - before, simulator.ended - over, simulator.waiting()
        start = time.process_time()
        bare(made)
        plain.append(time.process_time() - start)
    seconds = median(ours)
    per_second = jobs / seconds
    return [
        Figure(
            "virtual",
            size,
            seconds / jobs * 1e6,
            median(plain) / jobs * 1e6,
            "µs a job",
            TARGET,
            f"Python, in small steps: {profile(made)}",
            {
                "cluster": f"{nodes} nodes, {8 * nodes} GPUs, {queued} jobs waiting",
                "jobs a second": round(per_second),
                "events a second": round(events / seconds),
                "ended": ended,
                "of the later goal": f"{100 * per_second / GOAL:.0f} % of {GOAL} jobs a second",
            },
        )
    ]
