"""The month-end forecast: its expectation, its range, and the day on which an amount is spent."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.cost.forecast import DailySpending, Depletion, Forecast, SpendingModel

NOVEMBER = date(2026, 11, 1)
DECEMBER = date(2026, 12, 1)


def spending(
    *days: float, until: date = date(2026, 11, 11), today: float = 0, elapsed: float = 0
) -> DailySpending:
    """Spending on the days before `until`, which is today."""
    return DailySpending(until - timedelta(days=len(days)), days, today, elapsed)


def spent_since(known: DailySpending, start: date) -> float:
    return sum(known.days[max(0, (start - known.first).days) :]) + known.today


def forecast(known: DailySpending, start: date, until: date) -> Forecast:
    return SpendingModel(known).forecast(spent_since(known, start), until)


def depletion(known: DailySpending, left: float, until: date) -> Depletion:
    return SpendingModel(known).depletion(left, until)


def test_a_steady_payer_goes_on_as_before() -> None:
    found = forecast(spending(*[100.0] * 60), NOVEMBER, DECEMBER)
    assert found.expected == pytest.approx(3000)
    # Nothing was ever off: what remains is the doubt about a payer of whom two months are known.
    assert 2700 < found.low < 3000 < found.high < 3350


def test_the_part_of_today_that_is_over_counts_once() -> None:
    found = forecast(spending(*[100.0] * 60, today=25, elapsed=0.25), NOVEMBER, DECEMBER)
    assert found.expected == pytest.approx(3000)


def test_recent_days_count_more() -> None:
    found = forecast(spending(*[100.0] * 50, *[200.0] * 10), NOVEMBER, DECEMBER)
    assert 2000 + 20 * 170 < found.expected < 2000 + 20 * 200


def test_weekends_are_not_taken_for_a_decline() -> None:
    """On Monday 9 November the last two days were cheap, as all weekends are."""
    days = [100.0 if (date(2026, 9, 1) + timedelta(days=n)).weekday() < 5 else 10.0 for n in range(69)]
    found = forecast(DailySpending(date(2026, 9, 1), days), NOVEMBER, DECEMBER)
    actual = 21 * 100 + 9 * 10
    assert abs(found.expected - actual) < 0.04 * actual  # 11 % without the profile


def test_a_restless_payer_has_a_wider_range() -> None:
    random = Random(1)
    calm = [100 * random.lognormvariate(0, 0.1) for _ in range(60)]
    wild = [100 * random.lognormvariate(0, 1.2) for _ in range(60)]
    a, b = (forecast(spending(*days), NOVEMBER, DECEMBER) for days in (calm, wild))
    assert (b.high - b.low) / b.expected > 2 * (a.high - a.low) / a.expected


def test_without_a_history_the_range_is_wide() -> None:
    found = forecast(spending(100.0, until=date(2026, 11, 2)), NOVEMBER, DECEMBER)
    assert found.expected == pytest.approx(3000)
    assert found.low < 2000
    assert found.high > 4500


def test_one_costly_hour_is_not_a_costly_day() -> None:
    found = forecast(DailySpending(NOVEMBER, [], today=50.0, elapsed=1 / 24), NOVEMBER, DECEMBER)
    assert found.expected == pytest.approx(50 + 50 * (30 - 1 / 24))


def test_who_spends_nothing_is_expected_to_spend_nothing() -> None:
    found = forecast(spending(*[0.0] * 60), NOVEMBER, DECEMBER)
    assert (found.expected, found.low, found.high) == (0, 0, 0)
    assert depletion(spending(*[0.0] * 60), 10, DECEMBER).earliest is None


def test_days_before_the_first_spending_are_no_history() -> None:
    new = spending(*[0.0] * 50, *[100.0] * 10)
    assert forecast(new, NOVEMBER, DECEMBER) == forecast(spending(*[100.0] * 10), NOVEMBER, DECEMBER)


def test_an_amount_is_spent_on_the_day_that_passes_it() -> None:
    steady = spending(*[100.0] * 60)  # today is the 11th, 1000 are spent
    found = depletion(steady, 450, DECEMBER)
    assert found.expected == date(2026, 11, 15)
    assert found.earliest in (date(2026, 11, 14), date(2026, 11, 15))
    assert depletion(steady, 2500, DECEMBER).expected is None


def test_a_quarter_is_a_longer_month() -> None:
    days = spending(*[100.0] * 60)
    found = forecast(days, date(2026, 10, 1), date(2027, 1, 1))
    assert found.expected == pytest.approx(9200)


amounts = st.lists(st.floats(0, 1e6, allow_subnormal=False), max_size=130)


@given(amounts, st.floats(0, 1e5, allow_subnormal=False), st.floats(0, 0.99), st.integers(0, 29))
def test_it_is_ordered_and_never_below_what_is_spent(
    days: list[float], today: float, elapsed: float, over: int
) -> None:
    known = spending(*days, until=NOVEMBER + timedelta(days=over), today=today, elapsed=elapsed)
    found = forecast(known, NOVEMBER, DECEMBER)
    tolerance = 1e-9 * (1 + found.high)
    assert spent_since(known, NOVEMBER) <= found.low + tolerance
    assert found.low <= found.expected + tolerance
    assert found.expected <= found.high + tolerance
    when = depletion(known, 1000.0, DECEMBER)
    if when.expected is not None:
        assert when.earliest is not None
        assert when.earliest <= when.expected


@given(amounts, st.floats(0.001, 1000, allow_subnormal=False))
def test_the_currency_does_not_matter(days: list[float], rate: float) -> None:
    one = forecast(spending(*days), NOVEMBER, DECEMBER)
    other = forecast(spending(*(rate * amount for amount in days)), NOVEMBER, DECEMBER)
    assert other.expected == pytest.approx(rate * one.expected, rel=1e-6, abs=1e-6)
    assert other.high == pytest.approx(rate * one.high, rel=1e-6, abs=1e-6)
