"""Months of usage have partitions when they are needed, whoever needs them at once, and nobody waits."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime

import psycopg
import pytest

from fairway.ledger import Ledger
from fairway.ledger.usage import partitions


def hour(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp())  # type: ignore[misc,arg-type]


def attached(url: str) -> list[str]:
    with psycopg.connect(url) as db:
        wanted = "SELECT relid::text FROM pg_partition_tree('usage') WHERE isleaf AND level = 1 ORDER BY 1"
        return [name for (name,) in db.execute(wanted)]


async def test_a_row_has_a_place_when_its_month_was_asked_for(database_url: str, ledger: Ledger) -> None:
    await ledger.partitions.ensure([])
    assert attached(database_url) == []
    last = hour(2026, 12, 31, 23)
    await ledger.partitions.ensure([last, last, hour(2028, 2, 29)])
    assert attached(database_url) == ["usage_2026_12", "usage_2028_02"]
    row = "INSERT INTO usage VALUES (to_timestamp(%s), now(), now(), 1, 1, 1, 1, 1)"
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute(row, (last,))
        with pytest.raises(psycopg.errors.CheckViolation):
            db.execute(row, (last + 3600,))  # the next year's
        await ledger.partitions.ensure([last + 3600])
        db.execute(row, (last + 3600,))


async def test_many_servers_at_once(database_url: str) -> None:
    ledgers = [await Ledger.connect(database_url) for _ in range(6)]
    for year in (2026, 2027, 2028):
        hours = [hour(year, month, 5) for month in (1, 2)]
        await asyncio.gather(*(ledger.partitions.ensure(hours) for ledger in ledgers))
    assert len(attached(database_url)) == 6
    for ledger in ledgers:
        await ledger.close()


async def test_neither_readers_nor_writers_are_in_the_way(database_url: str, ledger: Ledger) -> None:
    await ledger.partitions.ensure([hour(2026, 1, 1)])
    with psycopg.connect(database_url) as db:  # an open transaction that has written and read
        db.execute(
            "INSERT INTO usage VALUES (to_timestamp(%s), now(), now(), 1, 1, 1, 1, 1)", (hour(2026, 1, 1),)
        )
        db.execute("SELECT count(*) FROM usage")
        await asyncio.wait_for(ledger.partitions.ensure([hour(2026, 2, 1)]), 60)
    assert len(attached(database_url)) == 2


def test_names_and_months() -> None:
    assert partitions.table(date(2026, 3, 1)) == "usage_2026_03"
    assert partitions.month_in("usage_leaving_2026_03") == date(2026, 3, 1)
    assert partitions.following(date(2026, 12, 1)) == date(2027, 1, 1)
    assert partitions.month_of(hour(2026, 11, 30, 23)) == date(2026, 11, 1)
