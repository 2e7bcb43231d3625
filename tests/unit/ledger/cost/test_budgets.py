"""How budgets stand: exactly what was said last, with when it came to that."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from fairway.ledger import LeaseLost, Ledger, StoredBudgetStatus
from fairway.model.budget import BudgetLevel, Hold
from fairway.model.names import TeamName

RESEARCH = StoredBudgetStatus(
    TeamName("research"),
    date(2026, 10, 1),
    Decimal("1000.00"),
    Decimal("812.345678"),
    Decimal("27.1"),
    date(2026, 10, 30),
    BudgetLevel.WARNED,
    None,
    expected=Decimal("1012.34"),
    low=Decimal("980.10"),
    high=Decimal("1051.00"),
)
PRODUCT = replace(
    RESEARCH,
    team=TeamName("product"),
    runs_out=None,
    level=BudgetLevel.OK,
    expected=None,
    low=None,
    high=None,
)


async def keep(ledger: Ledger, *standings: StoredBudgetStatus, said: str | None = None) -> None:
    lease = await ledger.leases.take("budget", "", "a", 60)
    assert lease is not None
    async with ledger.writing(lease) as tx:
        await tx.budgets.write(standings, [(RESEARCH.team, said)] if said else [])


def plain(standing: StoredBudgetStatus) -> StoredBudgetStatus:
    return replace(standing, since=None, checked_at=None)


async def test_exactly_what_was_said_last(ledger: Ledger) -> None:
    assert await ledger.budgets.statuses() == ()
    await keep(ledger, RESEARCH, PRODUCT)
    found = await ledger.budgets.statuses()
    assert [plain(s) for s in found] == [PRODUCT, RESEARCH]
    now = datetime.now(UTC)
    for standing in found:
        assert standing.since == standing.checked_at
        assert standing.since is not None
        assert abs(standing.since - now) < timedelta(minutes=1)
    await keep(ledger, RESEARCH)
    assert [plain(s) for s in await ledger.budgets.statuses()] == [RESEARCH]
    await keep(ledger)
    assert await ledger.budgets.statuses() == ()


async def test_since_when(ledger: Ledger) -> None:
    await keep(ledger, RESEARCH)
    (first,) = await ledger.budgets.statuses()
    await keep(ledger, replace(RESEARCH, spent=Decimal(900)))
    (second,) = await ledger.budgets.statuses()
    assert second.since == first.since
    assert first.checked_at is not None
    assert second.checked_at is not None
    assert second.checked_at > first.checked_at
    await keep(ledger, replace(RESEARCH, level=BudgetLevel.SPENT, hold=Hold.STOP))
    (third,) = await ledger.budgets.statuses()
    assert third.since == third.checked_at
    assert third.hold is Hold.STOP


async def test_what_happened(ledger: Ledger) -> None:
    for n in range(5):
        await keep(ledger, RESEARCH, said=f"event {n}")
    newest = await ledger.budgets.events(limit=2)
    assert [(e.team, e.text) for e in newest] == [("research", "event 4"), ("research", "event 3")]
    older = await ledger.budgets.events(team="research", before=newest[-1].id)
    assert [e.text for e in older] == ["event 2", "event 1", "event 0"]
    assert await ledger.budgets.events(team="product") == ()


async def test_only_under_the_lease(ledger: Ledger) -> None:
    lease = await ledger.leases.take("budget", "", "a", 60)
    assert lease is not None
    await ledger.leases.release(lease)
    with pytest.raises(LeaseLost):
        async with ledger.writing(lease) as tx:
            await tx.budgets.write([RESEARCH])
    assert await ledger.budgets.statuses() == ()
