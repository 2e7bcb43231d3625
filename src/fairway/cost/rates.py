"""Compute the rate per device-second from list prices, discounts, spot prices, commitments and slices."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final

from fairway.cost.calendar import Calendar
from fairway.model.charge import CapacitySum, Span
from fairway.model.fleet import Capacity, Fleet, Pool
from fairway.model.gpu import GpuType, MigProfile, layouts, replicas_of
from fairway.model.names import PoolName, SliceName
from fairway.model.price import Commitment, PricePoint

_Counts = tuple[int, ...]
_ONE: Final = Fraction(1)
_MAX_COMBINATIONS: Final = 20_000
"""Maximum number of combinations to search before settling for the best one found so far."""


def memory_part(gpu: GpuType, slice_: SliceName | None) -> Fraction:
    """Return the part of a GPU's memory that a slice takes; 1 for a whole GPU or an unknown slice."""
    if slice_ is None:
        return _ONE
    profile = gpu.profile(slice_)
    return _ONE if profile is None else gpu.fraction(profile)


def parts(
    gpu: GpuType, totals: Mapping[SliceName | None, int], gpu_seconds: int
) -> dict[SliceName | None, Fraction]:
    """Return the part of a GPU that each kind of device is: by memory, scaled to sum to the GPUs present.

    `totals` are the device-seconds of each kind, `gpu_seconds` those of the GPUs behind all of them.
    """
    by_memory = {slice_: memory_part(gpu, slice_) for slice_ in totals}
    if totals.keys() <= {None}:
        return by_memory
    unscaled = sum((totals[slice_] * part for slice_, part in by_memory.items()), Fraction(0))
    if not unscaled or not gpu_seconds:
        return by_memory
    scale = gpu_seconds / unscaled
    return {slice_: part * scale for slice_, part in by_memory.items()}


