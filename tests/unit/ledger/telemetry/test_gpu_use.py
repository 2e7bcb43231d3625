"""What GPUs did is added once, by job, GPU, hour, day, team and node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime
from typing import Any

import psycopg
import pytest

from fairway.ledger import Lease, LeaseLost, Ledger
from fairway.model.gpu_use import Device, GpuUse, JobDevices, MetricCode, Window
from fairway.model.job import JobId
from tests.metered import CLUSTER, Hand

NOON = int(datetime(2026, 11, 1, 12, tzinfo=UTC).timestamp())
FIRST, SECOND = Window(NOON, NOON + 300), Window(NOON + 300, NOON + 600)
GPU = Device("n1", "0")


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def hand(db: psycopg.Connection[Any]) -> Hand:
    return Hand(db)


@pytest.fixture
async def lease(ledger: Ledger) -> AsyncIterator[Lease]:
    taken = await ledger.leases.take("telemetry", CLUSTER, "test", 60)
    assert taken is not None
    yield taken


@pytest.fixture
async def job(ledger: Ledger, lease: Lease, hand: Hand) -> JobId:
    """A job on a cluster whose GPU metrics are read from NOON on."""
    async with ledger.writing(lease) as tx:
        await tx.gpu_use.start(NOON, 30.0)
    return JobId(hand.job(hand.class_()))


def use(engine: float, seconds: float = 300, peak: float | None = None) -> GpuUse:
    made = GpuUse()
    made.add({MetricCode.ENGINE: engine, MetricCode.POWER: 400.0}, seconds, peak)
    return made


async def add(ledger: Ledger, lease: Lease, window: Window, jobs: JobDevices) -> None:
    async with ledger.writing(lease) as tx:
        await tx.gpu_use.add(window, NOON, date(2026, 11, 1), jobs, {"n1": (600.0, 300.0)}, 15.0)


def one(db: psycopg.Connection[Any], query: str) -> Any:
    row = db.execute(query).fetchone()
    assert row is not None
    return row if len(row) > 1 else row[0]


async def test_windows_are_added_up(
    ledger: Ledger, lease: Lease, job: JobId, db: psycopg.Connection[Any]
) -> None:
    await add(ledger, lease, FIRST, {job: {GPU: use(0.5, peak=100), Device("n1", "1"): use(0.0)}})
    await add(ledger, lease, SECOND, {job: {GPU: use(1.0, 150, peak=50)}})
    assert one(db, "SELECT engine, engine_seconds, power, idle, memory_peak FROM job_use") == (
        300.0,
        750.0,
        300_000.0,
        300.0,
        100.0,
    )
    assert one(db, "SELECT engine, engine_seconds FROM use_hour") == (300.0, 750.0)
    assert one(db, "SELECT engine, engine_seconds, sm_seconds FROM use_day") == (300.0, 750.0, 0.0)
    assert one(db, "SELECT engine, engine_seconds FROM gpu_use WHERE gpu = '0'") == (300.0, 450.0)
    assert one(db, "SELECT engine, engine_seconds FROM gpu_hour WHERE gpu = '0'") == (300.0, 450.0)
    assert one(db, "SELECT measured, busy FROM node_use") == (1200.0, 600.0)
    assert db.execute("SELECT measured, gpus, idle_gpus FROM job_window ORDER BY started_at").fetchall() == [
        (600.0, 2, 1),
        (150.0, 1, 0),
    ]
    mark = await ledger.gpu_use.mark(CLUSTER)
    assert mark is not None
    assert (mark.read_to, mark.interval) == (SECOND.end, 15.0)


async def test_names_come_from_exporters_and_may_have_any_character(
    ledger: Ledger, lease: Lease, job: JobId, db: psycopg.Connection[Any]
) -> None:
    names = {"n{1},2", 'n"1"', "n\\1", "n\n1", "NULL", "", "knöten", " n1 "}
    await add(ledger, lease, FIRST, {job: {Device(name, "0"): use(0.5) for name in names}})
    assert {row[0] for row in db.execute("SELECT node FROM gpu_use")} == names
    later = {name for name in names if "\\" not in name and "\n" not in name and '"' not in name}
    await add(ledger, lease, SECOND, {job: {Device(name, "0"): use(0.5) for name in later}})
    assert one(db, "SELECT count(*) FROM gpu_use WHERE engine_seconds = 600") == len(later)


async def test_a_window_is_added_once(
    ledger: Ledger, lease: Lease, job: JobId, db: psycopg.Connection[Any]
) -> None:
    await add(ledger, lease, FIRST, {job: {GPU: use(0.5)}})
    for window in (FIRST, Window(NOON + 900, NOON + 1200)):
        with pytest.raises(LeaseLost):
            await add(ledger, lease, window, {job: {GPU: use(0.5)}})
    assert one(db, "SELECT sum(engine_seconds) FROM job_use") == 300.0


async def test_old_windows_are_forgotten_and_sums_stay(
    ledger: Ledger, lease: Lease, job: JobId, db: psycopg.Connection[Any]
) -> None:
    await add(ledger, lease, FIRST, {job: {GPU: use(0.5)}})
    later = Window(NOON + 86_400, NOON + 86_700)
    async with ledger.writing(lease) as tx:
        await tx.gpu_use.start(later.start, 30.0)
    await add(ledger, lease, later, {})
    assert one(db, "SELECT count(*) FROM job_window") == 0
    assert one(db, "SELECT count(*) FROM gpu_hour") == 0
    assert one(db, "SELECT sum(engine_seconds) FROM job_use") == 300.0


async def test_holdings_by_the_exporters_name_and_by_gpu(
    ledger: Ledger, hand: Hand, db: psycopg.Connection[Any]
) -> None:
    named, located, elsewhere = (hand.job(hand.class_()) for _ in range(3))
    hand.attempt(named, 1, NOON - 100, NOON + 100, devices=2)
    hand.attempt(named, 2, NOON + 200, devices=2)
    hand.attempt(located, 1, NOON - 100, devices=1)
    hand.attempt(elsewhere, 1, NOON - 100, devices=4)
    rows = [
        (named, 1, "n1", CLUSTER, ["17"], [], datetime.fromtimestamp(NOON + 100, UTC)),
        (named, 2, "n1", CLUSTER, ["17"], [], None),
        (named, 2, "n2", CLUSTER, ["17", "16_1"], [], None),
        (located, 1, "n1", CLUSTER, ["18"], [3], None),
        (elsewhere, 1, "n1", "other", ["19"], [], None),
    ]
    for row in rows:
        db.execute("INSERT INTO attempt_gpu VALUES (%s, %s, %s, %s, %s, %s, %s)", row)
    found = await ledger.gpu_use.holdings(CLUSTER, FIRST)
    assert sorted(
        (h.job, h.devices, h.seconds_in(FIRST), sorted(h.holders), dict(h.gpus)) for h in found
    ) == [
        (named, 2, 100.0, ["16_1", "17"], {}),
        (named, 2, 100.0, ["17"], {}),
        (located, 1, 300.0, ["18"], {"n1": (3,)}),
    ]
    assert len(await ledger.gpu_use.holdings(CLUSTER, SECOND)) == 2
