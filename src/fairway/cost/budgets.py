"""Compute the state of budgets: level, projected run-out day, and the holds on teams that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from fractions import Fraction

from fairway.cost.calendar import Calendar, next_month
from fairway.cost.forecast import Forecast, SpendingModel
from fairway.model.budget import AtLimit, Budget, BudgetLevel, BudgetOutlook, Every, Hold
from fairway.model.charge import Span
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName

Raises = Mapping[tuple[TeamName, Every, date], Decimal]
"""What approved raises add to the budgets of teams, by team, kind of period and its first day."""


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """The state of a budget at one point in time."""

    level: BudgetLevel
    hold: Hold | None
    """Which jobs it blocks from starting; None if none."""
    runs_out: date | None
    """The day it is expected to be spent, today if it is spent; None if not in this period."""
    forecast: Forecast | None
    """What will be spent when the period ends; None while a hold keeps jobs from starting."""


def period_start(every: Every, day: date) -> date:
    """Return the first day of the month or quarter that contains `day`."""
    first = day.replace(day=1)
    return first if every is Every.MONTH else first.replace(month=1 + 3 * ((day.month - 1) // 3))


def period(every: Every, day: date, calendar: Calendar) -> Span:
    """Return the span of the month or quarter that contains `day`."""
    first = period_start(every, day)
    after = next_month(first)
    if every is Every.QUARTER:
        after = next_month(next_month(after))
    return Span(calendar.day_start(first), calendar.day_start(after))


def budget_status(
    budget: Budget, spent: Fraction, model: SpendingModel, now: int, calendar: Calendar
) -> BudgetStatus:
    """Compute the state of `budget`, given the amount `spent` in the period that contains `now`."""
    amount = Fraction(budget.amount)
    today = calendar.day_of(now)
    until = calendar.day_of(period(budget.every, today, calendar).end)
    forecast = model.forecast(float(spent), until)
    if spent >= amount:
        hold = budget_hold(budget, spent)
        return BudgetStatus(BudgetLevel.SPENT, hold, today, forecast if hold is None else None)
    level = BudgetLevel.WARNED if spent >= amount * Fraction(budget.warn_at) else BudgetLevel.OK
    runs_out = model.depletion(float(amount - spent), until).expected
    return BudgetStatus(level, None, runs_out, forecast)


def budget_hold(budget: Budget, spent: Fraction) -> Hold | None:
    """Return which jobs the budget blocks from starting once `spent` is spent; None if none."""
    return _HOLDS[budget.at_limit] if spent >= budget.amount else None


def budget_outlook(level: BudgetLevel, runs_out: date | None) -> BudgetOutlook:
    """Return the level to show: what the forecast says comes before how much is spent."""
    if level is BudgetLevel.SPENT:
        return BudgetOutlook.SPENT
    if runs_out is not None:
        return BudgetOutlook.RUNS_OUT
    return BudgetOutlook.WARNED if level is BudgetLevel.WARNED else BudgetOutlook.OK


def with_raises(fleet: Fleet, raises: Raises, day: date) -> Fleet:
    """Return the fleet with the amounts in force on `day`: of the file, and approved raises of that period.

    Previous raises are discarded: `raises` is complete. A renamed team keeps those of its former name.
    """
    added: dict[TeamName, Decimal] = {}
    for team in fleet.teams:
        if team.budget is None:
            continue
        every = team.budget.every
        names = {team.name, team.renamed_from or team.name}
        found = (raises.get((name, every, period_start(every, day))) for name in names)
        added[team.name] = sum((amount for amount in found if amount is not None), Decimal(0))
    if all(t.budget is None or t.budget.raised == added[t.name] for t in fleet.teams):
        return fleet
    teams = (
        t if t.budget is None else replace(t, budget=_raised(t.budget, added[t.name])) for t in fleet.teams
    )
    return replace(fleet, teams=tuple(teams))


def _raised(budget: Budget, by: Decimal) -> Budget:
    return replace(budget, amount=budget.amount - budget.raised + by, raised=by)


_HOLDS = {AtLimit.WARN: None, AtLimit.LOW_ONLY: Hold.LOW_ONLY, AtLimit.STOP: Hold.STOP}


def with_holds(fleet: Fleet, holds: Mapping[TeamName, Hold]) -> Fleet:
    """Return the fleet with the holds of spent budgets set on its teams.

    A child team inherits its parent's hold, or keeps its own if that is stricter. Previous holds are
    discarded: `holds` is complete.
    """
    held: dict[TeamName, Hold | None] = {}
    for team in fleet.teams:  # parents before children
        own = holds.get(team.name)
        above = held[team.parent] if team.parent is not None else None
        held[team.name] = stricter(own, above)
    if all(team.hold is held[team.name] for team in fleet.teams):
        return fleet
    return replace(fleet, teams=tuple(replace(team, hold=held[team.name]) for team in fleet.teams))


def stricter(one: Hold | None, other: Hold | None) -> Hold | None:
    """Return the stricter of two holds. None is no hold."""
    if Hold.STOP in (one, other):
        return Hold.STOP
    return one or other