def gpus_behind(gpu: GpuType, slices: Mapping[SliceName, int]) -> int:
    """Return the smallest number of GPUs that the slices of one node can be cut from.

    Slices unknown to the GPU type count as one GPU each. The search is exact for realistic nodes (GPUs cut in
    up to three different ways); for other mixtures it may return one GPU too many, never too few.
    """
    shared = {name: replicas for name in slices if (replicas := replicas_of(name)) is not None}
    by_sharing = sum(-(-slices[name] // replicas) for name, replicas in shared.items())
    cut = {name: n for name, n in slices.items() if n > 0 and name not in shared}
    counts_by_name = {name: n for name, n in cut.items() if gpu.profile(name) is not None}
    unknown = by_sharing + sum(n for name, n in cut.items() if name not in counts_by_name)
    names = tuple(sorted(counts_by_name))
    return unknown + _fewest(gpu, names, tuple(counts_by_name[name] for name in names))


@lru_cache(maxsize=4096)
def _fewest(gpu: GpuType, names: tuple[SliceName, ...], counts: _Counts) -> int:
    if not any(counts):
        return 0
    profiles = tuple(p for p in (gpu.profile(name) for name in names) if p is not None)
    cuts = sorted(
        (tuple(layout.count(p) for p in profiles) for layout in layouts(gpu, profiles)),
        key=lambda cut: _memory(profiles, cut),
        reverse=True,
    )
    lower_bound = _lower_bound(gpu, profiles, counts)
    best = _greedy(profiles, cuts, counts)
    cache: dict[_Counts, int] = {}
    searches_left = [_MAX_COMBINATIONS]
    if best > lower_bound:
        best = min(best, _search(gpu, profiles, cuts, counts, best, cache, searches_left))
    return best


def _memory(profiles: tuple[MigProfile, ...], counts: _Counts) -> int:
    return sum(n * p.memory_slices for n, p in zip(counts, profiles, strict=True))


def _lower_bound(gpu: GpuType, profiles: tuple[MigProfile, ...], counts: _Counts) -> int:
    """Return a lower bound on the GPUs needed."""
    compute = sum(n * p.compute_slices for n, p in zip(counts, profiles, strict=True))
    return max(
        -(-_memory(profiles, counts) // gpu.memory_slices),
        -(-compute // gpu.compute_slices),
        *(-(-n // p.max_instances) for n, p in zip(counts, profiles, strict=True)),
    )


def _greedy(profiles: tuple[MigProfile, ...], cuts: list[_Counts], counts: _Counts) -> int:
    """Return an upper bound: cut each GPU such that it covers the most memory of the remaining slices."""
    used = 0
    while any(counts):
        taken = max((_take(counts, cut)[1] for cut in cuts), key=lambda taken: _memory(profiles, taken))
        counts = tuple(n - t for n, t in zip(counts, taken, strict=True))
        used += 1
    return used


def _take(counts: _Counts, cut: _Counts) -> tuple[_Counts, _Counts]:
    """Return the slices that remain after one GPU is cut this way, and the slices taken from it."""
    taken = tuple(map(min, counts, cut))
    return tuple(n - t for n, t in zip(counts, taken, strict=True)), taken


def _search(
    gpu: GpuType,
    profiles: tuple[MigProfile, ...],
    cuts: list[_Counts],
    counts: _Counts,
    below: int,
    cache: dict[_Counts, int],
    searches_left: list[int],
) -> int:
    """Return the smallest number of GPUs for `counts` if less than `below`, otherwise `below`."""
    if not any(counts):
        return 0
    if counts in cache:
        return cache[counts]
    searches_left[0] -= 1
    lower_bound = _lower_bound(gpu, profiles, counts)
    if lower_bound >= below or searches_left[0] < 0:
        return below
    best = below
    for cut in cuts:
        remaining, taken = _take(counts, cut)
        if any(taken):
            best = min(best, 1 + _search(gpu, profiles, cuts, remaining, best - 1, cache, searches_left))
            if best == lower_bound:
                break
    if best < below:
        cache[counts] = best
    return best


_HOUR: Final = 3600
_ZERO: Final = Fraction(0)
_WHOLE: Final[Mapping[SliceName | None, Fraction]] = {None: Fraction(1)}


@dataclass(frozen=True, slots=True)
class Cover:
    """The share of a pool's GPU-seconds that a commitment covers, or that none does, and its rate."""

    commitment: Commitment | None
    share: Fraction
    rate: Fraction


@dataclass(frozen=True, slots=True)
class RateSpan:
    """A span of time during which the rates of a pool's devices are constant."""

    span: Span
    rates: Mapping[SliceName | None, Fraction]
    """Rate per device-second; None is the rate of a whole GPU, even if the pool has none. See `rate`."""
    parts: Mapping[SliceName | None, Fraction]
    """The part of a GPU that each kind of device is; those of one GPU sum to 1."""
    covers: tuple[Cover, ...] = ()
    """How commitments cover the pool's GPUs; empty if none does, and `rates` is the only price."""
    absent: Mapping[Commitment, Fraction] = field(default_factory=dict)
    """GPU-seconds of committed GPUs that did not exist."""

    def rate(self, pool: Pool, slice_: SliceName | None) -> Fraction:
        """Return the rate per device-second, also of a slice that the pool no longer has but jobs held."""
        found = self.rates.get(slice_)
        return self.rates[None] * memory_part(pool.gpu, slice_) if found is None else found

    def part(self, pool: Pool, slice_: SliceName | None) -> Fraction:
        """Return the part of a GPU that a device is, also for a slice that the pool no longer has."""
        found = self.parts.get(slice_)
        return memory_part(pool.gpu, slice_) if found is None else found

    def covers_of(self, pool: Pool, slice_: SliceName | None) -> tuple[Cover, ...]:
        """Return how a kind of device is covered, with rates per device-second that average to its rate."""
        if not self.covers or slice_ in pool.pricing.slices:
            return (Cover(None, _ONE, self.rate(pool, slice_)),)
        part = self.part(pool, slice_)
        return tuple(Cover(c.commitment, c.share, c.rate * part) for c in self.covers)


def hourly_pools(fleet: Fleet, points: Mapping[PoolName, Sequence[PricePoint]]) -> frozenset[PoolName]:
    """Return the pools whose rates can change within a day; they need capacity by hour, not by day."""
    return frozenset(p.name for p in fleet.pools if _changes_within_days(p) or _market_prices(p, points))


def _market_prices(pool: Pool, points: Mapping[PoolName, Sequence[PricePoint]]) -> Sequence[PricePoint]:
    """Return the spot prices of a pool; what is stored does not apply to other capacity."""
    return points.get(pool.name, ()) if pool.capacity is Capacity.SPOT else ()


def _changes_within_days(pool: Pool) -> bool:
    return bool(pool.slices or pool.pricing.commitments)


def rate_spans(
    fleet: Fleet,
    calendar: Calendar,
    window: Span,
    capacity: Sequence[CapacitySum],
    points: Mapping[PoolName, Sequence[PricePoint]],
    *,
    by_day: bool = True,
    until: int | None = None,
) -> dict[PoolName, tuple[RateSpan, ...]]:
    """Compute the rates of each pool over `window`; adjacent spans with equal rates are merged.

    `capacity` is by hour for `hourly_pools`, by hour or day for the others. `points` are ascending per pool
    and include the last one before the window. `by_day` splits spans where days begin, as `charges` needs;
    without it only usage can be charged. `until` is now in a window that ends with the current hour: nothing
    is owed yet for the rest of that hour.
    """
    hourly = hourly_pools(fleet, points)
    days = tuple((calendar.day_of(day.start), day) for day in calendar.days(window))
    hours = tuple((day, hour) for day, span in days for hour in calendar.hours(span)) if hourly else ()
    capacity_by_hour = _by_hour(hours, [row for row in capacity if row.supply.pool in hourly])
    found: dict[PoolName, tuple[RateSpan, ...]] = {}
    for pool in fleet.pools:
        if pool.name in hourly:
            pool_hours = capacity_by_hour.get(pool.name, {})
            spans = _hour_rates(pool, hours, pool_hours, _market_prices(pool, points), until or window.end)
        else:
            spans = (
                (day, RateSpan(span, {None: per_second(pool.list_price(day), pool.pricing.discount)}, _WHOLE))
                for day, span in days
            )
        found[pool.name] = tuple(_merged(spans, by_day=by_day))
    return found


def over_days(spans: Sequence[RateSpan]) -> tuple[RateSpan, ...]:
    """Merge adjacent spans with equal rates across days; the result can only price usage."""
    return tuple(_merged(((date.min, span) for span in spans), by_day=False))


@lru_cache(maxsize=4096)
def per_second(per_hour: Decimal, discount: Decimal = Decimal(0)) -> Fraction:
    """Convert a price per hour, less a discount, to a rate per second."""
    return Fraction(per_hour) * (1 - Fraction(discount)) / _HOUR


_Dated = tuple[date, RateSpan]


def _merged(spans: Iterable[_Dated], *, by_day: bool) -> Iterator[RateSpan]:
    """Merge adjacent spans with equal rates and parts."""
    day: date | None = None
    merged: RateSpan | None = None
    for span_day, span in spans:
        if merged is None:
            merged, day = span, span_day
        elif (span_day == day or not by_day) and _same_rates(span, merged):
            merged = RateSpan(
                Span(merged.span.start, span.span.end),
                merged.rates,
                merged.parts,
                merged.covers,
                _added(merged.absent, span.absent),
            )
        else:
            yield merged
            merged, day = span, span_day
    if merged is not None:
        yield merged


def _added(
    one: Mapping[Commitment, Fraction], other: Mapping[Commitment, Fraction]
) -> Mapping[Commitment, Fraction]:
    if not one or not other:
        return one or other
    return {c: one.get(c, _ZERO) + other.get(c, _ZERO) for c in (*one, *other)}


def _same_rates(one: RateSpan, other: RateSpan) -> bool:
    if one.rates is other.rates and one.parts is other.parts and one.covers is other.covers:
        return True
    return one.rates == other.rates and one.parts == other.parts and one.covers == other.covers


@dataclass(slots=True)
class _CapacityHour:
    """The capacity of a pool in one hour."""

    totals: dict[SliceName | None, int]
    gpu_seconds: int = 0


def _by_hour(
    hours: Sequence[tuple[date, Span]], capacity: Sequence[CapacitySum]
) -> dict[PoolName, dict[int, _CapacityHour]]:
    """Group rows by the hour of `hours` in which they begin: the fleet's time zone may have changed since."""
    starts = [hour.start for _, hour in hours]
    end = hours[-1][1].end if hours else 0
    found: dict[PoolName, dict[int, _CapacityHour]] = {}
    for row in capacity:
        at = bisect_right(starts, row.start) - 1
        if at < 0 or row.start >= end:
            continue
        hour = found.setdefault(row.supply.pool, {}).setdefault(starts[at], _CapacityHour({}))
        hour.totals[row.supply.slice] = hour.totals.get(row.supply.slice, 0) + row.total
        hour.gpu_seconds += row.gpu_seconds
    return found


def _hour_rates(
    pool: Pool,
    hours: Sequence[tuple[date, Span]],
    capacity_by_hour: Mapping[int, _CapacityHour],
    points: Sequence[PricePoint],
    until: int,
) -> Iterator[_Dated]:
    market = _SpotPrices(points)
    nothing = _CapacityHour({})
    list_day: date | None = None
    list_rate = _ZERO
    before: tuple[object, ...] = ()
    found: RateSpan | None = None
    for day, hour in hours:
        if day != list_day:
            list_day, list_rate = day, per_second(pool.list_price(day), pool.pricing.discount)
        hour_capacity = capacity_by_hour.get(hour.start, nothing)
        past = hour if hour.end <= until else Span(hour.start, max(hour.start, until))
        rate = market.rate(past, list_rate)
        # Most hours are like the one before.
        key = (day, past.end - past.start, rate, hour_capacity.gpu_seconds, hour_capacity.totals)
        if found is None or key != before:
            before, found = key, _hour_rate(pool, day, past, hour_capacity, rate)
        yield day, RateSpan(hour, found.rates, found.parts, found.covers, found.absent)


def _hour_rate(pool: Pool, day: date, hour: Span, capacity: _CapacityHour, rate: Fraction) -> RateSpan:
    totals = capacity.totals
    part = _WHOLE if totals.keys() <= {None} else parts(pool.gpu, totals, capacity.gpu_seconds)
    covers: tuple[Cover, ...] = ()
    absent: dict[Commitment, Fraction] = {}
    if pool.pricing.commitments:
        gpu_seconds = sum((n * part[slice_] for slice_, n in totals.items()), _ZERO)
        covers, absent = _covers(pool, day, hour, gpu_seconds, rate)
        rate = sum((c.share * c.rate for c in covers), _ZERO) if covers else rate
    rates: dict[SliceName | None, Fraction] = {None: rate}
    if part is not _WHOLE:
        rates |= {slice_: rate * p for slice_, p in part.items()}
    for slice_, own in pool.pricing.slices.items():
        rates[slice_] = per_second(own)
    return RateSpan(hour, rates, part, covers, absent)


def _covers(
    pool: Pool, day: date, hour: Span, gpu_seconds: Fraction, rate: Fraction
) -> tuple[tuple[Cover, ...], dict[Commitment, Fraction]]:
    """Return how commitments cover the GPU-seconds of an hour, and those of committed GPUs that are missing.

    Existing GPUs count against commitments first, in file order; only GPUs beyond them cost `rate`.
    """
    covers: list[Cover] = []
    absent: dict[Commitment, Fraction] = {}
    left = gpu_seconds
    for commitment in pool.pricing.commitments:
        if not commitment.since <= day < commitment.until:
            continue
        wanted = commitment.gpus * (hour.end - hour.start)
        taken = min(Fraction(wanted), left)
        left -= taken
        if taken:
            covers.append(Cover(commitment, taken / gpu_seconds, per_second(commitment.per_gpu_hour)))
        if wanted > taken:
            absent[commitment] = absent.get(commitment, _ZERO) + wanted - taken
    if covers and left:
        covers.append(Cover(None, left / gpu_seconds, rate))
    return tuple(covers), absent


class _SpotPrices:
    """Spot prices that can change at any time."""

    def __init__(self, points: Sequence[PricePoint]) -> None:
        self._at = [int(p.at.timestamp()) for p in points]
        self._rates = [per_second(p.per_gpu_hour) for p in points]

    def rate(self, hour: Span, before: Fraction) -> Fraction:
        """Return the time-weighted rate over an hour; `before` applies until the first price point."""
        at, rates = self._at, self._rates
        i = bisect_right(at, hour.start)
        rate = rates[i - 1] if i else before
        if i == len(at) or at[i] >= hour.end:
            return rate
        cost, since = _ZERO, hour.start
        while i < len(at) and at[i] < hour.end:
            cost += rate * (at[i] - since)
            rate, since = rates[i], at[i]
            i += 1
        return (cost + rate * (hour.end - since)) / (hour.end - hour.start)
