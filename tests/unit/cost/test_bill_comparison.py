"""Our capacity cost against a bill: planted differences are named, and parts add up."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from random import Random

import pytest

from fairway.cost.bill_comparison import Gap, Reconciliation, reconcile
from fairway.model.bill import Bill, BillForm, BillLine, OwnDay
from fairway.model.names import PoolName

CENT = Decimal("0.01")
A, B = PoolName("cloud-a100"), PoolName("cloud-h100")
FIRST = date(2026, 3, 1)


def ours(days: int = 5) -> list[OwnDay]:
    return [
        OwnDay(FIRST + timedelta(days=n), pool, Fraction(hours), Fraction(hours) * price)
        for n in range(days)
        for pool, hours, price in ((A, 192, Fraction("3.67")), (B, 96, Fraction("4.10")))
    ]


def bill(*lines: BillLine) -> Bill:
    return Bill(BillForm.AWS, "EUR", lines, len(lines))


def same() -> list[BillLine]:
    return [
        BillLine(day.day, day.pool, "", Decimal(int(day.gpu_hours)), Decimal(str(float(day.cost))), 24)
        for day in ours()
    ]


def adds_up(found: Reconciliation) -> None:
    assert found.ours + sum(c.difference for c in found.comparisons) == found.bill
    assert sum(amount for _, amount in found.by_gap) == found.bill - found.ours
    for c in found.comparisons:
        assert c.by_price + c.by_hours == c.difference


def test_what_agrees_agrees() -> None:
    found = reconcile(ours(), bill(*same()), CENT)
    adds_up(found)
    assert {c.gap for c in found.comparisons} == {Gap.NONE}
    assert found.by_gap == ((Gap.NONE, Decimal(0)),)


PLANTED = [
    (Gap.PRICE, Decimal(192), Decimal("720.00"), "192 GPU-hours at 3.7500 a GPU-hour, not 3.6700"),
    (Gap.HOURS, Decimal(200), Decimal("734.00"), "200 GPU-hours on the bill, 192 GPU-hours seen"),
    (
        Gap.PRICE_AND_HOURS,
        Decimal(200),
        Decimal("750.00"),
        "200 GPU-hours at 3.7500 on the bill, 192 GPU-hours at 3.6700 seen",
    ),
    (Gap.NONE, Decimal(192), Decimal("704.644"), "agrees"),
    (Gap.PRICE, Decimal(0), Decimal("704.64"), None),
]


@pytest.mark.parametrize(("gap", "hours", "cost", "sentence"), PLANTED)
def test_a_planted_difference_is_named(gap: Gap, hours: Decimal, cost: Decimal, sentence: str | None) -> None:
    lines = same()
    lines[4] = BillLine(FIRST + timedelta(days=2), A, "", hours, cost, 24)
    found = reconcile(ours(), bill(*lines), CENT)
    adds_up(found)
    (planted,) = [c for c in found.comparisons if c.day == lines[4].day and c.pool == A]
    if sentence is not None:
        assert (planted.gap, planted.explanation) == (gap, sentence)
    others = {c.gap for c in found.comparisons if c is not planted}
    assert others == {Gap.NONE}


def test_only_ours_only_theirs_and_no_pool() -> None:
    lines = same()
    gone = lines.pop(0)
    lines.append(BillLine(FIRST + timedelta(days=9), B, "", Decimal(24), Decimal("98.40"), 24))
    lines.append(BillLine(FIRST, None, "AmazonS3 eu-central-1", Decimal(0), Decimal("12.34"), 3))
    found = reconcile(ours(), bill(*lines), CENT)
    adds_up(found)
    named = {c.gap: c for c in found.comparisons if c.gap is not Gap.NONE}
    assert set(named) == {Gap.ONLY_OURS, Gap.ONLY_THEIRS, Gap.NO_POOL}
    assert (named[Gap.ONLY_OURS].day, named[Gap.ONLY_OURS].pool) == (gone.day, gone.pool)
    assert named[Gap.ONLY_OURS].difference == Decimal("-704.64")
    assert named[Gap.NO_POOL].about == "AmazonS3 eu-central-1"
    assert dict(found.by_gap)[Gap.ONLY_THEIRS] == Decimal("98.40")
    assert found.by_gap[0][0] is Gap.ONLY_OURS  # the largest first


def test_the_bills_own_rounding_is_rounding() -> None:
    exact = [
        OwnDay(FIRST, A, Fraction(24), Fraction(24) * Fraction("1.234"))
    ]  # 29.616, 1.23 an hour on the bill
    line = BillLine(FIRST, A, "", Decimal(24), Decimal("29.52"), 24, places=2)
    (rounding,) = reconcile(exact, bill(line), CENT).comparisons
    assert rounding.gap is Gap.ROUNDING
    fine = BillLine(FIRST, A, "", Decimal(24), Decimal("29.52"), 24, places=10)
    (price,) = reconcile(exact, bill(fine), CENT).comparisons
    assert price.gap is Gap.PRICE  # a bill that tells ten digits did not round a tenth of a dollar away


def test_whatever_is_compared_adds_up() -> None:
    random = Random(7)
    for _ in range(200):
        own = [
            OwnDay(
                FIRST + timedelta(days=random.randint(0, 4)),
                PoolName(f"p{random.randint(0, 3)}"),
                *_drawn(random),
            )
            for _ in range(random.randint(0, 12))
        ]
        lines: dict[tuple[date, PoolName | None, str], BillLine] = {}
        for _ in range(random.randint(0, 12)):
            pool = PoolName(f"p{n}") if (n := random.randint(0, 4)) < 4 else None
            day = FIRST + timedelta(days=random.randint(0, 4))
            cost = Decimal(random.randint(-10, 10**6)) / 1000
            lines[day, pool, ""] = BillLine(
                day, pool, "" if pool else "x", Decimal(random.randint(0, 99)), cost, 3
            )
        adds_up(reconcile(own, bill(*lines.values()), CENT))


def _drawn(random: Random) -> tuple[Fraction, Fraction]:
    hours = Fraction(random.randint(0, 3600 * 200), 3600)
    return hours, hours * Fraction(random.randint(0, 500), 97)


def test_nothing_against_nothing() -> None:
    found = reconcile([], bill(), CENT)
    assert not found.comparisons
    assert found.ours == found.bill == Decimal(0)
