"""The demo's past holds together, is the same for the same seed, and looks like measured ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from statistics import mean, median
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import text

from fairway.control.loops.run_times import LearnRunTimes
from fairway.cost.calendar import Calendar
from fairway.demo.fleet_text import fleet_text
from fairway.demo.history import DemoHistory
from fairway.demo.history_jobs import generate_jobs
from fairway.demo.history_rows import ledger_rows
from fairway.demo.history_run import FinishedJob, SimulatedRun, generate_outages, run
from fairway.demo.jobs import DAY, HOUR
from fairway.files import parse_fleet
from fairway.ledger import FLEET as WHOLE_FLEET
from fairway.ledger import Ledger
from fairway.ledger.errors import LedgerNotEmpty
from fairway.ledger.records.jobs import JobFilter
from fairway.ledger.seed import GeneratedHistory, backfill, write_applies
from fairway.model.fleet import VirtualPlace
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.model.usage import AttemptUsage
from fairway.services.charges import Costs
from fairway.services.fleet_history import FleetHistory
from fairway.services.fleets import Fleets
from fairway.services.statements import MonthStatements
from fairway.simulate.cluster import SimState
from fairway.simulate.cluster.jobs import SimEnding
from tests.unit.cost.metering_reference import difference

END = int(datetime(2026, 11, 15, 19, 30, 12, tzinfo=UTC).timestamp())
DAYS = 21
START = END - DAYS * DAY
UTC_CALENDAR = Calendar(ZoneInfo("UTC"))
FLEET = parse_fleet(fleet_text(date(2026, 11, 1)), "fleet.yaml")
SHARED = Path(__file__).parents[4] / "shared" / "data"


def played(start: int, end: int, seed: int = 20) -> SimulatedRun:
    return run(
        FLEET, generate_jobs(FLEET, start, end, seed), generate_outages(FLEET, start, end, seed), start, end
    )


@pytest.fixture(scope="module")
def past() -> SimulatedRun:
    return played(START, END)


@pytest.fixture(scope="module")
def rows(past: SimulatedRun) -> GeneratedHistory:
    return ledger_rows(FLEET, past, UTC_CALENDAR)


def devices(job: FinishedJob) -> int:
    return job.planned.gpus * job.planned.nodes


def seconds(job: FinishedJob) -> float:
    return sum((a.ended or 0) - a.started for a in job.attempts)


def total(supply: Supply) -> dict[str, int]:
    """Of each node."""
    pool = next(p for p in FLEET.pools if p.name == supply.pool)
    assert isinstance(pool.place, VirtualPlace)
    each = 1 if supply.slice is None else pool.place.slices_per_gpu[supply.slice]
    return {
        f"{pool.name}-{number:04}": pool.place.gpus_per_node * each
        for number in range(1, pool.place.nodes + 1)
    }


# it holds together


def test_no_node_ever_holds_more_than_it_has(past: SimulatedRun) -> None:
    changes: dict[tuple[Supply, str], list[tuple[float, int]]] = defaultdict(list)
    for job in past.jobs:
        for attempt in job.attempts:
            assert attempt.ended is not None
            assert past.start <= job.planned.at <= attempt.started <= attempt.ended <= past.end
            assert len(attempt.nodes) == job.planned.nodes
            for node in attempt.nodes if attempt.started < attempt.ended else ():
                changes[job.planned.supply, node] += [
                    (attempt.started, job.planned.gpus),
                    (attempt.ended, -job.planned.gpus),
                ]
    assert {supply for supply, _ in changes} == {s for pool in FLEET.pools for s in pool.supplies}
    for (supply, name), of_node in changes.items():
        held = 0
        for _, change in sorted(of_node):
            held += change
            assert 0 <= held <= total(supply)[name]
        assert held == 0


def test_attempts_follow_each_other(past: SimulatedRun) -> None:
    for job in past.jobs:
        for before, after in zip(job.attempts, job.attempts[1:], strict=False):
            assert before.ended is not None
            assert before.ended <= after.started
            assert before.ending in {SimEnding.OUTRANKED, SimEnding.RECLAIMED, SimEnding.NODE_LOST}
        if job.attempts:
            assert job.ended >= (job.attempts[-1].ended or 0)
        else:
            assert job.state is SimState.CANCELLED


def test_nothing_starts_on_a_node_that_is_out_of_use(past: SimulatedRun) -> None:
    broken = defaultdict(list)
    for outage in past.outages:
        broken[outage.node].append(outage)
    assert {o.health for o in past.outages} == {Health.DOWN, Health.DRAINED}
    for job in past.jobs:
        for attempt in job.attempts:
            for node in attempt.nodes:
                for outage in broken[node]:
                    assert not outage.start < attempt.started < outage.end
                    if outage.health is Health.DOWN and attempt.started < outage.start:
                        assert (attempt.ended or 0) <= outage.start


def test_everything_there_is_to_see_happened(past: SimulatedRun) -> None:
    assert {job.state for job in past.jobs} == {
        SimState.DONE,
        SimState.FAILED,
        SimState.CANCELLED,
        SimState.TIMEOUT,
    }
    endings = Counter(a.ending for job in past.jobs for a in job.attempts)
    for ending in (SimEnding.OUTRANKED, SimEnding.RECLAIMED, SimEnding.NODE_LOST):
        assert endings[ending] > 10
    assert any(job.planned.kind.name == "notebook" and seconds(job) > 12 * HOUR for job in past.jobs)
    assert any(len(job.attempts) > 2 for job in past.jobs)
    assert {job.planned.user for job in past.jobs} == {user for team in FLEET.teams for user in team.members}


def test_the_same_seed_is_the_same_past() -> None:
    one, same, other = (played(END - 2 * DAY, END, seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


# what the ledger makes of it


async def test_usage_is_what_the_meter_would_have_written(ledger: Ledger, rows: GeneratedHistory) -> None:
    await backfill(ledger, rows)
    wanted: Counter[tuple[int, str, str, str]] = Counter()
    for job in rows.jobs:
        for attempt in job.attempts:
            truth = AttemptUsage(1, job.gpus * job.nodes, int(attempt.started), int(attempt.ended))
            for piece in difference(None, truth, UTC_CALENDAR):
                wanted[piece.hour, job.kind.team, job.kind.pool, job.kind.slice] += piece.device_seconds
    async with ledger._connections.single() as connection:
        found = await connection.execute(
            text(
                "SELECT hour, team, pool, slice, sum(device_seconds) FROM usage_hour"
                " JOIN job_class ON job_class.id = class GROUP BY 1, 2, 3, 4"
            )
        )
        kept = {(int(hour.timestamp()), team, pool, slice_): int(n) for hour, team, pool, slice_, n in found}
        assert kept == {key: n for key, n in wanted.items() if n}
        raw = await connection.execute(text("SELECT sum(seconds * devices) FROM usage"))
        day = await connection.execute(text("SELECT sum(device_seconds) FROM usage_day"))
        assert raw.scalar() == day.scalar() == sum(kept.values())


async def test_run_times_are_learnt_from_the_past_even_if_a_server_runs_already(
    ledger: Ledger, rows: GeneratedHistory
) -> None:
    lease = await ledger.leases.take("run-times", WHOLE_FLEET, "me", 60)
    assert lease is not None
    step = LearnRunTimes(ledger)
    await step(lease)
    assert await ledger.run_times.history_mark() is None
    await backfill(ledger, rows)
    assert await ledger.run_times.history_mark() is not None
    while await ledger.run_times.history_mark() is not None:
        await step(lease)


async def test_what_is_held_and_broken_is_never_more_than_there_is(
    ledger: Ledger, rows: GeneratedHistory
) -> None:
    await backfill(ledger, rows)
    async with ledger._connections.single() as connection:
        worst = await connection.execute(
            text("""
                SELECT max(used.seconds - (total - drained - down - fragmented)) FROM (
                    SELECT hour, pool, slice, sum(device_seconds) AS seconds
                    FROM usage_hour JOIN job_class ON job_class.id = class GROUP BY 1, 2, 3
                ) AS used JOIN capacity_hour USING (hour, pool, slice)
            """)
        )
        assert worst.scalar_one() <= 0
        broken = await connection.execute(text("SELECT sum(down), sum(drained) FROM capacity_day"))
        down, drained = broken.one()
        assert down > 0
        assert drained > 0
        days = await connection.execute(text("SELECT sum(fragmented) FROM capacity_day GROUP BY day"))
        fragmented = [seconds > 0 for (seconds,) in days]
        assert sum(fragmented) > 0.9 * len(fragmented), "on nearly every day"


def test_urgent_jobs_needed_interventions(past: SimulatedRun, rows: GeneratedHistory) -> None:
    assert rows.interventions
    assert list(rows.interventions) == sorted(rows.interventions, key=lambda one: one.at)
    for one in rows.interventions:
        assert past.end - 7 * DAY < one.at <= past.end
        job = rows.jobs[int(one.job.removeprefix("p")) - 1]
        assert job.kind.cluster == one.cluster
        assert any(attempt.ended == one.at for attempt in job.attempts), "the job's own attempts agree"


async def test_a_ledger_with_jobs_takes_no_past(ledger: Ledger) -> None:
    past = ledger_rows(FLEET, played(END - DAY, END), UTC_CALENDAR)
    await backfill(ledger, past)
    before = await ledger.jobs.page(JobFilter(), limit=5)
    with pytest.raises(LedgerNotEmpty):
        await backfill(ledger, past)
    assert await ledger.jobs.page(JobFilter(), limit=5) == before
    assert int(before[0].id) == len(past.jobs), "ids begin with 1, the newest is the last"
    await ledger.revisions.add("x", "y", "somebody")
    with pytest.raises(LedgerNotEmpty):
        await write_applies(ledger, [])


async def test_its_policy_and_money(ledger: Ledger) -> None:
    past = DemoHistory(40, 20, lambda _step: None, lambda _fraction: None)
    past.begin()
    await past.write(ledger)
    await past.finish()
    applies = await ledger.applies.page(limit=10)
    assert [a.created_by for a in applies] == ["marek", "olga", "olga"]
    assert all(c.total > 0 for a in applies for c in a.clusters)
    assert await ledger.drift.interventions(limit=10)
    newest = await ledger.revisions.newest()
    assert newest is not None
    assert newest.text == past.text
    standings = {s.team: s for s in await ledger.budgets.statuses()}
    assert set(standings) == {t.name for t in past.fleet.teams if t.budget}
    months = await ledger.months.all()
    assert months
    assert all(month.closed_at < datetime.now(UTC) for month in months)
    history = FleetHistory(ledger, Fleets(ledger, lambda kept: parse_fleet(kept.text, "fleet.yaml")))
    closing = MonthStatements(ledger, Costs(ledger, history))
    this_month = datetime.now(UTC).date().replace(day=1)
    statement = await closing.statement(past.fleet, this_month)
    assert all(line.used_in == this_month for line in statement.lines), "nothing has to be corrected"


# it looks like what was measured elsewhere


@dataclass(frozen=True)
class Shape:
    """What traces are compared by."""

    ones: float
    """Jobs of one GPU."""
    ones_time: float
    """GPU-time they hold."""
    tail: float
    """Mean over median duration."""
    top: float
    """GPU-time of the tenth of the jobs that holds most."""
    by_hour: float
    """Arrivals in the six busiest hours of the day over those in the six quietest."""
    weekend: float
    """Arrivals on a day of the weekend over those on another."""


def shape(jobs: list[tuple[float, int, float]]) -> Shape:
    """Of arrivals, GPUs and seconds."""
    time = [gpus * took for _, gpus, took in jobs]
    hours = Counter(int(at) % DAY // HOUR for at, _, _ in jobs)
    days = Counter((int(at) // DAY + 3) % 7 for at, _, _ in jobs)
    busy = sorted(hours[hour] for hour in range(24))
    return Shape(
        ones=mean(gpus == 1 for _, gpus, _ in jobs),
        ones_time=sum(t for t, (_, gpus, _) in zip(time, jobs, strict=True) if gpus == 1) / sum(time),
        tail=mean(took for *_, took in jobs) / median(took for *_, took in jobs),
        top=sum(sorted(time, reverse=True)[: len(time) // 10]) / sum(time),
        by_hour=sum(busy[-6:]) / sum(busy[:6]),
        weekend=mean(days[day] for day in (5, 6)) / mean(days[day] for day in range(5)),
    )


def traces() -> Iterator[Shape]:
    """Philly, and MIT Supercloud's GPU jobs."""
    polars = pytest.importorskip("polars")
    if not SHARED.is_dir():
        pytest.skip("the published traces are not here (../shared/data): nothing to compare with")
    philly = polars.read_csv(SHARED / "philly" / "philly.csv.zst", try_parse_dates=True).drop_nulls()
    moments = philly["timestamp"].dt.epoch("s").to_list()
    yield shape(list(zip(moments, philly["num_gpus"].to_list(), philly["duration"].to_list(), strict=True)))
    mit = polars.read_csv(
        SHARED / "mit-supercloud" / "slurm-log-queueing-clean.csv.zst", infer_schema_length=None
    ).with_columns(gpu=polars.col("tres_alloc").str.extract(r"100[12]=(\d+)").cast(polars.Int64))
    mit = mit.filter(polars.col("gpu") > 0)
    yield shape(
        list(
            zip(
                mit["time_submit"].to_list(), mit["gpu"].to_list(), mit["service_time"].to_list(), strict=True
            )
        )
    )


