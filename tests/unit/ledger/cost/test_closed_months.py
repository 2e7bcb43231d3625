"""A month closes once, whole, in order."""

from __future__ import annotations

import asyncio
from datetime import date
from decimal import Decimal

import psycopg
import pytest

from fairway.ledger import ClosedCharge, Ledger, MonthClosed, MonthOpen
from fairway.model.charge import ChargeKind
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName
from fairway.model.team import Supply

AUGUST, SEPTEMBER, OCTOBER = date(2026, 8, 1), date(2026, 9, 1), date(2026, 10, 1)
HPC = ClusterName("hpc")


def charge(amount: str, used_in: date = OCTOBER, team: str | None = "research") -> ClosedCharge:
    supply = Supply(PoolName("mig"), SliceName("1g.10gb"))
    name = None if team is None else TeamName(team)
    return ClosedCharge(used_in, ChargeKind.USAGE, HPC, supply, name, 3600, Decimal(amount))


async def close(ledger: Ledger, month: date, *charges: ClosedCharge) -> None:
    closed = await ledger.months.close(month, charges, by="ann", currency="USD", timezone="UTC")
    assert (closed.month, closed.by, closed.currency, closed.timezone) == (month, "ann", "USD", "UTC")
    assert closed in await ledger.months.all()


async def test_what_was_told_comes_back(ledger: Ledger) -> None:
    overhead = ClosedCharge(OCTOBER, ChargeKind.OVERHEAD, HPC, None, None, 0, Decimal("-0.01"))
    await close(ledger, OCTOBER, charge("12.30"), overhead, charge("5", SEPTEMBER, None))
    assert await ledger.months.charges(month=OCTOBER) == (
        (OCTOBER, charge("12.30")),
        (OCTOBER, overhead),
        (OCTOBER, charge("5", SEPTEMBER, None)),
    )
    assert await ledger.months.charges(used_in=SEPTEMBER) == ((OCTOBER, charge("5", SEPTEMBER, None)),)
    assert await ledger.months.charges(month=SEPTEMBER) == ()


async def test_once(ledger: Ledger) -> None:
    await close(ledger, OCTOBER, charge("1"))
    with pytest.raises(MonthClosed):
        await close(ledger, OCTOBER, charge("2"))
    with pytest.raises(MonthClosed):  # its corrections were told in October
        await close(ledger, SEPTEMBER)
    assert await ledger.months.charges() == ((OCTOBER, charge("1")),)


async def test_of_many_at_once_one_closes_it(ledger: Ledger) -> None:
    every = [close(ledger, OCTOBER, charge(str(n))) for n in range(6)]
    ended = await asyncio.gather(*every, return_exceptions=True)
    assert sum(isinstance(one, MonthClosed) for one in ended) == 5
    assert len(await ledger.months.charges()) == 1


@pytest.mark.parametrize(
    "row", ["usage_day VALUES (%s, 1, 1)", "capacity_day VALUES (%s, 'hpc', 'a', '', 1, 0, 0, 0, 1)"]
)
async def test_in_order(ledger: Ledger, database_url: str, row: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute(f"INSERT INTO {row}", (date(2026, 8, 31),))
    with pytest.raises(MonthOpen, match="2026-08 is not closed"):
        await close(ledger, OCTOBER)
    await close(ledger, AUGUST)
    await close(ledger, OCTOBER)  # nothing was used in September, nor could have been


async def test_all_or_nothing(ledger: Ledger) -> None:
    wrong = ClosedCharge(OCTOBER, ChargeKind.USAGE, ClusterName("\0"), None, None, 1, Decimal(1))
    with pytest.raises(Exception, match="u0000"):
        await close(ledger, OCTOBER, charge("1"), wrong)
    assert await ledger.months.all() == ()
    assert await ledger.months.charges() == ()
