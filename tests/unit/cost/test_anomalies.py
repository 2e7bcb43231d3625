"""Unusual days and prices."""

from __future__ import annotations

from datetime import date, timedelta
from fractions import Fraction

import pytest

from fairway.cost.anomalies import find_anomaly, moved_by_half
from fairway.cost.forecast import DailySpending

MONDAY = date(2026, 9, 7)


def days(*last: float, weekend: float = 100.0, weeks: int = 6) -> DailySpending:
    """Weeks that end with a Sunday, of 100 ± 5 a day, and then `last`."""
    usual = [
        (weekend if (MONDAY + timedelta(days=n)).weekday() >= 5 else 100.0) + (n % 3 - 1) * 5
        for n in range(7 * weeks)
    ]
    return DailySpending(MONDAY, [*usual, *last])


def test_a_day_that_costs_three_times_as_much_is_found() -> None:
    found = find_anomaly(days(300.0), least=20)
    assert found is not None
    assert found.day == MONDAY + timedelta(weeks=6)
    assert found.usual == pytest.approx(100, rel=0.05)
    assert found.extra == pytest.approx(200, rel=0.05)


def test_a_usual_day_is_not() -> None:
    assert find_anomaly(days(110.0), least=1) is None


def test_a_fall_is_not() -> None:
    assert find_anomaly(days(0.0), least=1) is None


def test_it_is_compared_with_its_own_weekday() -> None:
    """100 is usual on a Monday, and ten times the usual on a Sunday."""
    quiet = days(100.0, weekend=10.0)
    assert find_anomaly(quiet, least=20) is None
    sunday = DailySpending(MONDAY, [*quiet.days[:-2], 100.0])
    assert (sunday.day - timedelta(days=1)).weekday() == 6
    assert find_anomaly(sunday, least=20) is not None


def test_a_small_payer_does_not_alert() -> None:
    assert find_anomaly(days(300.0), least=1000) is None


def test_a_payer_of_two_weeks_is_known_well_enough_and_one_of_less_is_not() -> None:
    assert find_anomaly(days(300.0, weeks=2), least=20) is not None
    assert find_anomaly(days(300.0, weeks=1), least=20) is None


def test_a_change_is_reported_once() -> None:
    assert find_anomaly(days(300.0, 320.0), least=20) is None
    assert find_anomaly(days(300.0, *[100.0] * 6, 300.0), least=20) is None
    assert find_anomaly(days(300.0, *[100.0] * 8, 300.0), least=20) is not None


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [("2", "3", True), ("2", "1", True), ("2", "2.9", False), ("2", "1.1", False), ("0", "5", False)],
)
def test_a_price_that_moves_by_half(before: str, after: str, moved: bool) -> None:
    assert moved_by_half(Fraction(before), Fraction(after)) is moved
