"""Coverage, utilisation and break-even from a ledger, against a plain sum of its rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest

from fairway.cost.commitments import CommitmentUse
from fairway.ledger import Ledger
from fairway.model.fleet import Fleet
from fairway.model.price import Commitment, Pricing, Sharing
from fairway.services.charges import Costs
from fairway.services.commitments import commitment_uses
from fairway.services.convert.costs import commitments
from tests.unit.services.cost_history import NOW, OCTOBER, CostBook, fill, with_rules

DAYS = 5
HOURS = 24 * DAYS


@pytest.fixture
async def book(ledger: Ledger, database_url: str) -> AsyncIterator[CostBook]:
    made = CostBook(database_url)
    yield made
    made.close()


def committed(*gpus: int) -> Fleet:
    """The fleet, whose four spot GPUs have commitments of so many GPUs, at 0.31 instead of 0.55."""
    fleet = with_rules(Sharing.OWN_LINE, Sharing.OWN_LINE)
    each = tuple(Commitment(n, Decimal("0.31"), OCTOBER, date(2027, 1, 1), f"cud-{n}") for n in gpus)
    pricing = Pricing(commitments=each)
    pools = (replace(p, pricing=pricing) if p.name == "spot" else p for p in fleet.pools)
    return replace(fleet, pools=tuple(pools))


async def uses(ledger: Ledger, book: CostBook, *gpus: int) -> tuple[Fraction, dict[str, CommitmentUse]]:
    rows = await fill(ledger, book, OCTOBER, DAYS)
    used = Fraction(sum(r.seconds * r.devices for r in rows if r.of.pool == "spot"), 3600)
    _, found = await commitment_uses(Costs(ledger), committed(*gpus), "2026-10-01..2026-10-05", None, NOW)
    assert {pool for pool, _, _ in found} == {"spot"}
    return used, {commitment.id: use for _, commitment, use in found}


async def test_more_is_committed_than_there_is(ledger: Ledger, book: CostBook) -> None:
    used, found = await uses(ledger, book, 6)
    use = found["cud-6"]
    assert (use.used, use.idle) == (used, 4 * HOURS - used)
    assert use.absent == 2 * HOURS and use.coverage == 1
    assert use.utilisation == used / (6 * HOURS)
    assert use.break_even == Fraction(31, 55)
    assert use.saved == used * Fraction(55, 100) - 6 * HOURS * Fraction(31, 100)


async def test_two_cover_a_part_each_and_the_rest_is_uncovered(ledger: Ledger, book: CostBook) -> None:
    used, found = await uses(ledger, book, 2, 1)
    two, one = found["cud-2"], found["cud-1"]
    assert (two.used, one.used, two.uncovered) == (used / 2, used / 4, used / 4)
    assert two.committed == 2 * HOURS and one.committed == HOURS
    assert two.utilisation == one.utilisation == used / (4 * HOURS)
    assert two.absent == one.absent == 0


async def test_what_people_read_is_rounded_once(ledger: Ledger, book: CostBook) -> None:
    used, _ = await uses(ledger, book, 6)
    fleet = committed(6)
    window, found = await commitment_uses(Costs(ledger), fleet, "2026-10-01..2026-10-05", "spot", NOW)
    (row,) = commitments(fleet, window, found).commitments
    assert (row.id, row.pool, row.gpus, row.list_price) == ("cud-6", "spot", 6, Decimal("0.55"))
    assert (row.coverage, row.break_even) == (Decimal("100.0"), Decimal("56.4"))
    assert abs(row.used_hours - Decimal(float(used))) < Decimal("0.01")
    assert (await commitment_uses(Costs(ledger), fleet, "2026-09", "spot", NOW))[1] == []
    assert (await commitment_uses(Costs(ledger), fleet, "2026-10", "a100", NOW))[1] == []
