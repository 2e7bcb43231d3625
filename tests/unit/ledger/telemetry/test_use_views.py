"""What pages and lists read of GPU use: measured and unmeasured add up to held, now beside the whole life."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest

from fairway.ledger import Ledger
from fairway.model.gpu_use import Device, MetricCode
from fairway.model.job import JobId
from tests.measured import did, measure
from tests.metered import Hand

NOON = int(datetime(2026, 11, 1, 12, tzinfo=UTC).timestamp())
FIRST, SECOND = Device("n1", "0"), Device("n1", "10")


@pytest.fixture
def hand(database_url: str) -> Iterator[Hand]:
    with psycopg.connect(database_url, autocommit=True) as db:
        yield Hand(db)


def running(hand: Hand, start: float, end: float | None = None, devices: int = 2) -> JobId:
    job = hand.job(hand.class_())
    hand.attempt(job, 1, start, end, devices=devices)
    return JobId(job)


async def test_a_job_is_read_up_to_what_was_read_of_its_cluster(ledger: Ledger, hand: Hand) -> None:
    job = running(hand, NOON - 600)
    await measure(ledger, NOON, 1, {job: {FIRST: did(0.2, sm=0.1, memory=1000), SECOND: did(0.0)}})
    until = await measure(ledger, NOON + 300, 1, {job: {FIRST: did(1.0, 240, sm=0.5, memory=500)}})
    found = (await ledger.use_views.jobs([job]))[job]
    assert found.held == 2 * 1200  # ten minutes before anything was measured
    assert found.use.measured == 300 + 300 + 240
    assert found.idle == 300
    assert found.use.ratio(MetricCode.ENGINE) == (0.2 * 300 + 240) / 840
    assert found.use.ratio(MetricCode.TENSOR) is None
    assert found.use.peak_memory_mib == 1000
    assert found.read_to.timestamp() == until
    assert found.latest is not None
    assert (found.latest.at.timestamp(), found.latest.gpus) == (NOON + 300, 1)
    assert found.latest.means[MetricCode.SM] == pytest.approx(0.5)
    assert found.latest.means[MetricCode.MEMORY] == pytest.approx(500)


async def test_a_job_that_nobody_measured_is_unmeasured_and_not_idle(ledger: Ledger, hand: Hand) -> None:
    silent, over, elsewhere = running(hand, NOON), running(hand, NOON - 900, NOON - 300), hand.job(1)
    await measure(ledger, NOON, 2, {})
    found = await ledger.use_views.jobs([silent, over, JobId(elsewhere)])
    assert {job: (use.held, use.use.measured, use.idle, use.latest) for job, use in found.items()} == {
        silent: (1200.0, 0.0, 0.0, None),
        over: (1200.0, 0.0, 0.0, None),
    }


async def test_without_metrics_of_the_cluster_there_is_no_use(ledger: Ledger, hand: Hand) -> None:
    assert await ledger.use_views.jobs([running(hand, NOON)]) == {}
    assert await ledger.use_views.jobs([]) == {}


async def test_gpus_are_listed_by_index_with_the_last_window_of_each(ledger: Ledger, hand: Hand) -> None:
    job = running(hand, NOON)
    await measure(ledger, NOON, 1, {job: {SECOND: did(0.5), FIRST: did(0.5)}})
    await measure(ledger, NOON + 300, 1, {job: {SECOND: did(0.9, power=400)}})
    first, second = await ledger.use_views.devices(job)
    assert (first.device, second.device) == (FIRST, SECOND)
    assert first.latest is not None
    assert second.latest is not None
    assert (first.latest.at.timestamp(), second.latest.at.timestamp()) == (NOON, NOON + 300)
    assert dict(second.latest.means) == pytest.approx({MetricCode.ENGINE: 0.9, MetricCode.POWER: 400})
    assert second.use.ratio(MetricCode.ENGINE) == pytest.approx(0.7)


async def test_the_course_is_oldest_first(ledger: Ledger, hand: Hand) -> None:
    job = running(hand, NOON)
    await measure(ledger, NOON, 12, {job: {FIRST: did(0.5), SECOND: did(0.0)}})
    await measure(ledger, NOON + 3600, 1, {job: {FIRST: did(1.0)}})
    hours = await ledger.use_views.hours(job)
    assert [(h.start.timestamp(), h.use.measured, h.idle) for h in hours] == [
        (NOON, 7200.0, 3600.0),
        (NOON + 3600, 300.0, 0.0),
    ]
    windows = await ledger.use_views.windows(job)
    assert len(windows) == 13
    assert (windows[0].use.measured, windows[0].idle) == (600.0, 300.0)
    assert windows[-1].use.ratio(MetricCode.ENGINE) == 1.0
