"""Format sentences about spent budgets, so that every view uses the same wording. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fairway.model.budget import BudgetOutlook, Every, Hold
from fairway.model.names import PriorityName, TeamName
from fairway.model.text import count

SPENT_CODE: Final = "BudgetSpent"
"""The reason code of a job that waits because a budget is spent."""
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
EFFECTS: Final = {
    None: "jobs continue, because at_limit is warn",
    Hold.LOW_ONLY: "only preemptible jobs start",
    Hold.STOP: "no jobs start",
}
"""What a spent budget does, by its hold."""
_SMALL: Final = 100
"""Budgets below this amount are shown with cents."""


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """A spent budget that blocks jobs, with the values that its sentence needs."""

    team: TeamName
    """The owner of the budget: the job's team or one of its ancestors."""
    spent: Fraction
    amount: Decimal
    currency: str
    every: Every
    period: date
    """The first day of the budget period."""
    until: date
    """The first day of the next period."""
    hold: Hold
    low: PriorityName | None = None
    """A preemptible priority whose jobs still start while the hold is LOW_ONLY."""
    shows_amounts: bool = True
    """Whether the reader may see what the owner may spend, and has spent."""


def spent_text(budget: SpentBudget) -> str:
    """Format e.g. `Team nlp has spent 1,204 of its 1,200 USD budget for November; only low jobs …`."""
    what = "its"
    if budget.shows_amounts:
        spent = money_text(budget.spent, like=budget.amount)
        amount = money_text(Fraction(budget.amount), like=budget.amount)
        what = f"{spent} of its {amount} {budget.currency}"
    return (
        f"Team {budget.team} has spent {what} budget for "
        f"{period_text(budget.period, budget.every)}; {starts_text(budget)} until {day_text(budget.until)}"
    )


def starts_text(budget: SpentBudget) -> str:
    """Describe which jobs still start under the budget's hold."""
    if budget.hold is Hold.STOP:
        return "no jobs start"
    return f"only {budget.low or 'low'} jobs start"


def spent_hint(budget: SpentBudget) -> str:
    """Return a hint on how to get jobs started again."""
    raise_it = (
        f"raise  budget.amount  of {budget.team} in the fleet file and run  fairway apply, or let a lead "
        f"request more for this {budget.every}:  fairway budget raise {budget.team} AMOUNT --reason TEXT"
    )
    if budget.hold is Hold.STOP:
        return raise_it
    return f"{raise_it}; or submit with  --priority {budget.low or 'low'}"


def state_text(
    outlook: BudgetOutlook,
    hold: Hold | None,
    runs_out: date | None,
    until: date,
    every: Every,
    warn_at: Decimal,
) -> str:
    """Format the state of a budget as every view shows it: `will run out 10 days early`.

    `until` begins the next period.
    """
    if outlook is BudgetOutlook.SPENT:
        return "spent" if hold is None else f"spent: {EFFECTS[hold]}"
    if runs_out is not None:
        days = (until - runs_out).days - 1
        return f"will run out {count(days, 'day')} early" if days > 0 else "will run out on the last day"
    if outlook is BudgetOutlook.WARNED:
        return f"over {(100 * warn_at).normalize():f} %, but will last the {every}"
    return f"will last the {every}"


def range_text(low: Decimal | None, high: Decimal | None, like: Decimal, every: Every) -> str:
    """Format the range of a forecast, e.g. `52,000–61,000 by month end`; empty if there is none."""
    if low is None or high is None:
        return ""
    ends = [money_text(_rough(end, high - low), like=like) for end in (low, high)]
    return f"{'–'.join(dict.fromkeys(ends))} by {every} end"


def _rough(amount: Decimal, width: Decimal) -> Decimal:
    """Round an end of a range to about a tenth of its width: more digits would say nothing."""
    return round(amount, -(width / 3).adjusted()) if width > 0 else amount


def money_text(amount: Fraction | Decimal, like: Decimal) -> str:
    """Format an amount: whole, or with cents if the budget `like` is below 100 or has cents itself."""
    cents = abs(like) < _SMALL or like != like.to_integral_value()
    exact = Fraction(amount)
    hundredths = round(exact * 100)
    if not cents or hundredths % 100 == 0:
        return f"{round(exact):,}"
    return f"{Decimal(hundredths).scaleb(-2):,.2f}"


def period_text(start: date, every: Every) -> str:
    """Format a budget period: `November`, `October to December`."""
    first = _MONTHS[start.month - 1]
    return first if every is Every.MONTH else f"{first} to {_MONTHS[(start.month + 1) % 12]}"


def day_text(day: date) -> str:
    """Format a day: `1 December`."""
    return f"{day.day} {_MONTHS[day.month - 1]}"
