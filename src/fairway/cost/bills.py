"""Our capacity cost against a provider's bill, by pool and day, with a name for whatever differs."""

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

_FINE: Final = Decimal("0.000001")
"""How exactly amounts and hours of a comparison are told."""
_ZERO: Final = Fraction(0)


class Gap(StrEnum):
    """Why the two differ."""

    NONE = "none"
    """They agree to the cent."""
    ROUNDING = "rounding"
    """By no more than the bill's own rounding of its lines."""
    PRICE = "price"
    """The same hours at another price."""
    HOURS = "hours"
    """Other hours at the same price."""
    PRICE_AND_HOURS = "price-and-hours"
    ONLY_OURS = "only-ours"
    """We have GPUs there that day; the bill has none."""
    ONLY_THEIRS = "only-theirs"
    """The bill has the pool that day; we saw no GPUs."""
    NO_POOL = "no-pool"
    """The bill has lines that belong to no pool."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One pool on one day, or what belongs to no pool that day."""

    day: date
    pool: PoolName | None
    about: str
    our_hours: Decimal
    bill_hours: Decimal
    ours: Decimal
    bill: Decimal
    by_price: Decimal
    """Part of the difference that another price makes."""
    by_hours: Decimal
    """Part of it that other hours make; both together are the difference."""
    gap: Gap
    explanation: str
    """One sentence."""

    @property
    def difference(self) -> Decimal:
        """What the bill is above ours."""
        return self.bill - self.ours


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The whole comparison. Its parts add up: ours + all differences = the bill."""

    comparisons: tuple[Comparison, ...]
    ours: Decimal
    bill: Decimal
    by_gap: tuple[tuple[Gap, Decimal], ...]
    """How much of the difference each reason makes, the largest first."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """One pool on one day, exactly."""

    day: date
    pool: PoolName | None
    about: str
    our_hours: Fraction
    bill_hours: Fraction
    ours: Fraction
    bill: Fraction
    slack: Fraction
    """What the bill's rounding of its lines, and half a cent, may make."""
    cent: Fraction


def reconcile(ours: Iterable[OwnDay], bill: Bill, cent: Decimal) -> Reconciliation:
    """Compare by pool and day; `cent` is the currency's."""
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
    seen: dict[tuple[date, PoolName], BillLine] = {}
    for line in bill.lines:
        slack = (Fraction(cent) + line.lines * Fraction(1, 10**line.places)) / 2
        hours, cost = Fraction(line.gpu_hours), Fraction(line.cost)
        if line.pool is None:
            found.append(_Pair(line.day, None, line.about, _ZERO, hours, _ZERO, cost, slack, Fraction(cent)))
            continue
        seen[line.day, line.pool] = line
        our_hours, our_cost = own.get((line.day, line.pool), (_ZERO, _ZERO))
        found.append(_Pair(line.day, line.pool, "", our_hours, hours, our_cost, cost, slack, Fraction(cent)))
    for (day_, pool), (hours, cost) in own.items():
        if (day_, pool) not in seen and (hours or cost):
            found.append(_Pair(day_, pool, "", hours, _ZERO, cost, _ZERO, Fraction(cent) / 2, Fraction(cent)))
    return sorted(found, key=lambda pair: (pair.day, pair.pool is None, pair.pool or "", pair.about))


def _rounded(amounts: Sequence[Fraction]) -> list[Decimal]:
    return apportion(amounts, rounded(sum(amounts, _ZERO), _FINE), _FINE) if amounts else []


def _comparison(pair: _Pair, ours: Decimal, bill: Decimal) -> Comparison:
    difference = pair.bill - pair.ours
    by_hours = _by_hours(pair)
    gap = _gap(pair, difference, by_hours)
    hours_part = rounded(by_hours, _FINE)
    return Comparison(
        pair.day,
        pair.pool,
        pair.about,
        rounded(pair.our_hours, _FINE),
        rounded(pair.bill_hours, _FINE),
        ours,
        bill,
        (bill - ours) - hours_part,
        hours_part,
        gap,
        _explained(pair, gap),
    )


def _by_hours(pair: _Pair) -> Fraction:
    """What the bill's hours would have made at our price; the rest is its price."""
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


def _parts(found: Comparison) -> Iterable[tuple[Gap, Decimal]]:
    """A difference under the reasons it has."""
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


def _explained(pair: _Pair, gap: Gap) -> str:
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
