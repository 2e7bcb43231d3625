"""Sentences about budgets: one way to say that a budget is spent, wherever it is said. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fairway.model.budget import Every, Hold
from fairway.model.names import PriorityName, TeamName

SPENT_CODE: Final = "BudgetSpent"
"""The reason of a job that waits for money, in a word."""
_MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_SMALL: Final = 100
"""Below it cents are shown."""


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """A spent budget that keeps something from starting, with all its sentence needs."""

    team: TeamName
    """Whose budget it is: that of the job's team, or of one around it."""
    spent: Fraction
    amount: Decimal
    currency: str
    every: Every
    period: date
    """The first day it is for."""
    until: date
    """The first day of the next period."""
    hold: Hold
    low: PriorityName | None = None
    """A priority that still starts while only low ones do."""


def spent_text(budget: SpentBudget) -> str:
    """`team nlp has spent 1,204 of its 1,200 USD budget for November; only low jobs start until …`."""
    spent = money_text(budget.spent, like=budget.amount)
    amount = money_text(Fraction(budget.amount), like=budget.amount)
    return (
        f"team {budget.team} has spent {spent} of its {amount} {budget.currency} budget for "
        f"{period_text(budget.period, budget.every)}; {starts_text(budget)} until {day_text(budget.until)}"
    )


def starts_text(budget: SpentBudget) -> str:
    """What still starts."""
    if budget.hold is Hold.STOP:
        return "nothing of it starts"
    return f"only {budget.low or 'low'} jobs start"


def spent_hint(budget: SpentBudget) -> str:
    """What somebody can do about it now."""
    raise_it = f"raise  budget.amount  of {budget.team} in the fleet file and  fairway apply"
    if budget.hold is Hold.STOP:
        return raise_it
    return f"{raise_it}, or submit with  --priority {budget.low or 'low'}"


def money_text(amount: Fraction | Decimal, like: Decimal) -> str:
    """An amount as a sentence shows it: whole, or with cents where the budget `like` is small or has some."""
    cents = abs(like) < _SMALL or like != like.to_integral_value()
    exact = Fraction(amount)
    hundredths = round(exact * 100)
    if not cents or hundredths % 100 == 0:
        return f"{round(exact):,}"
    return f"{Decimal(hundredths).scaleb(-2):,.2f}"


def period_text(start: date, every: Every) -> str:
    """`November`, `October to December`."""
    first = _MONTHS[start.month - 1]
    return first if every is Every.MONTH else f"{first} to {_MONTHS[(start.month + 1) % 12]}"


def day_text(day: date) -> str:
    """`1 December`."""
    return f"{day.day} {_MONTHS[day.month - 1]}"
