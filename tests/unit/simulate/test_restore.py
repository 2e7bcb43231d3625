"""A snapshot of a simulated cluster, restored, goes on as the original does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.model.fleet import Capacity, Pool, SlurmPlace, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.job import JobId
from fairway.model.names import ClusterName, NodeName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Fairness, Grant, Limits, Supply, Team
from fairway.simulate.cluster import ClusterTerms, JobRequest, NodeSnapshot, SimState, Simulator
from fairway.simulate.cluster.jobs import SimEnding
from fairway.simulate.restore import SnapshotPlan, restore, snapshot_of
from fairway.simulate.snapshot import ClusterSnapshot, RunningJob, WaitingJob
from tests.tier import examples

LAB = ClusterName("lab")
POOL, OTHER = PoolName("gpu"), PoolName("big")
SUPPLY = Supply(POOL)
NEVER = 1e12


def pool(name: PoolName = POOL, nodes: int = 1, per_node: int = 8) -> Pool:
    gpu = GpuType("A100-80GB", memory_gb=80)
    return Pool(name, LAB, gpu, Capacity.OWNED, Decimal(1), VirtualPlace(nodes, per_node))


def team(name: str, guarantee: int = 0, borrow: int | None = None, share: int = 1, **limits: int) -> Team:
    return Team(
        TeamName(name),
        share=share,
        grants=(Grant(SUPPLY, guarantee, borrow),),
        limits=Limits(**limits),
        members=(UserName(f"of-{name}"),),
    )


def request(team_: str, gpus: int = 1, seconds: float = 100.0, **rest: Any) -> JobRequest:
    made = JobRequest(UserName(f"of-{team_}"), POOL, gpus, team=TeamName(team_), seconds=seconds)
    return replace(made, **rest)


@dataclass
class Log:
    """What an observer is told, with the numbers as they are."""

    starts: list[tuple[float, int]] = field(default_factory=list)
    ends: list[tuple[float, int, SimEnding]] = field(default_factory=list)

    def started(self, number: int, at: float) -> None:
        self.starts.append((round(at, 6), number))

    def stopped(self, number: int, at: float, ending: SimEnding) -> None:
        self.ends.append((round(at, 6), number, ending))


@st.composite
def loads(draw: st.DrawFn) -> list[tuple[float, JobRequest]]:
    """Jobs of three teams, of three priorities, in order of their submission."""
    at, found = 0.0, []
    for _ in range(draw(st.integers(3, 40))):
        at += draw(st.floats(0.5, 60.0))
        one = request(
            draw(st.sampled_from("abc")),
            draw(st.integers(1, 8)),
            draw(st.floats(1.0, 300.0)),
            priority=draw(st.sampled_from([None, PriorityName("urgent"), PriorityName("low")])),
        )
        found.append((at, one))
    return found


def terms(guarantee: int, ceiling: int | None, half_life: int) -> ClusterTerms:
    teams = (team("a", guarantee, ceiling, user_gpus=8), team("b", 0, None, 2), team("c", 8 - guarantee))
    return ClusterTerms(teams, fairness=Fairness(half_life))


@settings(max_examples=examples(60))
@given(
    load=loads(),
    after=st.floats(1.0, 1500.0),
    guarantee=st.integers(0, 4),
    ceiling=st.sampled_from([None, 4]),
    half_life=st.sampled_from([60, 3600]),
)
def test_a_restored_cluster_goes_on_as_the_original(
    load: list[tuple[float, JobRequest]], after: float, guarantee: int, ceiling: int | None, half_life: int
) -> None:
    """On one node: which of several alike nodes a job got is history that a snapshot does not have.

    Without time limits nothing is reserved: a reservation is older than the snapshot.
    """
    log = Log()
    cluster = Simulator(
        [pool()], terms(guarantee, ceiling, half_life), reserve_after_seconds=NEVER, observer=log
    )
    cluster.replay((at, one) for at, one in load if at <= after)
    cluster.advance(after)
    seconds = {job.id: job.duration for job in cluster.unfinished()}
    snapshot = snapshot_of(cluster, LAB, [pool()])
    ids = sorted([j.job for j in snapshot.running] + [j.job for j in snapshot.waiting])
    again = Log()
    SnapshotPlan(snapshot).restore(
        lambda job: seconds[int(job.job)], observer=again, reserve_after_seconds=NEVER
    ).simulator.advance(NEVER)
    cluster.advance(NEVER)

    # Numbers are in the order of submission in both.
    of_id = {job: number for number, job in enumerate(ids, start=1)}
    then = {(at, of_id[JobId(n)]) for at, n in log.starts if n in seconds and at > after}
    assert then == {(at, n) for at, n in again.starts if at > after}
    ends = {(at, of_id[JobId(n)], ending) for at, n, ending in log.ends if at > after}
    assert ends == set(again.ends)


def test_the_first_of_the_queue_keeps_its_place_before_later_small_jobs() -> None:
    cluster = Simulator([pool(nodes=2)], ClusterTerms((team("a"), team("b"))))
    for _ in range(2):
        cluster.submit(request("a", 8, 1000.0, limit_seconds=2000.0))
    cluster.advance(10.0)
    large = cluster.submit(request("b", 8, 50.0, nodes=2, limit_seconds=100.0))
    small = cluster.submit(request("b", 1, 5000.0, limit_seconds=5000.0))
    cluster.advance(20.0)

    restored = restore(snapshot_of(cluster, LAB, [pool(nodes=2)]), lambda _: 1000.0)
    restored.simulator.advance(1010.0)
    started = {restored.waiting[n]: restored.simulator.job(n).started for n in restored.waiting}

    assert started == {JobId(large): 1000.0, JobId(small): None}


@pytest.mark.parametrize(("slurm", "first"), [((), "a"), ((SUPPLY.pool,), "b")])
def test_what_a_team_holds_within_its_guarantee_counts_in_shares_on_slurm_alone(
    slurm: tuple[PoolName, ...], first: str
) -> None:
    """When the node of c is free, a has its guarantee already, and b has nothing."""
    teams = (team("a", 8), team("b"), team("c"))
    terms = ClusterTerms(teams, slurm_pools=frozenset(slurm))
    names = (NodeName("n1"), NodeName("n2"))
    snapshot = ClusterSnapshot(
        LAB,
        1000.0,
        (pool(nodes=2),),
        terms,
        tuple(NodeSnapshot(name, SUPPLY, 8) for name in names),
        (
            RunningJob(JobId(1), request("a", 8), 0.0, 900.0, names[:1]),
            RunningJob(JobId(2), request("c", 8), 0.0, 900.0, names[1:]),
        ),
        (WaitingJob(JobId(3), request("a", 8), 900.0), WaitingJob(JobId(4), request("b", 8), 910.0)),
    )
    seconds = {1: 9000.0, 2: 200.0, 3: 500.0, 4: 500.0}
    restored = restore(snapshot, lambda job: seconds[int(job.job)])
    restored.simulator.advance(1150.0)
    started = [job for n, job in restored.waiting.items() if restored.simulator.job(n).started]
    assert started == [{"a": JobId(3), "b": JobId(4)}[first]]


PLAIN = ClusterTerms((team("a"), team("b"), team("c")))
"""Three teams alike."""
NODES = (
    NodeSnapshot(NodeName("n1"), SUPPLY, 8),
    NodeSnapshot(NodeName("n2"), SUPPLY, 4),
    NodeSnapshot(NodeName("n3"), SUPPLY, 8, unhealthy=1),
    NodeSnapshot(NodeName("n4"), SUPPLY, 8, ready=False),
    NodeSnapshot(NodeName("n1"), Supply(OTHER), 2),
)


def mixed(running: tuple[RunningJob, ...] = (), waiting: tuple[WaitingJob, ...] = ()) -> ClusterSnapshot:
    """Nodes of different sizes, one of which two pools share, on an engine of its own."""
    gpu = GpuType("A100-80GB", memory_gb=80)
    pools = tuple(
        Pool(name, LAB, gpu, Capacity.OWNED, Decimal(1), SlurmPlace("gpu")) for name in (POOL, OTHER)
    )
    return ClusterSnapshot(LAB, 1000.0, pools, PLAIN, NODES, running, waiting)


def waiting(number: int, gpus: int, **rest: Any) -> WaitingJob:
    return WaitingJob(JobId(number), request("a", gpus, **rest), 900.0 + number)


def running(number: int, gpus: int, *nodes: str, team_: str = "a", **rest: Any) -> RunningJob:
    where = tuple(NodeName(node) for node in nodes)
    return RunningJob(JobId(number), request(team_, gpus, **rest), 100.0, 400.0 + number, where)


def places(snapshot: ClusterSnapshot) -> dict[int, tuple[str, ...]]:
    restored = restore(snapshot, lambda _: 1000.0)
    found = {int(restored.waiting[n]): restored.simulator.job(n).nodes for n in restored.waiting}
    return {job: nodes for job, nodes in found.items() if nodes}


def test_nodes_of_one_pool_may_differ_and_jobs_start_where_they_fit() -> None:
    snapshot = mixed(waiting=(waiting(1, 8), waiting(2, 7), waiting(3, 4), waiting(4, 7)))
    assert places(snapshot) == {1: ("n1",), 2: ("n3",), 3: ("n2",)}


def test_running_jobs_hold_their_own_nodes() -> None:
    snapshot = mixed((running(1, 6, "n1"),), (waiting(2, 3), waiting(3, 2)))
    assert places(snapshot) == {2: ("n2",), 3: ("n1",)}


def test_a_running_job_ends_when_its_run_time_is_over_and_not_later_than_its_limit() -> None:
    jobs = (running(1, 8, "n1"), running(2, 7, "n3", limit_seconds=700.0))
    restored = restore(mixed(jobs, (waiting(3, 8), waiting(4, 7))), lambda _: 900.0)
    restored.simulator.advance(5000.0)
    starts = {int(job): restored.simulator.job(n).started for n, job in restored.waiting.items()}
    assert starts == {4: 402.0 + 700.0, 3: 401.0 + 900.0}


def test_pods_of_one_job_may_share_a_node() -> None:
    twice = running(1, 3, "n1", "n1", "n3", nodes=3)
    named_once = running(2, 1, "n2", nodes=4)
    snapshot = mixed((twice, named_once), (waiting(3, 2), waiting(4, 4), waiting(5, 1)))
    assert places(snapshot) == {3: ("n1",), 4: ("n3",)}


def test_a_job_outside_the_fleet_holds_its_node_and_is_not_preempted() -> None:
    foreign = replace(running(1, 8, "n1"), request=replace(request("a", 8), team=None))
    snapshot = mixed((foreign,), (waiting(2, 8),))
    entitled = replace(snapshot, terms=ClusterTerms((team("a", 8),)))
    assert places(snapshot) == places(entitled) == {}


def test_a_job_that_can_never_run_is_reported_with_the_reason() -> None:
    restored = restore(mixed(waiting=(waiting(1, 9), waiting(2, 1))), lambda _: 10.0)
    assert set(restored.waiting.values()) == {JobId(2)}
    assert restored.refused[JobId(1)].code == "LargerThanPool"


def test_recent_use_decides_who_is_next() -> None:
    jobs = (running(1, 8, "n1"), running(2, 4, "n2"), running(3, 7, "n3"))
    queue = (
        WaitingJob(JobId(4), request("a", 8), 900.0),
        WaitingJob(JobId(5), request("c", 8), 950.0),
    )
    base = mixed(jobs, queue)
    used = {(TeamName("a"), SUPPLY): 50.0, (TeamName("c"), SUPPLY): 1.0}
    first = {}
    for name, snapshot in (("even", replace(base, running=())), ("used", replace(base, recent_use=used))):
        restored = restore(snapshot, lambda _: 700.0)
        restored.simulator.advance(1500.0)
        started = {int(j): restored.simulator.job(n).started for n, j in restored.waiting.items()}
        first[name] = min(started, key=lambda job: started[job] or NEVER)
    assert first == {"even": 4, "used": 5}


def test_a_snapshot_has_what_a_simulated_cluster_has() -> None:
    cluster = Simulator([pool(nodes=2)], terms(0, None, 3600))
    first = cluster.submit(request("a", 8))
    cluster.submit(request("b", 8))
    third = cluster.submit(request("b", 1))
    cluster.drain(NodeName("gpu-0002"), "test")
    cluster.advance(10.0)
    found = snapshot_of(cluster, LAB, [pool(nodes=2)])
    assert [job.job for job in found.running] == [first, 2]
    assert [job.nodes for job in found.running] == [("gpu-0001",), ("gpu-0002",)]
    assert [job.job for job in found.waiting] == [third]
    assert [node.ready for node in found.nodes] == [True, False]
    assert found.recent_use[TeamName("a"), SUPPLY] == pytest.approx(8 * (1 - 2 ** (-10 / 3600)))
    assert cluster.job(first).state is SimState.RUNNING
