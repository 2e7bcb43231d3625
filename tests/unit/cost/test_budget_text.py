"""The sentence of a spent budget."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest

from fairway.cost.budget_text import SpentBudget, day_text, money_text, period_text, spent_hint, spent_text
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
        "raise  budget.amount  of nlp in the fleet file and run  fairway apply, "
        "or submit with  --priority nightly"
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
