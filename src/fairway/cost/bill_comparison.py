"""Compare Fairway's capacity cost with a provider's bill by pool and day, and classify each difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final

from fairway.cost.rounding import apportion, rounded
from fairway.model.bill import Bill, BillLine, OwnDay
from fairway.model.names import PoolName

_QUANTUM: Final = Decimal("0.000001")
"""Precision of the amounts and hours in a comparison."""
_ZERO: Final = Fraction(0)


class Gap(StrEnum):
    """Why Fairway's cost and the bill differ."""

    NONE = "none"
    """Equal to the cent."""
    ROUNDING = "rounding"
    """The difference is within the bill's own rounding of its lines."""
    PRICE = "price"
    """The same hours at a different price."""
    HOURS = "hours"
    """Different hours at the same price."""
    PRICE_AND_HOURS = "price-and-hours"
    ONLY_OURS = "only-ours"
    """Fairway observed GPUs in the pool that day; the bill has no line for it."""
    ONLY_THEIRS = "only-theirs"
    """The bill has a line for the pool that day; Fairway observed no GPUs."""
    NO_POOL = "no-pool"
    """The bill's lines match no pool."""


@dataclass(frozen=True, slots=True)
class BillComparison:
    """One pool on one day, or one group of that day's bill lines that match no pool."""

    day: date
    pool: PoolName | None
    about: str
    our_hours: Decimal
    bill_hours: Decimal
    ours: Decimal
    bill: Decimal
    by_price: Decimal
    """The part of the difference that is due to the price."""
    by_hours: Decimal
    """The part that is due to the hours; `by_price + by_hours` is the difference."""
    gap: Gap
    explanation: str
    """One sentence."""

    @property
    def difference(self) -> Decimal:
        """Return the bill's amount minus Fairway's."""
        return self.bill - self.ours


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The whole comparison. The parts add up: `ours` plus all differences equals `bill`."""

    comparisons: tuple[BillComparison, ...]
    ours: Decimal
    bill: Decimal
    by_gap: tuple[tuple[Gap, Decimal], ...]
    """The part of the difference that each reason accounts for, largest first."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """One pool on one day, in exact fractions."""

    day: date
    pool: PoolName | None
    about: str
    our_hours: Fraction
    bill_hours: Fraction
    ours: Fraction
    bill: Fraction
    slack: Fraction
    """The largest difference that the bill's rounding of its lines, plus half a cent, can cause."""
    cent: Fraction


def reconcile(ours: Iterable[OwnDay], bill: Bill, cent: Decimal) -> Reconciliation:
    """Compare Fairway's daily costs with a bill, by pool and day; `cent` is the currency's smallest unit."""
    pairs = _pairs(ours, bill, cent)
    our_costs = _rounded([pair.ours for pair in pairs])
    bill_costs = _rounded([pair.bill for pair in pairs])
    found = tuple(
        _comparison(pair, own, other) for pair, own, other in zip(pairs, our_costs, bill_costs, strict=True)
    )
    sums: dict[Gap, Decimal] = {}
    for comparison in found:
        for gap, part in _parts(comparison):
            sums[gap] = sums.get(gap, Decimal(0)) + part
    ranked = sorted(sums.items(), key=lambda item: (-abs(item[1]), item[0]))
    return Reconciliation(found, sum(our_costs, Decimal(0)), sum(bill_costs, Decimal(0)), tuple(ranked))


def _pairs(ours: Iterable[OwnDay], bill: Bill, cent: Decimal) -> list[_Pair]:
    own: dict[tuple[date, PoolName], tuple[Fraction, Fraction]] = {}
    for day in ours:
        hours, cost = own.get((day.day, day.pool), (_ZERO, _ZERO))
        own[day.day, day.pool] = (hours + day.gpu_hours, cost + day.cost)
    found: list[_Pair] = []
    billed: dict[tuple[date, PoolName], BillLine] = {}
    for line in bill.lines:
        slack = (Fraction(cent) + line.lines * Fraction(1, 10**line.places)) / 2
        hours, cost = Fraction(line.gpu_hours), Fraction(line.cost)
        if line.pool is None:
            found.append(_Pair(line.day, None, line.about, _ZERO, hours, _ZERO, cost, slack, Fraction(cent)))
            continue
        billed[line.day, line.pool] = line
        our_hours, our_cost = own.get((line.day, line.pool), (_ZERO, _ZERO))
        found.append(_Pair(line.day, line.pool, "", our_hours, hours, our_cost, cost, slack, Fraction(cent)))
    for (day_, pool), (hours, cost) in own.items():
        if (day_, pool) not in billed and (hours or cost):
            found.append(_Pair(day_, pool, "", hours, _ZERO, cost, _ZERO, Fraction(cent) / 2, Fraction(cent)))
    return sorted(found, key=lambda pair: (pair.day, pair.pool is None, pair.pool or "", pair.about))


