"""What a fleet file says of money, into the model, and the faults that only show when keys are compared."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from zoneinfo import available_timezones

from fairway.files import fleet_shape as fs
from fairway.files import price_shape as ps
from fairway.files.faults import FaultCode, Faults, Severity
from fairway.files.records import Section
from fairway.files.spelling import did_you_mean, listed
from fairway.files.supplies import gpus_of
from fairway.model.names import SliceName
from fairway.model.price import (
    DEFAULT_COST_RULES,
    DEFAULT_PRICING,
    Commitment,
    CostRules,
    PriceStep,
    Pricing,
)


def pricing_of(pool: Section) -> tuple[Decimal, Pricing]:
    """A pool's first price, and what refines it."""
    written = pool.need(ps.PRICE)
    slices = pool.get(ps.SLICE_PRICES) or {}
    pricing = Pricing(
        steps=tuple(PriceStep(day.value, price) for day, price in written.steps),
        discount=pool.get(ps.DISCOUNT) or Decimal(0),
        commitments=tuple(_commitment(section) for section in pool.get(ps.COMMITMENTS) or ()),
        slices=MappingProxyType({SliceName(name): found.value for name, found in slices.items()}),
    )
    return written.first, DEFAULT_PRICING if pricing == DEFAULT_PRICING else pricing


def overhead_of(cluster: Section) -> MappingProxyType[str, Decimal]:
    """What a cluster costs a month beside its GPUs."""
    return MappingProxyType({name: found.value for name, found in (cluster.get(ps.OVERHEAD) or {}).items()})


def cost_rules_of(file: Section) -> CostRules:
    """How charges are made."""
    cost, usual = file.get(ps.COST), DEFAULT_COST_RULES
    if cost is None:
        return usual
    return CostRules(
        timezone=cost.get(ps.TIMEZONE) or usual.timezone,
        idle=cost.get(ps.IDLE) or usual.idle,
        overhead=cost.get(ps.OVERHEAD_RULE) or usual.overhead,
    )


def check_prices(file: Section, faults: Faults) -> None:
    """Every check of money that looks at more than one value."""
    _zone_exists(file, faults)
    for found in (file.get(fs.POOLS) or {}).values():
        pool = found.value
        _steps_in_order(pool, faults)
        _commitments_hold(pool, faults)
        _committed_gpus_exist(pool, faults)
        _priced_slices_exist(pool, faults)
        _has_a_price(pool, faults)


def _commitment(section: Section) -> Commitment:
    return Commitment(
        section.need(ps.COMMITTED_GPUS),
        section.need(ps.COMMITTED_PRICE),
        section.need(ps.COMMITTED_FROM),
        section.need(ps.COMMITTED_UNTIL),
    )


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    """Read once: a walk through some six hundred files."""
    return frozenset(available_timezones()) - {"localtime", "Factory"}


def _zone_exists(file: Section, faults: Faults) -> None:
    cost = file.get(ps.COST)
    named = cost.found(ps.TIMEZONE) if cost else None
    if named is None or named.value in _zones():
        return
    # Cities are how people know their zone: Berlin, new york.
    word = named.value.rsplit("/", 1)[-1].replace(" ", "_").lower()
    cities = sorted(z for z in _zones() if z.rsplit("/", 1)[-1].lower() == word)
    otherwise = "write one like Europe/Berlin, America/New_York or UTC"
    faults.add(
        FaultCode.UNKNOWN_TIME_ZONE,
        named.spot,
        f"there is no time zone {named.value}",
        expected="a name of the IANA time zones",
        hint=f"did you mean {' or '.join(cities[:2])}?"
        if cities
        else did_you_mean(named.value, sorted(z for z in _zones() if "/" in z or z == "UTC"), otherwise),
    )


def _steps_in_order(pool: Section, faults: Faults) -> None:
    price = pool.get(ps.PRICE)
    for (day, _), (following, _) in pairwise(price.steps if price else ()):
        if following.value <= day.value:
            faults.add(
                FaultCode.NOT_IN_ORDER,
                following.spot,
                f"pool {pool.name} has a price from {following.value} after one from {day.value}",
                expected="days in their order",
                hint="write prices in the order in which they hold",
                related=[day.spot],
            )
            return


def _has_a_price(pool: Section, faults: Faults) -> None:
    """A pool may be free; more often its price was left for later, and reports of nothing surprise."""
    price = pool.found(ps.PRICE)
    if price is None or price.value.first or any(amount for _, amount in price.value.steps):
        return
    if pool.get(ps.COMMITMENTS) or pool.get(ps.SLICE_PRICES):
        return
    faults.add(
        FaultCode.NO_PRICE,
        price.spot,
        f"pool {pool.name} has no price: its charges will be 0",
        hint="write what a GPU-hour costs, as in  price: 1.90;"
        "  fairway price owned  computes it for GPUs you bought",
        severity=Severity.WARNING,
    )


def _commitments_hold(pool: Section, faults: Faults) -> None:
    for section in pool.get(ps.COMMITMENTS) or ():
        since, until = section.found(ps.COMMITTED_FROM), section.found(ps.COMMITTED_UNTIL)
        if since is not None and until is not None and until.value <= since.value:
            faults.add(
                FaultCode.NOT_IN_ORDER,
                until.spot,
                f"a commitment of pool {pool.name} ends on {until.value}, before a day of it was over",
                expected=f"a day after {since.value}",
                hint="until is the first day on which it no longer holds",
                related=[since.spot],
            )


def _committed_gpus_exist(pool: Section, faults: Faults) -> None:
    """Paying for GPUs that are not there is possible, and charged; more often it is a slip."""
    has, _ = gpus_of(pool)
    sections = pool.get(ps.COMMITMENTS) or ()
    if has is None or not sections or not pool.sound(ps.COMMITMENTS):
        return
    day, committed = max(_committed(sections), key=lambda known: known[1], default=(None, 0))
    if committed > has:
        held = [s for s in sections if s.need(ps.COMMITTED_FROM) <= (day or date.min)]
        faults.add(
            FaultCode.COMMITTED_TOO_MUCH,
            held[-1].spot,
            f"commitments of pool {pool.name} add up to {committed} GPUs on {day}, but it has {has}",
            expected=f"at most {has}",
            hint="lower them, or keep them: what is committed and not there is charged as a line of its own",
            severity=Severity.WARNING,
        )


def _committed(sections: tuple[Section, ...]) -> Iterator[tuple[date, int]]:
    """How many GPUs are committed on each day on which a commitment begins."""
    commitments = [_commitment(s) for s in sections]
    for day in sorted({c.since for c in commitments}):
        yield day, sum(c.gpus for c in commitments if c.since <= day < c.until)


def _priced_slices_exist(pool: Section, faults: Faults) -> None:
    prices = pool.get(ps.SLICE_PRICES)
    if not prices or not pool.sound(fs.SLICES, ps.SLICE_PRICES):
        return
    has = [found.value for found in pool.get(fs.SLICES) or ()]
    for name, found in prices.items():
        if name in has:
            continue
        if has:
            faults.add(
                FaultCode.UNKNOWN_SLICE,
                found.spot,
                f"the GPUs of pool {pool.name} are not cut into {name}",
                expected=f"one of {listed(has)}",
                hint=did_you_mean(name, has, f"price one of {listed(has)}"),
            )
        else:
            faults.add(
                FaultCode.WHOLE_POOL,
                found.spot,
                f"the GPUs of pool {pool.name} are not cut into slices",
                expected="no slice_prices",
                hint=f"take slice_prices away, or cut the GPUs:  slices: [{name}]",
            )
