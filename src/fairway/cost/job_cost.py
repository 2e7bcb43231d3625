"""Compute the cost of jobs so far: the devices they held, at the price of their pool. Pure.

It covers the jobs' own usage only: idle capacity and overhead are shared among teams.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from fairway.cost.calendar import Calendar
from fairway.cost.rates import RateSpan, memory_part, per_second, rate_spans
from fairway.cost.rounding import rounded
from fairway.model.charge import CapacitySum, Span
from fairway.model.fleet import Fleet, Pool
from fairway.model.names import PoolName, SliceName
from fairway.model.price import PricePoint, cent
from fairway.model.usage import HeldDevices

_HOUR = 3600


@dataclass(frozen=True, slots=True)
class JobCost:
    """The cost of a job so far."""

    amount: Decimal
    currency: str
    device_seconds: int
    about: bool
    """Whether it is approximate: commitments belong to the whole pool, or how GPUs were cut is not known."""
    per_hour: Decimal | None = None
    """The cost of the next hour at the current price. None if the job holds no devices now."""


def estimate_cost(
    fleet: Fleet, pool: Pool, slice_: SliceName | None, device_seconds: int, at: datetime
) -> Decimal:
    """Estimate a cost at the list price of that day, for a job that has not run."""
    slice_price = pool.pricing.slices.get(slice_) if slice_ is not None else None
    if slice_price is not None:
        rate = per_second(slice_price)
    else:
        rate = per_second(pool.list_price(at.date()), pool.pricing.discount)
        rate *= memory_part(pool.gpu, slice_) if slice_ is not None else 1
    return rounded(rate * device_seconds, cent(fleet.currency))


class JobPrices:
    """The prices of pools in the days in which jobs held their devices."""

    def __init__(
        self,
        fleet: Fleet,
        calendar: Calendar,
        days: Mapping[PoolName, Sequence[Span]],
        points: Mapping[PoolName, Sequence[PricePoint]],
        capacity: Sequence[CapacitySum] = (),
    ) -> None:
        """`days` are those of `priced_days`; `points` have the last one before each of its spans too.

        `capacity` is by hour, of pools whose slices were held: what part of a GPU a slice is depends on it.
        """
        self._fleet = fleet
        self._pools: dict[PoolName, Pool] = {}
        self._rates: dict[PoolName, list[RateSpan]] = {}
        self._starts: dict[PoolName, list[int]] = {}
        for pool in fleet.pools:
            if pool.name not in days:
                continue
            # Commitments belong to the whole pool.
            own = replace(pool, pricing=replace(pool.pricing, commitments=()))
            present = [row for row in capacity if row.supply.pool == pool.name]
            rates = [
                rate
                for window in days[pool.name]
                for rate in rate_spans(
                    replace(fleet, pools=(own,)), calendar, window, present, points, by_day=False
                )[pool.name]
            ]
            self._pools[pool.name], self._rates[pool.name] = pool, rates
            self._starts[pool.name] = [rate.span.start for rate in rates]

    def cost(self, pool: PoolName, slice_: SliceName | None, held: Sequence[HeldDevices]) -> JobCost | None:
        """Price each second a job held devices at the price of that second. Returns None without a pool."""
        found = self._pools.get(pool)
        if found is None:
            return None
        amount, hourly = Fraction(0), Fraction(0)
        about = bool(found.pricing.commitments)
        for h in held:
            for rate in self._overlapping(pool, h):
                shared = min(h.end, rate.span.end) - max(h.start, rate.span.start)
                if shared > 0:
                    amount += rate.rate(found, slice_) * h.devices * shared
                    about |= slice_ not in rate.rates
            if h.running:
                now = self._rate_at(pool, h.end)
                hourly += now.rate(found, slice_) * h.devices * _HOUR
                about |= slice_ not in now.rates
        unit = cent(self._fleet.currency)
        return JobCost(
            rounded(amount, unit),
            self._fleet.currency,
            sum(h.devices * (h.end - h.start) for h in held),
            about,
            rounded(hourly, unit) if any(h.running for h in held) else None,
        )

    def _overlapping(self, pool: PoolName, held: HeldDevices) -> Iterator[RateSpan]:
        rates = self._rates[pool]
        for rate in rates[max(0, bisect_right(self._starts[pool], held.start) - 1) :]:
            if rate.span.start >= held.end:
                return
            yield rate

    def _rate_at(self, pool: PoolName, at: int) -> RateSpan:
        return self._rates[pool][max(0, bisect_right(self._starts[pool], at) - 1)]


def priced_days(calendar: Calendar, held: Iterable[HeldDevices]) -> tuple[Span, ...]:
    """Return the whole days in which devices were held, as few spans in order."""
    spans: list[Span] = []
    for h in sorted(held, key=lambda h: h.start):
        start = calendar.day_start(calendar.day_of(h.start))
        end = calendar.day_end(calendar.day_of(h.end))
        if spans and start <= spans[-1].end:
            spans[-1] = Span(spans[-1].start, max(spans[-1].end, end))
        else:
            spans.append(Span(start, end))
    return tuple(spans)
