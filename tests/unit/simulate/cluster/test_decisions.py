"""Decisions of the virtual engine stay what they are; recorded ones, and one among very many jobs."""

from __future__ import annotations

import hashlib
import random
from decimal import Decimal

from fairway.model.fleet import Capacity, Pool, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Grant, Supply, Team
from fairway.simulate.cluster import ClusterTerms, JobRequest, SimState, Simulator

POOL = PoolName("gpu")
PRIORITIES = tuple(PriorityName(name) for name in ("urgent", "normal", "low"))
RECORDED = {
    1: "cae1fc890c907b67",
    2: "61ad58354524ae3a",
    3: "bffd5cda2a0f303b",
}
"""Of each load, what became of its jobs. A change here is a change of what users see: say so and why."""


def pool(nodes: int, gpus: int) -> Pool:
    place = VirtualPlace(nodes, gpus, nodes_per_rack=4)
    gpu = GpuType("A100-80GB", memory_gb=80)
    return Pool(POOL, ClusterName("lab"), gpu, Capacity.OWNED, Decimal(1), place)


def team(name: str, parent: str | None, guarantee: int, borrow: int | None, share: int = 1) -> Team:
    return Team(
        TeamName(name),
        None if parent is None else TeamName(parent),
        share,
        (Grant(Supply(POOL), guarantee, borrow),),
        priorities=PRIORITIES,
        members=(UserName(f"of-{name}"),),
    )


def request(name: str, gpus: int, nodes: int = 1, priority: str | None = None, **wish: float) -> JobRequest:
    return JobRequest(
        UserName(f"of-{name}"),
        POOL,
        gpus,
        nodes,
        team=TeamName(name),
        priority=None if priority is None else PriorityName(priority),
        seconds=wish.get("seconds", 1000.0),
        limit_seconds=wish.get("limit"),
    )


def drawn(dice: random.Random) -> JobRequest:
    """One job of a crowded cluster: few gangs, all priorities, some without a time limit."""
    seconds = float(dice.randint(20, 400))
    nodes = dice.choice((1, 1, 1, 1, 1, 2, 3))
    return request(
        dice.choice(("a", "a1", "a2", "b", "c")),
        dice.choice((1, 2, 4, 8)) if nodes == 1 else 8,
        nodes,
        dice.choice((None, None, None, "urgent", "low")),
        seconds=seconds,
        **({} if dice.random() < 0.2 else {"limit": 2 * seconds}),
    )


def played(seed: int) -> Simulator:
    """A small cluster under more work than it can do, for a while."""
    dice = random.Random(seed)
    teams = (
        team("a", None, 24, 30),
        team("a1", "a", 8, None, 2),
        team("a2", "a", 8, 24),
        team("b", None, 16, None, 3),
        team("c", None, 0, 40),
    )
    simulator = Simulator((pool(10, 8),), ClusterTerms(teams))
    simulator.submit_many([drawn(dice) for _ in range(60)])
    for _ in range(140):
        simulator.advance(simulator.now + dice.randint(0, 20))
        simulator.submit(drawn(dice))
    return simulator


def digest(simulator: Simulator) -> str:
    told = hashlib.sha256()
    for h in simulator.changes():
        told.update(f"{h.at} {h.job} {h.state} {h.attempts} {h.nodes} {h.ending} {h.by}\n".encode())
    return told.hexdigest()[:16]


def test_recorded_loads_are_decided_as_ever() -> None:
    assert {seed: digest(played(seed)) for seed in RECORDED} == RECORDED


def test_a_guarantee_is_kept_among_more_jobs_than_are_weighed() -> None:
    """What runs on idle devices everywhere, where it alone makes no room, hides nothing that is lent."""
    nodes = 450
    teams = (team("lender", None, 2, None), team("borrower", None, 0, None))
    simulator = Simulator((pool(nodes, 2),), ClusterTerms(teams))
    lent = simulator.submit_many([request("borrower", 1)] * (2 * nodes))
    for number in lent[::2]:
        simulator.cancel(number)
    simulator.submit_many([request("borrower", 1, priority="low")] * nodes)  # one beside each that is lent

    job = simulator.submit(request("lender", 2))

    assert simulator.job(job).state is SimState.RUNNING
    assert sum(change.by == job for change in simulator.changes()) == 2
