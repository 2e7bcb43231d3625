"""Numbers and times as people read them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from fairway.cli.output.format import age, count, number, price, span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (-3, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (172_800, "2 d"),
    ],
)
def test_span(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_unknown_is_not_zero() -> None:
    assert number(None) == "-"
    assert number(0) == "0"
    assert age(None) == "never"
    assert age(3) == "3 s"


@pytest.mark.parametrize(
    ("value", "text"), [("1.9", "1.90"), ("3", "3.00"), ("0.0125", "0.0125"), ("1E+1", "10.00")]
)
def test_price(value: str, text: str) -> None:
    assert price(Decimal(value)) == text


def test_count() -> None:
    assert (count(1, "node"), count(2, "node")) == ("1 node", "2 nodes")