def _rounded(amounts: Sequence[Fraction]) -> list[Decimal]:
    return apportion(amounts, rounded(sum(amounts, _ZERO), _QUANTUM), _QUANTUM) if amounts else []


def _comparison(pair: _Pair, ours: Decimal, bill: Decimal) -> BillComparison:
    difference = pair.bill - pair.ours
    by_hours = _by_hours(pair)
    gap = _gap(pair, difference, by_hours)
    hours_part = rounded(by_hours, _QUANTUM)
    return BillComparison(
        pair.day,
        pair.pool,
        pair.about,
        rounded(pair.our_hours, _QUANTUM),
        rounded(pair.bill_hours, _QUANTUM),
        ours,
        bill,
        (bill - ours) - hours_part,
        hours_part,
        gap,
        _explanation(pair, gap),
    )


def _by_hours(pair: _Pair) -> Fraction:
    """Return the difference in hours priced at our rate; the rest of the difference is due to the price."""
    if pair.our_hours:
        return (pair.bill_hours - pair.our_hours) * pair.ours / pair.our_hours
    return pair.bill if pair.bill_hours else _ZERO


def _gap(pair: _Pair, difference: Fraction, by_hours: Fraction) -> Gap:
    if pair.pool is None:
        return Gap.NO_POOL
    if not pair.bill and not pair.bill_hours:
        return Gap.ONLY_OURS if abs(difference) > pair.slack or pair.our_hours else Gap.NONE
    if not pair.ours and not pair.our_hours:
        return Gap.ONLY_THEIRS
    hours, price = abs(by_hours) > pair.slack, abs(difference - by_hours) > pair.slack
    if hours and price:
        return Gap.PRICE_AND_HOURS
    if hours or price:
        return Gap.HOURS if hours else Gap.PRICE
    return Gap.NONE if 2 * abs(difference) <= pair.cent else Gap.ROUNDING


def _parts(found: BillComparison) -> Iterable[tuple[Gap, Decimal]]:
    """Split the difference of a Comparison by reason."""
    if found.gap is Gap.PRICE_AND_HOURS:
        return ((Gap.PRICE, found.by_price), (Gap.HOURS, found.by_hours))
    return ((found.gap, found.difference),)


_SENTENCES: Final = {
    Gap.NONE: "agrees",
    Gap.ROUNDING: "differs by no more than the bill rounds its lines",
    Gap.PRICE: "{bill_hours} at {bill_price} a GPU-hour, not {our_price}",
    Gap.HOURS: "{bill_hours} on the bill, {our_hours} seen",
    Gap.PRICE_AND_HOURS: "{bill_hours} at {bill_price} on the bill, {our_hours} at {our_price} seen",
    Gap.ONLY_OURS: "{our_hours} seen, none on the bill",
    Gap.ONLY_THEIRS: "{bill_hours} on the bill, none seen",
    Gap.NO_POOL: "belongs to no pool: tag it, or map it",
}


def _explanation(pair: _Pair, gap: Gap) -> str:
    if gap is Gap.PRICE and not (pair.bill_hours and pair.our_hours):
        return "the bill has a cost without hours of GPUs"
    return _SENTENCES[gap].format(
        bill_hours=_hours(pair.bill_hours),
        our_hours=_hours(pair.our_hours),
        bill_price=_price(pair.bill, pair.bill_hours),
        our_price=_price(pair.ours, pair.our_hours),
    )


def _hours(hours: Fraction) -> str:
    return f"{rounded(hours, Decimal('0.01')).normalize():,f} GPU-hours"


def _price(cost: Fraction, hours: Fraction) -> str:
    return f"{rounded(cost / hours, Decimal('0.0001')):f}" if hours else "no price"
