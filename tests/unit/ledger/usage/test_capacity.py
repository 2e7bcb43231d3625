"""What there was, by hour and day, and up to now as it was last seen."""

from __future__ import annotations

from datetime import date

import psycopg
import pytest

from fairway.ledger import Ledger
from fairway.model.charge import CapacitySum, Span
from tests.unit.ledger.usage_samples import calendar, moment

HOUR = 3600
KOLKATA = calendar("Asia/Kolkata")
DAY = KOLKATA.day_start(date(2026, 10, 1))


@pytest.fixture
def filled(database_url: str) -> None:
    """Two days by hour, 8 devices of one cluster and 7 slices of another."""
    with psycopg.connect(database_url) as db:
        for cluster, pool, slice_, total, gpus in (("hpc", "a100", "", 8, 8), ("cloud", "mig", "1g", 7, 1)):
            values = (cluster, pool, slice_, total * HOUR, HOUR, 0, 2 * HOUR, gpus * HOUR)
            for n in range(48):
                db.execute(
                    "INSERT INTO capacity_hour VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                    (moment(DAY + n * HOUR), *values),
                )
            for n in (1, 2):
                db.execute(
                    "INSERT INTO capacity_day VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                    (date(2026, 10, n), *values[:3], *(24 * v for v in values[3:])),
                )
            db.execute(
                "INSERT INTO capacity_now VALUES (%s, %s, %s, %s, %s, 1, 0, 2, %s)",
                (cluster, pool, slice_, moment(DAY + 48 * HOUR), total, gpus),
            )


def numbers(found: CapacitySum) -> tuple[int, ...]:
    return (found.total, found.drained, found.down, found.fragmented, found.gpu_seconds)


@pytest.mark.usefixtures("filled")
async def test_by_hour_and_by_day(ledger: Ledger) -> None:
    window = Span(DAY, DAY + 48 * HOUR)
    hours = await ledger.capacity.sums(window, local=KOLKATA, by_day=False)
    days = await ledger.capacity.sums(window, local=KOLKATA, by_day=True)
    assert (len(hours), len(days)) == (96, 4)
    assert [d.start for d in days] == [DAY, DAY, DAY + 24 * HOUR, DAY + 24 * HOUR]
    assert [(d.cluster, str(d.supply)) for d in days[:2]] == [("cloud", "mig/1g"), ("hpc", "a100")]
    assert numbers(days[0]) == tuple(24 * HOUR * n for n in (7, 1, 0, 2, 1))
    assert numbers(hours[-1]) == tuple(HOUR * n for n in (8, 1, 0, 2, 8))
    assert sum(d.total for d in days) == sum(h.total for h in hours)


@pytest.mark.usefixtures("filled")
async def test_a_part_of_the_time_and_of_the_clusters(ledger: Ledger) -> None:
    window = Span(DAY + 3 * HOUR, DAY + 24 * HOUR)
    hours = await ledger.capacity.sums(window, local=KOLKATA, by_day=False, clusters=["hpc"])
    assert [h.start for h in hours] == [DAY + n * HOUR for n in range(3, 24)]
    assert {h.cluster for h in hours} == {"hpc"}
    window = Span(DAY + 24 * HOUR, DAY + 48 * HOUR)
    (day,) = await ledger.capacity.sums(window, local=KOLKATA, by_day=True, clusters=["hpc"])
    assert day.start == DAY + 24 * HOUR
    assert await ledger.capacity.sums(window, local=KOLKATA, by_day=True, clusters=[]) == ()


@pytest.mark.usefixtures("filled")
async def test_since_it_was_last_counted_it_is_as_it_was_last_seen(ledger: Ledger) -> None:
    end = DAY + 48 * HOUR
    window = Span(end, end + 24 * HOUR)
    until = end + 2 * HOUR + 10
    (day,) = await ledger.capacity.sums(
        window, local=KOLKATA, by_day=True, clusters=["hpc"], live_until=until
    )
    assert numbers(day) == tuple((2 * HOUR + 10) * n for n in (8, 1, 0, 2, 8))
    hours = await ledger.capacity.sums(
        window, local=KOLKATA, by_day=False, clusters=["hpc"], live_until=until
    )
    assert [(h.start, h.total) for h in hours] == [
        (end, 8 * HOUR),
        (end + HOUR, 8 * HOUR),
        (end + 2 * HOUR, 80),
    ]
    assert await ledger.capacity.sums(window, local=KOLKATA, by_day=True) == ()


async def test_an_hour_that_is_half_counted_is_completed(ledger: Ledger, database_url: str) -> None:
    with psycopg.connect(database_url) as db:
        db.execute(
            "INSERT INTO capacity_hour VALUES (%s, 'hpc', 'a100', '', 800, 0, 0, 0, 800)", (moment(DAY),)
        )
        db.execute(
            "INSERT INTO capacity_now VALUES ('hpc', 'a100', '', %s, 4, 0, 1, 0, 4)", (moment(DAY + 100),)
        )
    (hour,) = await ledger.capacity.sums(
        Span(DAY, DAY + HOUR), local=KOLKATA, by_day=False, live_until=DAY + 150
    )
    assert numbers(hour) == (800 + 200, 0, 50, 0, 800 + 200)
