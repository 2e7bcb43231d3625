"""The present of a cluster is read from the ledger as it is, played forward, stored and shown."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from fairway.control.loops.starts import ForecastStarts
from fairway.ledger import Ledger
from fairway.ledger.records.snapshots import SnapshotJob, SnapshotNode, SnapshotRows, UseSum
from fairway.model.charge import Span
from fairway.model.fleet import Capacity, Cluster, KubernetesConnection, SlurmConnection
from fairway.model.job import Attempt, JobId, JobState
from fairway.model.job_change import JobChange
from fairway.model.names import NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.observation import Devices, Health, Node, Observation
from fairway.model.team import Fairness, Grant, Team
from fairway.services.fleets import Fleets
from fairway.services.snapshots import SnapshotReader, to_snapshot
from fairway.services.start_forecasts import (
    FIRST_SIZE,
    MAX_EVENTS,
    MAX_FUTURES,
    MAX_JOBS,
    ForecastSize,
    ForecastTask,
    ForecastWorker,
    StartForecaster,
    compute_forecast,
)
from fairway.simulate.past_use import PeriodUse, mean_counted_use
from fairway.simulate.run_times import RunTimes
from fairway.simulate.starts import FUTURES, StartForecast
from tests.unit.control.job_toy import ADA, FLEET, HPC, POOL, RESEARCH, SUPPLY, give_fleet, parse, take
from tests.unit.ledger.job_samples import Desk, at, new_job, request_change, run, seen
from tests.unit.ledger.usage_samples import Book, Class, Row

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
HOUR = 3600


def queued(number: int, **other: object) -> SnapshotJob:
    made = SnapshotJob(
        *(JobId(number), "train-1", ADA, RESEARCH, PriorityName("normal"), POOL, None, 2, 1, None, False),
        *(AT - timedelta(minutes=10), ""),
    )
    return replace(made, **other)  # type: ignore[arg-type]


def on(number: int, *nodes: str, **other: object) -> SnapshotJob:
    where = tuple(NodeName(name) for name in nodes)
    return queued(number, on=where, started_at=AT - timedelta(minutes=5), **other)


def rows(*waiting: SnapshotJob, running: tuple[SnapshotJob, ...] = ()) -> SnapshotRows:
    nodes = tuple(
        SnapshotNode(NodeName(f"hpc-a100-000{n}"), POOL, None, 8, n == 2, health)
        for n, health in ((1, Health.READY), (2, Health.READY), (3, Health.DRAINED), (4, Health.DOWN))
    )
    return SnapshotRows(AT, nodes, running, waiting, waiting[:1], AT - timedelta(hours=2))


async def observe(ledger: Ledger) -> None:
    devices = (Devices(POOL, "A100-80GB", None, 8, 8, 1), Devices(None, "other", None, 8, 0))
    nodes = (
        Node(NodeName("n1"), Health.READY, "", devices),
        Node(NodeName("n2"), Health.DOWN, "", ()),
    )
    lease = await take(ledger, "observe")
    async with ledger.writing(lease) as tx:
        await tx.observations.write(Observation(HPC, "1", nodes))


async def test_the_ledger_returns_nodes_and_open_jobs_alone(ledger: Ledger) -> None:
    await observe(ledger)
    desk = await Desk.of(ledger)
    both = Attempt(at(-60), (NodeName("n1"), NodeName("n2")), 4)
    await desk.see(
        seen("1", "old", JobState.DONE, run(0, 1)),
        seen("2", "large", JobState.RUNNING, both, nodes=2, submitted_at=at(-90)),
        seen(
            "3", "late", JobState.WAITING, reason="Priority", reason_code="NotItsTurn", submitted_at=at(-30)
        ),
        seen("4", "early", JobState.WAITING, submitted_at=at(-40)),
        seen("5", "urgent", JobState.WAITING, submitted_at=at(-10), priority=PriorityName("urgent")),
        seen("6", "held", JobState.HELD),
        seen("7", "nowhere", JobState.WAITING, supply=None),
        seen("8", "first", JobState.RUNNING, run(-70)),
    )
    found = await ledger.snapshots.read(
        "hpc", {PriorityName("urgent"): 100, PriorityName("normal"): 50}, 86_400
    )
    assert found.nodes == (SnapshotNode(NodeName("n1"), POOL, None, 8, 1, Health.READY),)
    assert [(job.name, job.on, job.started_at) for job in found.running] == [
        ("first", ("n1",), at(-70)),
        ("large", ("n1", "n2"), at(-60)),
    ]
    assert [(job.name, job.reason_code) for job in found.waiting] == [
        ("urgent", ""),
        ("early", ""),
        ("late", "NotItsTurn"),
    ]
    assert {job.name for job in found.arrivals} == {
        "old",
        "large",
        "late",
        "early",
        "urgent",
        "held",
        "first",
    }
    assert not (await ledger.snapshots.read("other", {}, 86_400)).nodes


async def test_a_young_ledger_has_not_seen_a_whole_day_of_arrivals(ledger: Ledger) -> None:
    empty = await ledger.snapshots.read("hpc", {}, 86_400)
    assert empty.arrivals_since == empty.at
    desk = await Desk.of(ledger)
    await desk.see(
        seen("1", "first", JobState.DONE, run(0, 1), submitted_at=at(-90)),
        seen("2", "second", JobState.WAITING, submitted_at=at(-30)),
    )
    assert (await ledger.snapshots.read("hpc", {}, 86_400)).arrivals_since == at(-90)


async def test_whether_nodes_must_be_in_one_rack_is_read_of_waiting_jobs(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    near, far = await desk.submit(new_job("near", nodes=2, together=True), new_job("far", nodes=2))
    sent = zip((near, far), await desk.send(near, far), strict=True)
    await desk.see(*(seen(f"e{id_}-1", name, JobState.WAITING, nodes=2) for id_, name in sent))
    found = await ledger.snapshots.read("hpc", {}, 86_400)
    assert {job.name: job.together for job in found.waiting} == {"near": True, "far": False}


async def test_a_job_waits_as_what_it_was_asked_to_become(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    (job,) = await desk.submit(new_job("train", gpus=8, time_seconds=600))
    (name,) = await desk.send(job)
    await desk.see(seen(f"e{job}-1", name, JobState.WAITING, gpus=8))
    await request_change(ledger, job, JobChange(pool=PoolName("spot"), gpus=4, time_seconds=60))
    (waits,) = (await ledger.snapshots.read("hpc", {}, 86_400)).waiting
    assert (waits.pool, waits.gpus, waits.nodes, waits.time_seconds) == ("spot", 4, 1, 60)


def test_rows_become_a_snapshot_with_what_the_scheduler_knows() -> None:
    foreign = on(3, "hpc-a100-0001", team=TeamName("physics"), priority=PriorityName("qos"))
    service = on(4, "hpc-a100-0001", "hpc-a100-0002", service=True, nodes=5)
    found = to_snapshot(FLEET, HPC, rows(queued(1, time_seconds=600), queued(2), running=(foreign, service)))
    assert [(n.total, n.unhealthy, n.ready) for n in found.nodes] == [
        (8, 0, True),
        (8, 1, True),
        (8, 0, False),
        (8, 0, False),
    ]
    first, second = found.waiting
    assert (first.request.limit_seconds, second.request.limit_seconds) == (600, None)
    assert (first.submitted, first.request.name) == (AT.timestamp() - 600, "train-1")
    physics, replicas = found.running
    assert (physics.request.team, physics.request.priority) == ("physics", None)
    assert (replicas.request.nodes, replicas.service) == (2, True)
    assert (len(found.arrivals), found.arrival_seconds) == (1, 7200.0)


@pytest.mark.parametrize(("hours", "seconds"), [(0.01, 3600.0), (5, 18_000.0), (400, 86_400.0)])
def test_a_large_array_that_was_just_submitted_is_not_what_comes_every_minute(
    hours: float, seconds: float
) -> None:
    sought = replace(rows(queued(1)), arrivals_since=AT - timedelta(hours=hours))
    assert to_snapshot(FLEET, HPC, sought).arrival_seconds == seconds


@pytest.mark.parametrize(("submissions", "seconds"), [(10, 3600.0), (100, 360.0), (3600, 60.0)])
def test_many_submissions_tell_what_comes_every_minute(submissions: int, seconds: float) -> None:
    jobs = tuple(
        replace(queued(n), submitted_at=AT - timedelta(milliseconds=n)) for n in range(1, submissions + 1)
    )
    apart = tuple(replace(job, user=UserName(f"user-{job.id}")) for job in jobs)
    sought = replace(rows(*jobs), arrivals=apart, arrivals_since=AT - timedelta(seconds=60))
    assert to_snapshot(FLEET, HPC, sought).arrival_seconds == seconds


@pytest.mark.parametrize("code", ["Held", "NoNodeFits", "AfterAnother", "AccountLimit", "TeamDraining"])
def test_what_waits_for_more_than_its_turn_is_left_out(code: str) -> None:
    found = to_snapshot(FLEET, HPC, rows(queued(1, reason_code=code), queued(2, reason_code="TeamAtCeiling")))
    assert [job.job for job in found.waiting] == [2]


def test_waiting_jobs_of_no_team_are_left_out() -> None:
    found = to_snapshot(
        FLEET, HPC, rows(queued(1, team=None), queued(2, team=TeamName("physics")), queued(3))
    )
    assert [job.job for job in found.waiting] == [3]


@pytest.mark.parametrize(
    ("gpus", "pods", "shape"),
    [(1, 16, (8, 2)), (2, 6, (6, 2)), (4, 3, (4, 3)), (8, 2, (8, 2)), (1, 7, (7, 1)), (3, 1, (3, 1))],
)
def test_pods_of_one_job_share_nodes_where_they_fit_evenly(
    gpus: int, pods: int, shape: tuple[int, int]
) -> None:
    kube = replace(FLEET, clusters=(Cluster(HPC, KubernetesConnection()),))
    (job,) = to_snapshot(kube, HPC, rows(queued(1, gpus=gpus, nodes=pods))).waiting
    assert (job.request.gpus, job.request.nodes) == shape
    (whole,) = to_snapshot(FLEET, HPC, rows(queued(1, gpus=gpus, nodes=pods))).waiting
    assert (whole.request.gpus, whole.request.nodes) == (gpus, pods)


def test_a_job_in_a_spot_pool_has_agreed_to_it() -> None:
    spot = replace(FLEET, pools=(replace(FLEET.pools[0], capacity=Capacity.SPOT),))
    (job,) = to_snapshot(spot, HPC, rows(queued(1))).waiting
    assert job.request.tolerates_loss


def tree() -> tuple[Team, ...]:
    return (
        Team(RESEARCH, grants=(Grant(SUPPLY, 4),)),
        Team(TeamName("nlp"), parent=RESEARCH, grants=(Grant(SUPPLY, 0),)),
    )


def used(start: float, end: float, devices: float, team: str = "nlp") -> PeriodUse:
    return PeriodUse(start, end, TeamName(team), SUPPLY, devices * (end - start))


def test_past_use_beyond_a_guarantee_counts_with_its_age_for_the_team_and_those_above() -> None:
    found = mean_counted_use([used(0, 100, 6)], tree(), half_life=100, now=100)
    assert found == {(TeamName("nlp"), SUPPLY): 3.0, (RESEARCH, SUPPLY): 1.0}
    later = mean_counted_use([used(0, 100, 6)], tree(), half_life=100, now=300)
    assert later == {(TeamName("nlp"), SUPPLY): 0.75, (RESEARCH, SUPPLY): 0.25}


def test_use_for_ever_is_its_own_mean_and_what_is_within_the_guarantee_is_none() -> None:
    long = mean_counted_use([used(-1e6, 0, 6)], tree(), half_life=100, now=0)
    assert long[RESEARCH, SUPPLY] == pytest.approx(2.0)
    assert mean_counted_use([used(0, 50, 3, "research")], tree(), 100, 50) == {}
    assert mean_counted_use([used(0, 50, 9, "gone")], tree(), 100, 50) == {}


def test_use_within_a_guarantee_counts_where_the_engine_counts_all() -> None:
    found = mean_counted_use([used(0, 100, 6)], tree(), 100, 100, all_use_counts={SUPPLY.pool})
    assert found == {(TeamName("nlp"), SUPPLY): 3.0, (RESEARCH, SUPPLY): 3.0}


@pytest.mark.parametrize("slurm", [True, False])
def test_of_slurm_the_snapshot_knows_its_fair_share_and_its_requeue_delay(slurm: bool) -> None:
    connection = SlurmConnection("http://127.0.0.1:1") if slurm else KubernetesConnection()
    found = to_snapshot(replace(FLEET, clusters=(Cluster(HPC, connection),)), HPC, rows())
    assert (SUPPLY.pool in found.terms.slurm_pools) is slurm
    assert found.requeue_seconds == ({SUPPLY.pool: 121.0} if slurm else {})


def test_past_use_has_the_current_hour_of_running_jobs() -> None:
    fleet = replace(
        FLEET, fairness=Fairness(HOUR), teams=(replace(FLEET.teams[0], grants=(Grant(SUPPLY, 0),)),)
    )
    now = int(AT.timestamp())
    past = UseSum(now - 90 * 60, now - 30 * 60, RESEARCH, POOL, None, 4 * HOUR)
    running = on(1, "hpc-a100-0001", gpus=8)
    plain = to_snapshot(fleet, HPC, rows(), (past,)).recent_use[RESEARCH, SUPPLY]
    more = to_snapshot(fleet, HPC, rows(running=(running,)), (past,)).recent_use[RESEARCH, SUPPLY]
    half_hour = 2**-0.5
    assert plain == pytest.approx(4 * (half_hour - half_hour / 2))
    # 8 GPUs for 5 of the 30 minutes of this hour.
    assert more - plain == pytest.approx(8 * 5 / 30 * (1 - half_hour))


class Recorded:
    """Computes at once, in this process, and remembers what was asked."""

    def __init__(self) -> None:
        self.tasks: list[ForecastTask] = []

    async def __call__(self, task: ForecastTask) -> Mapping[JobId, StartForecast]:
        self.tasks.append(task)
        return compute_forecast(task)


async def test_forecasts_are_stored_replaced_and_end_with_the_wait(ledger: Ledger) -> None:
    await observe(ledger)
    await give_fleet(ledger)
    desk = await Desk.of(ledger)
    holds = Attempt(at(-60), (NodeName("n1"),), 7)
    more = {"user": UserName("ada"), "gpus": 7}
    running = seen("1", "runs", JobState.RUNNING, holds, time_seconds=3600, **more)
    await desk.see(
        running,
        seen("2", "next", JobState.WAITING, time_seconds=600, **more),
        seen("3", "huge", JobState.WAITING, user=UserName("ada"), gpus=9),
    )
    compute = Recorded()
    forecaster = StartForecaster(ledger, SnapshotReader(ledger, Fleets(ledger, parse)), compute)
    step = ForecastStarts(HPC, ledger, forecaster)
    lease = await take(ledger, "starts")
    await step(lease)

    (task,) = compute.tasks
    by_name = {job.request.name: job.job for job in task.snapshot.waiting}
    stored = await ledger.job_forecasts.of(by_name.values())
    found = stored[by_name["next"]]
    assert found.expected is not None
    assert found.earliest is not None
    assert found.earliest <= found.expected <= at(-60) + timedelta(hours=1)
    assert (found.started, found.futures) == (1.0, FUTURES)
    assert "9 devices each" in stored[by_name["huge"]].refused
    assert found.computed_at == datetime.fromtimestamp(task.snapshot.at, UTC)

    patient = StartForecaster(
        ledger, SnapshotReader(ledger, Fleets(ledger, parse)), compute, waited_seconds=3600
    )
    nothing = await patient.forecast(HPC)
    assert nothing is not None and nothing.jobs == ()
    assert compute.tasks == [task], "nothing has waited for long enough"

    await desk.see(seen("2", "next", JobState.CANCELLED, **more), complete=False)
    await step(lease)
    assert set(await ledger.job_forecasts.of(by_name.values())) == {by_name["huge"]}


async def test_a_cluster_that_cannot_be_reached_is_not_forecast(ledger: Ledger) -> None:
    await give_fleet(ledger)
    compute = Recorded()
    forecaster = StartForecaster(ledger, SnapshotReader(ledger, Fleets(ledger, parse)), compute)
    await ForecastStarts(HPC, ledger, forecaster)(await take(ledger, "starts"))
    assert not compute.tasks


async def test_use_is_read_by_day_and_by_hour(ledger: Ledger, database_url: str) -> None:
    book = Book(database_url)
    day = date(2026, 3, 1)
    midnight = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
    of = Class(pool="hpc-a100")
    await book.add(ledger, [Row(of, midnight + 3 * HOUR, 100, 2), Row(of, midnight + 30 * HOUR, 50, 4, 2)])
    span = Span(midnight, midnight + 86_400)
    found = await ledger.snapshots.use("hpc", {day: span}, midnight + 86_400)
    book.close()
    assert [(u.start, u.end, u.team, u.slice, u.device_seconds) for u in found] == [
        (span.start, span.end, "research", None, 200),
        (midnight + 30 * HOUR, midnight + 31 * HOUR, "research", None, 200),
    ]


def test_a_round_that_takes_too_long_has_fewer_futures_then_less_of_the_queue() -> None:
    large = ForecastSize(96, 8000, 4000)
    slower = large.next(16.0, 8.0)
    assert slower == ForecastSize(48, 8000, 4000)
    slowest = slower.next(40.0, 8.0)
    assert slowest == ForecastSize(FUTURES, 3200, 1600)
    assert slowest.next(1e6, 8.0).futures == FUTURES


def test_a_quick_round_covers_more_and_then_by_more_futures() -> None:
    size = FIRST_SIZE
    for _ in range(12):
        size = size.next(0.1, 8.0)
    assert size == ForecastSize(MAX_FUTURES, MAX_EVENTS, MAX_JOBS)


def test_slices_are_supplies_of_their_own() -> None:
    cut = queued(1, slice=SliceName("1g.10gb"))
    (job,) = to_snapshot(FLEET, HPC, rows(cut)).waiting
    assert str(job.request.supply) == "hpc-a100/1g.10gb"


async def test_the_worker_computes_what_this_process_would_and_ends() -> None:
    running = on(3, "hpc-a100-0001", gpus=8)
    snapshot = to_snapshot(FLEET, HPC, rows(queued(1), queued(2, gpus=8), running=(running,)))
    task = ForecastTask(snapshot, RunTimes(), FUTURES, 5000, seed=1)
    worker = ForecastWorker()
    try:
        assert await worker(task) == compute_forecast(task)
    finally:
        worker.close()
    assert not multiprocessing.active_children()
