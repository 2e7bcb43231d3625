"""Usage is what is true of attempts less what was written, whatever they become; the pure function judges."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from fairway.control.loops.meter import hours_of
from fairway.cost.calendar import Calendar
from fairway.ledger import HoursTooFew, Lease, LeaseLost, Ledger, MeteredBatch
from fairway.model.job import Ending, EngineId, JobId, JobState
from fairway.model.usage import AttemptUsage, UsagePiece
from tests.metered import CLUSTER, Hand, Key, read, seconds
from tests.tier import sized
from tests.unit.cost.metering_reference import difference
from tests.unit.ledger.job_samples import Desk, at, new_job, run, seen

ZONES = sized(
    ci=("America/New_York", "Australia/Lord_Howe"),
    nightly=("UTC", "Asia/Kolkata", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo"),
)
NOON = int(datetime(2026, 11, 1, 12, tzinfo=UTC).timestamp())
"""The day clocks go back in New York; in Lord Howe half an hour forth a month before."""
HOUR = 3600


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def hand(db: psycopg.Connection[Any]) -> Hand:
    return Hand(db)


@pytest.fixture
async def lease(ledger: Ledger) -> AsyncIterator[Lease]:
    taken = await ledger.leases.take("meter", CLUSTER, "test", 60)
    assert taken is not None
    yield taken


async def meter(
    ledger: Ledger,
    lease: Lease,
    upto: int = NOON,
    zone: str = "UTC",
    most: int = 1000,
    first: int = NOON - 90 * 86400,
) -> MeteredBatch:
    hours = hours_of(Calendar(ZoneInfo(zone)), first, NOON + 86400)
    await ledger.partitions.ensure(hours.starts)
    if await ledger.metering.mark(CLUSTER) is None:
        async with ledger.writing(lease) as tx:
            await tx.metering.meter_running(hours, upto)
    async with ledger.writing(lease) as tx:
        done = await tx.metering.meter(hours, most)
    async with ledger.writing(lease) as tx:
        if not done.taken and await ledger.metering.mark(CLUSTER) != upto:
            await tx.metering.meter_running(hours, upto)
    return done


def rows(db: psycopg.Connection[Any]) -> list[tuple[Key, UsagePiece]]:
    found = db.execute("SELECT job, attempt, hour, class, started_at, seconds, devices FROM usage")
    return [
        (
            (job, attempt),
            UsagePiece(seconds(hour), class_, seconds(began), seconds(began) + length, devices),
        )
        for job, attempt, hour, class_, began, length, devices in found
    ]


def agree(db: psycopg.Connection[Any], upto: int = NOON, zone: str = "UTC") -> None:
    assert read(db, upto).faults(Calendar(ZoneInfo(zone))) == []


async def test_what_ended_is_cut_at_hours(
    ledger: Ledger, lease: Lease, hand: Hand, db: psycopg.Connection[Any]
) -> None:
    class_ = hand.class_()
    job = hand.job(class_, "done")
    hand.attempt(job, 1, NOON - 2 * HOUR + 0.9, NOON - HOUR + 600.4, devices=8)
    done = await meter(ledger, lease)
    assert [(piece.hour, piece.start, piece.end, piece.devices) for _, piece in rows(db)] == [
        (NOON - 2 * HOUR, NOON - 2 * HOUR, NOON - HOUR, 8),
        (NOON - HOUR, NOON - HOUR, NOON - HOUR + 600, 8),
    ]
    assert (done.taken, done.rows) == (1, 2)
    assert [(u.team, str(u.supply), u.used, u.taken_back) for u in done.used] == [("ml", "gpu", 8 * 4200, 0)]
    agree(db)
    assert (await meter(ledger, lease)).taken == 0


async def test_what_runs_is_metered_by_full_hours(
    ledger: Ledger, lease: Lease, hand: Hand, db: psycopg.Connection[Any]
) -> None:
    job = hand.job(hand.class_())
    hand.attempt(job, 1, NOON + 60)
    await meter(ledger, lease)
    assert rows(db) == []
    await meter(ledger, lease, NOON + HOUR)
    assert await ledger.metering.mark(CLUSTER) == NOON + HOUR
    agree(db, NOON + HOUR)
    assert [piece.device_seconds for _, piece in rows(db)] == [HOUR - 60]
    hand.attempt(job, 1, NOON + 60, NOON + HOUR + 5)
    await meter(ledger, lease, NOON + HOUR)
    agree(db, NOON + HOUR)
    assert [piece.device_seconds for _, piece in rows(db)] == [HOUR - 60, 5]


async def test_only_what_runs_gets_the_hour_and_no_state_is_changed(
    ledger: Ledger, lease: Lease, hand: Hand, db: psycopg.Connection[Any]
) -> None:
    over = hand.job(hand.class_(), "done")
    hand.attempt(over, 1, NOON - 5)
    ended = hand.job(hand.class_())
    hand.attempt(ended, 1, NOON - 5, NOON)
    running, later = hand.job(hand.class_()), hand.job(hand.class_())
    hand.attempt(running, 1, NOON - 5)
    hand.attempt(later, 1, NOON + HOUR + 7)
    await meter(ledger, lease)
    states = "SELECT xmin, * FROM metered ORDER BY job"
    before = db.execute(states).fetchall()
    await meter(ledger, lease, NOON + HOUR)
    assert [(key, piece.device_seconds) for key, piece in rows(db) if piece.hour == NOON] == [
        ((running, 1), HOUR)
    ]
    agree(db, NOON + HOUR)
    await meter(ledger, lease, NOON + 2 * HOUR)
    agree(db, NOON + 2 * HOUR)
    assert db.execute(states).fetchall() == before


async def test_another_cluster_s_hour_moves_nothing_here(
    ledger: Ledger, lease: Lease, hand: Hand, db: psycopg.Connection[Any]
) -> None:
    hand.attempt(hand.job(hand.class_()), 1, NOON - 5)
    await meter(ledger, lease)
    other = await ledger.leases.take("meter", "cloud", "test", 60)
    assert other is not None
    hours = hours_of(Calendar(UTC), NOON, NOON + HOUR)
    for upto in (NOON, NOON + HOUR):
        async with ledger.writing(other) as tx:
            assert (await tx.metering.meter_running(hours, upto)).rows == 0
    agree(db)


async def test_an_end_nobody_knows_adds_nothing(
    ledger: Ledger, lease: Lease, hand: Hand, db: psycopg.Connection[Any]
) -> None:
    job, never = hand.job(hand.class_()), hand.job(hand.class_())
    hand.attempt(job, 1, NOON - HOUR)
    await meter(ledger, lease)
    hand.attempt(job, 1, NOON - HOUR, ending="lost")
    hand.attempt(never, 1, NOON - HOUR, ending="lost")
    await meter(ledger, lease, NOON + HOUR)
    assert [piece.device_seconds for _, piece in rows(db)] == [HOUR]
    agree(db, NOON + HOUR)


async def test_without_a_pool_nothing_is_metered_and_what_was_is_taken_back(
    ledger: Ledger, lease: Lease, hand: Hand, db: psycopg.Connection[Any]
) -> None:
    none, some = hand.class_(pool=""), hand.class_()
    job, other = hand.job(none, "done"), hand.job(some, "done")
    for each in (job, other):
        hand.attempt(each, 1, NOON - 90, NOON)
    await meter(ledger, lease)
    assert [key for key, _ in rows(db)] == [(other, 1)]
    hand.move(other, none, "done")
    done = await meter(ledger, lease)
    assert [piece.device_seconds for _, piece in rows(db)] == [90, -90]
    assert [(u.used, u.taken_back) for u in done.used] == [(0, 90)]
    agree(db)


async def test_hours_that_do_not_hold_it_are_refused_and_nothing_is_kept(
    ledger: Ledger, lease: Lease, hand: Hand, db: psycopg.Connection[Any]
) -> None:
    job = hand.job(hand.class_(), "done")
    hand.attempt(job, 1, NOON - 30 * 86400, NOON - 10)
    before = read(db, NOON)
    with pytest.raises(HoursTooFew):
        await meter(ledger, lease, first=NOON - HOUR)
    assert read(db, NOON) == before
    assert await ledger.metering.span(CLUSTER, 10) == (NOON - 30 * 86400, NOON - 10)
    await meter(ledger, lease)
    agree(db)


async def test_an_old_lease_meters_nothing(
    ledger: Ledger, lease: Lease, hand: Hand, db: psycopg.Connection[Any]
) -> None:
    hand.attempt(hand.job(hand.class_(), "done"), 1, NOON - 10, NOON)
    await ledger.leases.release(lease)
    with pytest.raises(LeaseLost):
        await meter(ledger, lease)
    assert rows(db) == []


async def test_another_cluster_s_jobs_are_left_alone(
    ledger: Ledger, hand: Hand, db: psycopg.Connection[Any]
) -> None:
    hand.attempt(hand.job(hand.class_(), "done"), 1, NOON - 10, NOON)
    other = await ledger.leases.take("meter", "cloud", "test", 60)
    assert other is not None
    assert (await meter(ledger, other)).taken == 0
    assert read(db, NOON).queued == 1


@pytest.mark.parametrize("zone", ZONES)
async def test_whatever_becomes_of_attempts_row_by_row_as_the_pure_function_has_it(
    ledger: Ledger, lease: Lease, hand: Hand, db: psycopg.Connection[Any], zone: str
) -> None:
    """Every kind of change between two looks, 700 a zone, and every row is the one the function gives.

    But for what was over after the mark and runs after all: that is taken back to the mark, from where on the
    hour is added as for all that runs. Other rows, the same seconds.
    """
    dice, calendar = random.Random(zone), Calendar(ZoneInfo(zone))
    classes = [hand.class_("a"), hand.class_("b"), hand.class_("a", "mig", "1g.10gb"), hand.class_(pool="")]
    jobs = [hand.job(dice.choice(classes)) for _ in range(100)]
    now = NOON - 40 * 86400
    kept: dict[Key, AttemptUsage] = {}
    wanted: Counter[tuple[Key, UsagePiece]] = Counter()
    again: set[Key] = set()
    mark = now
    for _ in range(7):
        with db.transaction():
            for job in jobs:
                befall(hand, dice, job, classes, now)
        upto = calendar.hour_start(now)
        while (await meter(ledger, lease, upto, zone, most=70)).taken:
            pass
        truth = read(db, upto).truth
        # What nobody knows the end of stays as it was; the function is told so.
        for key in {*kept, *truth}:
            for piece in difference(kept.get(key), _told(db, key, upto, kept.get(key)), calendar):
                wanted[key, piece] += 1
        again |= {key for key, was in kept.items() if was.end > mark and key in truth}
        kept, mark = truth, upto
        agree(db, upto, zone)
        found = Counter(rows(db))
        assert steps(found) == steps(wanted)
        assert {row for row in found if row[0] not in again} == {row for row in wanted if row[0] not in again}
        assert all(piece.hour == calendar.hour_start(piece.start) for _, piece in found)
        assert all(piece.end <= calendar.next_hour(piece.hour) for _, piece in found)
        now += dice.randrange(0, 6 * 86400)


def steps(found: Counter[tuple[Key, UsagePiece]]) -> Counter[tuple[Key, int, int]]:
    """How many devices more an attempt holds of a class from each second on, by all its rows."""
    more: Counter[tuple[Key, int, int]] = Counter()
    for (key, piece), times in found.items():
        more[key, piece.holder, piece.start] += times * piece.devices
        more[key, piece.holder, piece.end] -= times * piece.devices
    return Counter({moment: devices for moment, devices in more.items() if devices})


def _told(
    db: psycopg.Connection[Any], key: Key, upto: int, before: AttemptUsage | None
) -> AttemptUsage | None:
    """What is true of one attempt, also if it held nothing (yet)."""
    row = db.execute(
        "SELECT j.class, a.devices, a.started_at, a.ended_at, a.ending, c.pool, j.state FROM attempt a"
        " JOIN job j ON j.id = a.job JOIN job_class c ON c.id = j.class WHERE a.job = %s AND a.number = %s",
        key,
    ).fetchone()
    if row is None or not row[5]:
        return None
    start = seconds(row[2])
    if row[3] is not None:
        end = seconds(row[3])
    elif row[4] is None and row[6] == "running":
        end = upto
    else:
        end = start if before is None else before.end
    return AttemptUsage(row[0], row[1], start, max(start, end))


AGES = (0, 10, 3000, 5 * HOUR, 40 * HOUR, 20 * 86400)


def befall(
    hand: Hand, dice: random.Random, job: int, classes: list[int], now: int, ages: Sequence[int] = AGES
) -> None:
    """Something, or nothing, happens to a job."""
    number = dice.choice((1, 1, 2))
    start = now - dice.choice(ages) - dice.random()
    match dice.choice(("runs", "ends", "ends", "lost", "drop", "move", "over", "nothing")):
        case "runs":
            hand.attempt(job, number, start, devices=dice.choice((0, 1, 8)))
        case "ends":
            end = start + dice.choice((-5, 0, 0.5, 1, 1800, HOUR, 30 * HOUR))
            hand.attempt(job, number, start, end, devices=dice.choice((1, 4)))
        case "lost":
            hand.attempt(job, number, start, ending="lost")
        case "drop":
            hand.drop(job, number)
        case "move":
            hand.move(job, dice.choice(classes), "running")
        case "over":
            hand.move(job, dice.choice(classes), "done")


async def test_a_planted_fault_is_found(
    ledger: Ledger, lease: Lease, hand: Hand, db: psycopg.Connection[Any]
) -> None:
    """Seconds lost, doubled, in the wrong hour or of the wrong team: the comparison sees each."""
    hand.attempt(hand.job(hand.class_(), "done"), 1, NOON - 2 * HOUR, NOON)
    other = hand.class_("other")
    await meter(ledger, lease)
    agree(db)
    for fault in (
        "UPDATE usage SET seconds = seconds - 1 WHERE hour = (SELECT min(hour) FROM usage)",
        "INSERT INTO usage SELECT * FROM usage LIMIT 1",
        "UPDATE usage_hour SET hour = hour - interval '1 hour'",
        "UPDATE usage_day SET device_seconds = device_seconds + 1",
        f"UPDATE usage_day SET class = {other}",
        "UPDATE usage_team_day SET device_seconds = device_seconds + 1",
        "UPDATE usage_team_day SET team = 'other'",
        "UPDATE metered SET metered_to = metered_to - interval '1 second'",
        "INSERT INTO to_meter (cluster, job) VALUES ('hpc', 1)",
    ):
        with db.transaction(force_rollback=True):
            db.execute(fault)
            assert read_inside(db).faults(Calendar(UTC)) != [], fault
    agree(db)


def read_inside(db: psycopg.Connection[Any]) -> Any:
    return read(db, NOON, own=False)


# the mirror's part


async def queued(db: psycopg.Connection[Any]) -> list[int]:
    found = [job for (job,) in db.execute("DELETE FROM to_meter RETURNING job")]
    return sorted(found)


async def test_the_mirror_queues_what_changes_usage_and_nothing_else(
    ledger: Ledger, db: psycopg.Connection[Any]
) -> None:
    desk = await Desk.of(ledger)
    (id_,) = await desk.submit(new_job())
    (name,) = await desk.send(id_)
    await desk.see(seen(f"e{id_}-1", name, JobState.WAITING))
    assert await queued(db) == []
    await desk.see(seen(f"e{id_}-1", name, JobState.RUNNING, run(5)))
    assert await queued(db) == [id_]
    await desk.see(seen(f"e{id_}-1", name, JobState.RUNNING, run(5), reason="still"))
    await desk.see(seen(f"e{id_}-1", name, JobState.RUNNING, run(5), reason="still"))
    assert await queued(db) == []
    await desk.see(seen(f"e{id_}-1", name, JobState.DONE, run(5, 9, Ending.DONE, exit_code=0)))
    assert await queued(db) == [id_]


async def test_a_native_job_that_changes_its_team_is_queued(
    ledger: Ledger, db: psycopg.Connection[Any]
) -> None:
    desk = await Desk.of(ledger)
    await desk.see(seen("n1", "native", JobState.RUNNING, run(5)))
    (id_,) = await queued(db)
    await desk.see(seen("n1", "native", JobState.RUNNING, run(5), team="product"))
    assert await queued(db) == [id_]


async def test_lost_jobs_are_queued(ledger: Ledger, db: psycopg.Connection[Any]) -> None:
    desk = await Desk.of(ledger)
    await desk.see(seen("n1", "native", JobState.RUNNING, run(5)))
    (id_,) = await queued(db)
    async with ledger.writing(desk.mirror) as tx:
        await tx.mirror.mark_lost([EngineId("n1")])
    assert await queued(db) == [id_]


async def test_a_start_that_came_to_nothing_is_taken_back_when_the_job_is_over(
    ledger: Ledger, db: psycopg.Connection[Any]
) -> None:
    """Seen on Slurm: sent back, about to start again, cancelled; the accounting knows one attempt only."""
    desk = await Desk.of(ledger)
    first = run(20, 27, Ending.REQUEUED)
    await desk.see(seen("n1", "native", JobState.RUNNING, first, run(27)))
    (id_,) = await queued(db)
    await desk.see(seen("n1", "native", JobState.WAITING, first))  # may be older than what was seen
    assert len((await desk.detail(JobId(id_))).attempts) == 2
    await desk.see(seen("n1", "native", JobState.CANCELLED, first, ended_at=at(62)))
    detail = await desk.detail(JobId(id_))
    assert detail.row.state is JobState.CANCELLED
    assert [kept.attempt for kept in detail.attempts] == [first]
    assert id_ in await queued(db)
