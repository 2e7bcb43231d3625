"""What a second of a device costs: list prices, discounts, spot points, commitments, slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fairway.cost.calendar import Calendar
from fairway.model.charge import CapacitySum, Span
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName, SliceName
from fairway.model.price import PricePoint


@dataclass(frozen=True, slots=True)
class RateSpan:
    """A stretch of time through which the devices of a pool cost the same."""

    span: Span
    rates: Mapping[SliceName | None, Fraction]
    """Per device-second; a whole GPU under None."""


def hourly_pools(fleet: Fleet, points: Mapping[PoolName, Sequence[PricePoint]]) -> frozenset[PoolName]:
    """The pools whose rates can change within a day: their capacity must be told by hour, not by day."""
    raise NotImplementedError


def rate_spans(
    fleet: Fleet,
    calendar: Calendar,
    window: Span,
    capacity: Sequence[CapacitySum],
    points: Mapping[PoolName, Sequence[PricePoint]],
    *,
    by_day: bool = True,
) -> dict[PoolName, tuple[RateSpan, ...]]:
    """What devices of each pool cost through `window`, neighbours of equal rates joined.

    `capacity` by hour for `hourly_pools`, else by hour or day. `points` of each pool ascending, with the last
    one before the window. `by_day`: cut where days begin, as `charges` needs it; without, only usage can be
    charged.
    """
    raise NotImplementedError
