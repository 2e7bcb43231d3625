"""Series of spot prices: steps that look like mistakes, and feeds that stop."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from fairway.cost.spot_prices import FEED_POINTS, price_feed, price_jump
from fairway.model.price import PricePoint

NOON = datetime(2026, 10, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def point(hour: float, price: str) -> PricePoint:
    return PricePoint(NOON + hour * HOUR, Decimal(price))


def new(*points: PricePoint) -> dict[datetime, Decimal]:
    return {p.at: p.per_gpu_hour for p in points}


@pytest.mark.parametrize(
    ("stored", "given", "jump"),
    [
        ([], [point(0, "0.01")], None),  # the first price of a pool has nothing to be compared with
        ([point(0, "2")], [point(1, "3")], None),
        ([point(0, "2")], [point(1, "1")], None),
        ([point(0, "2")], [point(1, "3.01")], (0, 1)),
        ([point(0, "2")], [point(1, "0.99")], (0, 1)),
        ([point(0, "0")], [point(1, "0.01")], (0, 1)),
        ([point(0, "2")], [point(1, "2.5"), point(2, "3"), point(3, "300")], (2, 3)),
        ([point(0, "2"), point(2, "0.02"), point(3, "2")], [point(2, "2.1")], None),  # the correction of one
        ([point(0, "2"), point(1, "20")], [point(1, "20"), point(2, "20")], None),  # sent again
        ([point(0, "2"), point(1, "20")], [point(3, "2"), point(2, "20")], (2, 3)),
    ],
)
def test_a_price_that_moves_by_more_than_half(
    stored: list[PricePoint], given: list[PricePoint], jump: tuple[int, int] | None
) -> None:
    found = price_jump(stored, new(*given))
    got = None if found is None else tuple((p.at - NOON) / HOUR for p in (found.before, found.after))
    assert got == jump


def test_a_feed_stops_after_three_of_its_usual_intervals() -> None:
    feed = price_feed([NOON - n * 6 * HOUR for n in range(FEED_POINTS)])
    assert feed is not None
    assert feed.interval == 6 * HOUR
    assert not feed.stopped(NOON + 18 * HOUR)
    assert feed.stopped(NOON + 18.1 * HOUR)


def test_one_outage_does_not_make_a_feed_slow_and_a_burst_does_not_make_it_fast() -> None:
    outage = [NOON - n * HOUR - (timedelta(days=3) if n > 7 else timedelta(0)) for n in range(FEED_POINTS)]
    found = price_feed(outage)
    assert found is not None and found.interval == HOUR
    burst = price_feed([NOON - n * timedelta(seconds=1) for n in range(FEED_POINTS)])
    assert burst is not None and not burst.stopped(NOON + timedelta(minutes=14))
    assert burst.stopped(NOON + timedelta(minutes=16))


def test_prices_that_somebody_entered_are_no_feed() -> None:
    assert price_feed([]) is None
    assert price_feed([NOON - n * HOUR for n in range(4)]) is None
