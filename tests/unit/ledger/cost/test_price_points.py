"""Spot prices: the newest word on a moment holds, and what held when a window began comes with it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import psycopg

from fairway.ledger import Ledger, PricePointRow
from fairway.model.charge import Span
from fairway.model.names import PoolName

SPOT, OTHER = PoolName("spot"), PoolName("other")


def at(hour: int) -> datetime:
    return datetime(2026, 10, 1, hour, tzinfo=UTC)


def point(hour: int, price: str, pool: PoolName = SPOT) -> PricePointRow:
    return PricePointRow(pool, at(hour), Decimal(price))


def window(first: int, last: int) -> Span:
    return Span(int(at(first).timestamp()), int(at(last).timestamp()))


async def prices(ledger: Ledger, first: int, last: int) -> list[tuple[int, str]]:
    found = await ledger.prices.points([SPOT], window(first, last))
    return [(p.at.hour, str(p.per_gpu_hour)) for p in found.get(SPOT, ())]


async def test_from_the_one_that_held_when_it_began(ledger: Ledger) -> None:
    assert await prices(ledger, 0, 20) == []
    given = [point(1, "1.10"), point(3, "1.30"), point(5, "1.50"), point(9, "9", OTHER)]
    assert await ledger.prices.add(given, by="ann") == 4
    assert await prices(ledger, 4, 6) == [(3, "1.30"), (5, "1.50")]
    assert await prices(ledger, 3, 5) == [(3, "1.30")]
    assert await prices(ledger, 0, 2) == [(1, "1.10")]
    assert await prices(ledger, 8, 9) == [(5, "1.50")]
    both = await ledger.prices.points([SPOT, OTHER, PoolName("none")], window(0, 20))
    assert {pool: len(those) for pool, those in both.items()} == {SPOT: 3, OTHER: 1}


async def test_the_newest_word_holds_and_the_older_stay(ledger: Ledger, database_url: str) -> None:
    await ledger.prices.add([point(1, "1"), point(3, "3")], by="ann")
    assert await ledger.prices.add([point(3, "4"), point(3, "5")], by="bob") == 1
    assert await prices(ledger, 4, 6) == [(3, "5")]
    assert await ledger.prices.add([point(3, "5.0"), point(1, "1")], by="eve") == 0
    assert await ledger.prices.add([point(3, "3")], by="eve") == 1  # back to what it was
    assert await prices(ledger, 0, 6) == [(1, "1"), (3, "3")]
    assert await ledger.prices.add([], by="eve") == 0
    with psycopg.connect(database_url) as db:
        assert db.execute("SELECT count(*) FROM price_point").fetchone() == (4,)


async def test_a_withdrawn_point_no_longer_applies_and_stays_in_the_history(ledger: Ledger) -> None:
    await ledger.prices.add([point(1, "1"), point(3, "0.01"), point(5, "5"), point(3, "9", OTHER)], by="ann")
    assert await ledger.prices.withdraw(SPOT, at(2), at(5), by="bob") == 1
    assert await prices(ledger, 0, 6) == [(1, "1"), (5, "5")]
    assert await prices(ledger, 4, 5) == [(1, "1")]  # the one before it applies again
    assert await ledger.prices.withdraw(SPOT, at(2), at(5), by="bob") == 0
    assert len((await ledger.prices.points([OTHER], window(0, 6)))[OTHER]) == 1
    history = await ledger.prices.stored(SPOT, limit=10, history=True)
    assert [(p.at.hour, p.per_gpu_hour and str(p.per_gpu_hour), p.by, p.newest) for p in history] == [
        (5, "5", "ann", True),
        (3, None, "bob", True),
        (3, "0.01", "ann", False),
        (1, "1", "ann", True),
    ]
    assert history[1].kept_at > history[2].kept_at
    assert [p.at.hour for p in await ledger.prices.stored(SPOT, limit=10)] == [5, 1]
    assert [p.at.hour for p in await ledger.prices.stored(SPOT, limit=1)] == [5]
    assert [p.at.hour for p in await ledger.prices.stored(SPOT, limit=9, until=at(5))] == [1]
    assert await ledger.prices.add([point(3, "3")], by="ann") == 1
    assert await prices(ledger, 4, 5) == [(3, "3")]


async def test_everything_withdrawn_is_as_if_there_had_been_none(ledger: Ledger) -> None:
    await ledger.prices.add([point(1, "1"), point(3, "3")], by="ann")
    assert await ledger.prices.withdraw(SPOT, at(0), None, by="bob") == 2
    assert await prices(ledger, 0, 20) == []
    assert await ledger.prices.stored(SPOT, limit=9) == ()
