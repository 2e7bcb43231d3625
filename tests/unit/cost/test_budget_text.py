"""The sentence of a spent budget."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest

from fairway.cost.budget_text import (
    SpentBudget,
    day_text,
    money_text,
    period_text,
    range_text,
    spent_hint,
    spent_text,
)
from fairway.model.budget import Every, Hold
from fairway.model.names import PriorityName, TeamName

NLP = SpentBudget(
    team=TeamName("nlp"),
    spent=Fraction("1204.31"),
    amount=Decimal(1200),
    currency="USD",
    every=Every.MONTH,
    period=date(2026, 11, 1),
    until=date(2026, 12, 1),
    hold=Hold.LOW_ONLY,
    low=PriorityName("nightly"),
)


def test_it_says_what_is_spent_what_starts_and_until_when() -> None:
    assert spent_text(NLP) == (
        "Team nlp has spent 1,204 of its 1,200 USD budget for November; "
        "only nightly jobs start until 1 December"
    )
    assert spent_hint(NLP) == (
        "raise  budget.amount  of nlp in the fleet file and run  fairway apply, or let a lead request more "
        "for this month:  fairway budget raise nlp AMOUNT --reason TEXT; or submit with  --priority nightly"
    )


def test_where_nothing_starts_no_priority_is_offered() -> None:
    stopped = replace(
        NLP, hold=Hold.STOP, every=Every.QUARTER, period=date(2026, 10, 1), until=date(2027, 1, 1)
    )
    assert spent_text(stopped).endswith("for October to December; no jobs start until 1 January")
    assert "--priority" not in spent_hint(stopped)


@pytest.mark.parametrize(
    ("amount", "like", "text"),
    [
        ("1204.5", "1200", "1,204"),
        ("1204.5", "1200.50", "1,204.50"),
        ("7.004", "5", "7"),
        ("7.006", "5", "7.01"),
        ("1234567", "1000000", "1,234,567"),
        ("0", "5", "0"),
        ("-1.5", "5", "-1.50"),
        ("-2", "5", "-2"),
    ],
)
def test_cents_where_they_matter(amount: str, like: str, text: str) -> None:
    assert money_text(Fraction(amount), like=Decimal(like)) == text


def test_quarters_by_their_months() -> None:
    named = [period_text(date(2026, month, 1), Every.QUARTER) for month in (1, 4, 7, 10)]
    assert named == ["January to March", "April to June", "July to September", "October to December"]
    assert day_text(date(2026, 2, 1)) == "1 February"


@pytest.mark.parametrize(
    ("low", "high", "amount", "text"),
    [
        ("51874.11", "61203.90", "60000", "52,000–61,000 by month end"),
        ("41480", "54310", "60000", "41,000–54,000 by month end"),
        ("7.12", "9.47", "20", "7.10–9.50 by month end"),
        ("100", "100", "60000", "100 by month end"),
        ("0", "0", "20", "0 by month end"),
        (None, None, "20", ""),
    ],
)
def test_a_range_has_as_many_digits_as_are_known(
    low: str | None, high: str | None, amount: str, text: str
) -> None:
    lowest, highest = (None if end is None else Decimal(end) for end in (low, high))
    assert range_text(lowest, highest, Decimal(amount), Every.MONTH) == text
    assert range_text(lowest, highest, Decimal(amount), Every.QUARTER) == text.replace("month", "quarter")
