"""On Slurm, whose backfill plans by time limits, a low job starts only where it would delay nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairway.model.names import PoolName
from fairway.simulate.cluster import ClusterTerms, SimState, Simulator
from tests.unit.simulate.cluster.test_decisions import POOL, pool, request, team

SLURM = frozenset({POOL})


def cluster(*limits: float, slurm: frozenset[PoolName] = SLURM, ceiling: int | None = None) -> Simulator:
    """A node of 8 for each limit, on which a job with that limit holds 6."""
    teams = (team("a", None, 0, None), team("b", None, 0, ceiling))
    made = Simulator((pool(len(limits), 8),), ClusterTerms(teams, slurm_pools=slurm))
    for limit in limits:
        made.submit(request("a", 6, seconds=5000.0, limit=limit))
    return made


def low(simulator: Simulator, limit: float | None) -> int:
    wanted = replace(request("a", 2, priority="low", seconds=5000.0), limit_seconds=limit)
    return simulator.submit(wanted)


@pytest.mark.parametrize(("limit", "starts"), [(100.0, True), (101.0, False), (None, False)])
def test_a_low_job_that_would_run_longer_than_the_gap_waits(limit: float | None, starts: bool) -> None:
    simulator = cluster(100.0)
    simulator.submit(request("b", 8))
    running = simulator.job(low(simulator, limit)).state is SimState.RUNNING
    assert running is starts


def test_elsewhere_it_starts_in_any_gap() -> None:
    simulator = cluster(100.0, slurm=frozenset())
    simulator.submit(request("b", 8))
    assert simulator.job(low(simulator, None)).state is SimState.RUNNING


def test_where_nothing_waits_every_gap_is_open() -> None:
    simulator = cluster(100.0)
    assert simulator.job(low(simulator, None)).state is SimState.RUNNING


def test_a_job_that_only_its_team_blocks_is_planned_nowhere() -> None:
    simulator = cluster(100.0, ceiling=4)
    simulator.submit_many([request("b", 3)] * 2)
    simulator.advance(100.0)  # the job of a is over; of b one runs, the other is above the ceiling
    simulator.submit(request("a", 3, limit=50.0))
    assert simulator.job(low(simulator, None)).state is SimState.RUNNING


def test_one_waiting_job_is_planned_where_it_can_start_first() -> None:
    simulator = cluster(500.0, 100.0, 300.0)
    simulator.submit(request("b", 8))
    where = [simulator.job(low(simulator, None)).nodes for _ in range(3)]
    assert sorted(where) == [(), ("gpu-0001",), ("gpu-0003",)]


def test_a_low_job_on_nodes_of_one_rack_gets_them_in_one() -> None:
    """A rack has four nodes; three of the second are free, and one of the first."""
    simulator = cluster(*[100.0] * 8)
    for number in (5, 6, 7, 4):
        simulator.cancel(number)
    wanted = replace(request("a", 8, 3, priority="low", seconds=50.0), together=True)
    nodes = simulator.job(simulator.submit(wanted)).nodes
    assert sorted(nodes) == ["gpu-0005", "gpu-0006", "gpu-0007"]
