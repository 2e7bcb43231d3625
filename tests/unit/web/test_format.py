"""How pages write times, amounts and money."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from fairway.web import format as web_format

NOW = datetime(2026, 11, 15, 18, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (-5, "0 s"),
        (59.9, "59 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (12000, "3 h"),
        (2 * 86400 + 5 * 3600, "2 d"),
        (None, "–"),
    ],
)
def test_durations(seconds: float | None, said: str) -> None:
    assert web_format.duration(seconds) == said
    if seconds is not None:
        assert web_format.duration(timedelta(seconds=seconds)) == said


def test_ago() -> None:
    assert web_format.ago(NOW - timedelta(minutes=5), NOW) == "5 min ago"
    assert web_format.ago(NOW + timedelta(seconds=5), NOW) == "0 s ago"  # another clock is a little ahead
    assert web_format.ago(None, NOW) == "never"


def test_a_clock_says_the_date_of_another_day() -> None:
    assert web_format.clock(NOW - timedelta(hours=3), NOW) == "15:00:00"
    assert web_format.clock(NOW - timedelta(days=1), NOW) == "2026-11-14 18:00:00"
    assert web_format.clock(None, NOW) == "–"


def test_moments_are_utc() -> None:
    there = datetime(2026, 11, 15, 19, 3, 22, tzinfo=timezone(timedelta(hours=1)))
    assert web_format.moment(there) == "2026-11-15 18:03:22"
    assert web_format.moment(None) == "–"


def test_money_is_exact() -> None:
    assert web_format.money(Decimal("1234.5"), "USD") == "1,234.50 USD"
    assert web_format.money("0.1") == "0.10"
    assert web_format.money(Decimal("123456789012345678.99"), "EUR") == "123,456,789,012,345,678.99 EUR"
    assert web_format.money(None) == "–"


def test_numbers() -> None:
    assert web_format.number(12345) == "12,345"
    assert web_format.number(Decimal("2.345"), 1) == "2.3"
    assert web_format.number(None) == "–"
    assert web_format.percent(21, 50) == "42 %"
    assert web_format.percent(1, 0) == "–"


@pytest.mark.parametrize(
    ("paid", "hours", "currency", "said"),
    [
        ("18588.90", "5065.10", "USD", "3.6700"),
        ("974.15", "286.52", "USD", "3.400"),  # 3.39994 of rounded figures, at a price of 3.40
        ("1.09", "1.00", "USD", "1.09"),
        ("400", "100.00", "JPY", "4.0"),
        ("0.00", "0.00", "USD", "–"),
    ],
)
def test_a_rate_has_the_places_that_its_figures_determine(
    paid: str, hours: str, currency: str, said: str
) -> None:
    assert web_format.rate(Decimal(paid), Decimal(hours), currency) == said