@pytest.mark.nightly("compares statistics of 42 days with published traces; the tests above check the past")
def test_its_shape_is_that_of_real_clusters() -> None:
    known = list(traces())
    whole = played(END - 42 * DAY, END)
    ours = shape([(job.planned.at, devices(job), seconds(job)) for job in whole.jobs if job.attempts])
    # Between the traces, or a quarter beyond them: two clusters are not all there are.
    for name in ("ones", "ones_time", "tail", "top", "by_hour", "weekend"):
        low, high = (pick(getattr(trace, name) for trace in known) for pick in (min, max))
        assert 0.75 * low <= getattr(ours, name) <= 1.25 * high, (name, getattr(ours, name), low, high)


def test_as_many_end_badly_as_in_real_clusters(past: SimulatedRun) -> None:
    """Bands of Helios (Venus to Uranus), Acme (Seren, Kalos), Philly and MIT Supercloud: see the guide."""
    states = Counter(job.state for job in past.jobs)
    share = {state: count / len(past.jobs) for state, count in states.items()}
    assert 0.49 < share[SimState.DONE] < 0.74
    assert 0.06 < share[SimState.CANCELLED] < 0.28
    assert 0.12 < share[SimState.FAILED] < 0.43
    assert 0.01 < share[SimState.TIMEOUT] < 0.06
    waits = sorted(job.attempts[0].started - job.planned.at for job in past.jobs if job.attempts)
    assert waits[len(waits) // 2] < 200, "most start at once"
    assert waits[int(len(waits) * 0.95)] > 300, "some wait long"
