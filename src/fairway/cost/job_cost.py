"""Compute the cost of jobs so far: the devices they held, at the price of their pool. Pure.

It covers the job's own usage only: idle capacity and overhead are shared among teams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from fairway.cost.calendar import Calendar
from fairway.cost.rates import memory_part, per_second, rate_spans
from fairway.cost.rounding import rounded
from fairway.model.charge import Span
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import Attempt
from fairway.model.names import PoolName, SliceName
from fairway.model.price import PricePoint, cent


@dataclass(frozen=True, slots=True)
class JobCost:
    """The cost of a job so far."""

    amount: Decimal
    currency: str
    device_seconds: int
    about: bool
    """Whether it is approximate: commitments, and the cut of GPUs into slices, belong to the whole pool."""


def estimate_cost(
    fleet: Fleet, pool: Pool, slice_: SliceName | None, device_seconds: int, at: datetime
) -> Decimal:
    """Estimate the cost at today's list price: fast, for a row of a list."""
    slice_price = pool.pricing.slices.get(slice_) if slice_ is not None else None
    if slice_price is not None:
        rate = per_second(slice_price)
    else:
        rate = per_second(pool.list_price(at.date()), pool.pricing.discount)
        rate *= memory_part(pool.gpu, slice_) if slice_ is not None else 1
    return rounded(rate * device_seconds, cent(fleet.currency))


def job_cost(
    fleet: Fleet,
    calendar: Calendar,
    pool: Pool,
    slice_: SliceName | None,
    attempts: Sequence[Attempt],
    points: Mapping[PoolName, tuple[PricePoint, ...]],
    now: datetime,
) -> JobCost:
    """Compute the cost of each second a job held devices, at the price of that second."""
    spans = held_spans(attempts, now)
    amount, seconds = Fraction(0), sum(devices * (s.end - s.start) for devices, s in spans)
    if spans:
        without_commitments = replace(pool, pricing=replace(pool.pricing, commitments=()))
        window = whole_days(calendar, [span for _, span in spans])
        priced = replace(fleet, pools=(without_commitments,))
        for rate in rate_spans(priced, calendar, window, (), points, by_day=False)[pool.name]:
            each = rate.rate(without_commitments, slice_)
            amount += sum((each * devices * _shared(span, rate.span) for devices, span in spans), Fraction(0))
    inexact = bool(pool.pricing.commitments) or (slice_ is not None and slice_ not in pool.pricing.slices)
    return JobCost(rounded(amount, cent(fleet.currency)), fleet.currency, seconds, inexact)


def held_spans(attempts: Iterable[Attempt], now: datetime) -> list[tuple[int, Span]]:
    """Return how many devices were held, and when."""
    found = []
    for attempt in attempts:
        start, end = int(attempt.started_at.timestamp()), int((attempt.ended_at or now).timestamp())
        if attempt.devices and end > start:
            found.append((attempt.devices, Span(start, end)))
    return found


def whole_days(calendar: Calendar, spans: Sequence[Span]) -> Span:
    """Return the span of whole days that contains all spans."""
    first = calendar.day_of(min(span.start for span in spans))
    last = calendar.day_of(max(span.end for span in spans) - 1)
    return Span(calendar.day_start(first), calendar.day_end(last))


def _shared(one: Span, other: Span) -> int:
    return max(0, min(one.end, other.end) - max(one.start, other.start))
