"""Check that GPUs cost about the same in slices as their price, so that charges are capacity × price."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fairway.files.diagnostics import FaultCode, Faults, Severity
from fairway.files.fleet import schema as fs
from fairway.files.fleet import schema_prices as ps
from fairway.files.schema.containers import Section
from fairway.files.schema.values import ParsedValue
from fairway.model.gpu import GpuType, layouts, replicas_of

_TOLERATED: Final = Fraction(1, 100)
"""Prices have few decimals: seven slices at 0.27 are a GPU at 1.90."""

_Layout = Mapping[str, int]


def check_slice_prices(file: Section, gpu_types: Mapping[str, GpuType], faults: Faults) -> None:
    """Warn about pools whose slice prices charge something else than is paid for their GPUs."""
    for pool in (found.value for found in (file.get(fs.POOLS) or {}).values()):
        gpu = gpu_types.get(pool.get(fs.GPU) or "")
        if gpu is None or not pool.get(ps.SLICE_PRICES) or faults.full:
            continue
        if pool.valid(fs.SLICES, fs.VIRTUAL_PLACE, ps.PRICE, ps.DISCOUNT, ps.COMMITMENTS, ps.SLICE_PRICES):
            _compare(pool, gpu, faults)


def _compare(pool: Section, gpu: GpuType, faults: Faults) -> None:
    prices, price = pool.found(ps.SLICE_PRICES), _newest_price(pool)
    if prices is None or price is None:
        return
    priced = [layout for layout in _layouts(pool, gpu) if not prices.value.keys().isdisjoint(layout)]
    if not priced:
        return
    costs = [(_cost(layout, prices.value, gpu, price), layout) for layout in priced]
    cost, layout = max(costs, key=lambda found: abs(found[0] - price))
    cut = " + ".join(f"{n} × {name}" for name, n in layout.items())
    if commitments := pool.get(ps.COMMITMENTS):
        paid = " and ".join(
            dict.fromkeys(_money(Fraction(c.require(ps.COMMITTED_PRICE))) for c in commitments)
        )
        faults.add(
            FaultCode.SLICE_PRICES_DIFFER,
            prices.location,
            f"pool {pool.name} has slice_prices beside commitments: a GPU cut into {cut} is charged at"
            f" {_money(cost)} per hour, and a committed GPU is paid for at {paid}",
            hint="take slice_prices away: slices are then charged what is paid for their GPU",
            severity=Severity.WARNING,
        )
    elif price and abs(cost - price) > price * _TOLERATED:
        more = "more" if cost > price else "less"
        faults.add(
            FaultCode.SLICE_PRICES_DIFFER,
            prices.location,
            f"slice_prices of pool {pool.name} charge {more} than its price: a GPU cut into {cut} costs"
            f" {_money(cost)} per hour, a whole one {_money(price)}",
            hint="take slice_prices away: slices are then charged their part of the price; or keep them"
            f" if slices are to cost {more}",
            severity=Severity.WARNING,
        )


def _newest_price(pool: Section) -> Fraction | None:
    price = pool.get(ps.PRICE)
    if price is None:
        return None
    amount = price.steps[-1][1] if price.steps else price.first
    return Fraction(amount) * (1 - Fraction(pool.get(ps.DISCOUNT) or 0))


def _layouts(pool: Section, gpu: GpuType) -> Iterator[_Layout]:
    """Yield the ways in which a GPU of the pool can be full of slices; of a virtual pool, the one it has."""
    place = pool.get(fs.VIRTUAL_PLACE)
    cut = place.get(fs.SLICES_PER_GPU) if place else None
    names = [found.value for found in pool.get(fs.SLICES) or ()]
    shared = {name: n for name in names if (n := replicas_of(name)) is not None}
    profiles = [profile for name in names if (profile := gpu.profile(name)) is not None]
    if cut:
        yield {name: found.value for name, found in cut.items()}
    elif shared:
        yield shared
    else:
        yield from (Counter(str(profile.name) for profile in layout) for layout in layouts(gpu, profiles))


def _cost(
    layout: _Layout, prices: Mapping[str, ParsedValue[Decimal]], gpu: GpuType, price: Fraction
) -> Fraction:
    """Compute what the slices of one GPU cost in an hour; those without a price cost their part of it."""
    memory = {name: gpu.fraction(profile) for name in layout if (profile := gpu.profile(name)) is not None}
    whole = sum((memory.get(name, Fraction(0)) * n for name, n in layout.items()), Fraction(0))
    cost = Fraction(0)
    for name, n in layout.items():
        own = prices.get(name)
        part = memory.get(name, Fraction(0)) / whole if whole else Fraction(0)
        cost += n * (Fraction(own.value) if own is not None else part * price)
    return cost


def _money(amount: Fraction) -> str:
    """Write an amount with two to four decimals."""
    text = f"{Decimal(amount.numerator) / Decimal(amount.denominator):.4f}"
    return text[:-2] + text[-2:].rstrip("0")
