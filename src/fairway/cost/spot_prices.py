"""Check a series of spot prices: steps that look like mistakes, and a feed that stopped. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Final

from fairway.model.price import PricePoint

FEED_POINTS: Final = 21
"""The number of newest points that show how often prices come."""
_MIN_POINTS: Final = 5
"""A pool with fewer has no feed: somebody entered them."""
_MIN_INTERVAL: Final = timedelta(minutes=5)
_MISSED: Final = 3


@dataclass(frozen=True, slots=True)
class PriceJump:
    """A price that differs from the one before it by more than half of that."""

    before: PricePoint
    after: PricePoint


def price_jump(stored: Sequence[PricePoint], new: Mapping[datetime, Decimal]) -> PriceJump | None:
    """Return the first new price that differs by more than half from the one before it. None: there is none.

    `stored` has the points in force between the first and the last new one, and the one before them.
    """
    prices = {point.at: point.per_gpu_hour for point in stored}
    merged = [PricePoint(at, price) for at, price in sorted({**prices, **new}.items())]
    for before, after in pairwise(merged):
        changed = after.at in new and prices.get(after.at) != after.per_gpu_hour
        if changed and 2 * abs(after.per_gpu_hour - before.per_gpu_hour) > before.per_gpu_hour:
            return PriceJump(before, after)
    return None


@dataclass(frozen=True, slots=True)
class PriceFeed:
    """How often the prices of a pool come, and when the newest is from."""

    newest: datetime
    interval: timedelta
    """Nine of ten intervals between prices are not longer."""

    @property
    def limit(self) -> timedelta:
        """Return the age of the newest price from which on the feed has stopped."""
        return _MISSED * max(self.interval, _MIN_INTERVAL)

    def stopped(self, now: datetime) -> bool:
        """Return whether prices should have come since the newest."""
        return now - self.newest > self.limit


def price_feed(moments: Sequence[datetime]) -> PriceFeed | None:
    """Return the feed that the times of the newest points show. None: there are too few for a feed."""
    if len(moments) < _MIN_POINTS:
        return None
    ordered = sorted(moments)
    intervals = sorted(later - earlier for earlier, later in pairwise(ordered))
    return PriceFeed(ordered[-1], intervals[(len(intervals) * 9 - 1) // 10])
