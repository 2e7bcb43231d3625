"""Compute what became of each commitment in a window, from the exact usage and capacity of the ledger."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction

from fairway.cost.calendar import Window
from fairway.cost.commitments import CommitmentUse
from fairway.cost.rates import per_second
from fairway.model.fleet import Fleet, Pool
from fairway.model.names import PoolName
from fairway.model.price import Commitment
from fairway.services.charges import Costs, PricedWindow
from fairway.services.reports import window_of

_ZERO = Fraction(0)
_HOUR = 3600


@dataclass(slots=True)
class _Sums:
    """The GPU-seconds of one commitment."""

    used: Fraction = _ZERO
    idle: Fraction = _ZERO
    absent: Fraction = _ZERO
    listed: Fraction = _ZERO
    """What the used ones would have cost without it."""
    list_price: Fraction = _ZERO
    """The newest of a GPU-second without it, where none was used."""


@dataclass(slots=True)
class _PoolSums:
    commitments: dict[Commitment, _Sums] = field(default_factory=lambda: defaultdict(_Sums))
    uncovered: Fraction = _ZERO


async def commitment_uses(
    costs: Costs, fleet: Fleet, window_text: str, pool: str | None = None, now: int | None = None
) -> tuple[Window, list[tuple[PoolName, Commitment, CommitmentUse]]]:
    """Return the use of each commitment that was in force in a window, by pool and then as in the file.

    Hours in which no commitment of a pool was in force count for nothing.
    """
    window = window_of(fleet, window_text, now)
    found: dict[PoolName, _PoolSums] = defaultdict(_PoolSums)
    for priced in await costs.priced(fleet, window.span, window.now):
        pools = {
            name: one
            for name, one in priced.pools.items()
            if one.pricing.commitments and pool in (None, name)
        }
        used: dict[tuple[PoolName, int], Fraction] = defaultdict(Fraction)
        for row in await costs.everyone(priced) if pools else ():
            if (one := pools.get(row.supply.pool)) is not None:
                part = priced.rates[one.name][row.span].part(one, row.supply.slice)
                used[one.name, row.span] += part * row.device_seconds
        there = _capacity(priced, pools)
        for name, one in pools.items():
            for number, span in enumerate(priced.rates[name]):
                held, gpu_seconds = used[name, number], there[name, number]
                day = priced.calendar.day_of(span.span.start)
                rate = per_second(one.list_price(day), one.pricing.discount)
                sums = found[name]
                for cover in span.covers:
                    if cover.commitment is None:
                        sums.uncovered += held * cover.share
                        continue
                    of = sums.commitments[cover.commitment]
                    of.used += held * cover.share
                    of.idle += max(_ZERO, gpu_seconds - held) * cover.share
                    of.listed += held * cover.share * rate
                    of.list_price = rate
                for commitment, missing in span.absent.items():
                    sums.commitments[commitment].absent += missing
                    sums.commitments[commitment].list_price = rate
    return window, [
        (name, commitment, _use(commitment, of, sums.uncovered))
        for name, sums in found.items()
        for commitment, of in sums.commitments.items()
    ]


def _capacity(priced: PricedWindow, pools: dict[PoolName, Pool]) -> dict[tuple[PoolName, int], Fraction]:
    """Sum the GPU-seconds that existed, by pool and number of the rate span."""
    starts = {name: [span.span.start for span in priced.rates[name]] for name in pools}
    found: dict[tuple[PoolName, int], Fraction] = defaultdict(Fraction)
    for row in priced.capacity:
        name = row.supply.pool
        if name in starts and (number := bisect_right(starts[name], row.start) - 1) >= 0:
            found[name, number] += row.gpu_seconds
    return found


def _use(commitment: Commitment, of: _Sums, uncovered: Fraction) -> CommitmentUse:
    return CommitmentUse(
        used=of.used / _HOUR,
        idle=of.idle / _HOUR,
        absent=of.absent / _HOUR,
        uncovered=uncovered / _HOUR,
        price=Fraction(commitment.per_gpu_hour),
        list_price=(of.listed / of.used if of.used else of.list_price) * _HOUR,
    )
