"""Compute the state of budgets: level, projected run-out day, and the holds on teams that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction

from fairway.cost.calendar import Calendar, next_month
from fairway.model.budget import AtLimit, Budget, BudgetLevel, BudgetOutlook, Every, Hold
from fairway.model.charge import Span
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName

DAY_SECONDS = 86400
BURN_SECONDS = 7 * DAY_SECONDS


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """The state of a budget at one point in time."""

    level: BudgetLevel
    hold: Hold | None
    """Which jobs it blocks from starting; None if none."""
    runs_out: date | None
    """The day it will be spent at the current rate, today if it is spent; None if not in this period."""


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


def burn_window(every: Every, now: int, calendar: Calendar) -> Span:
    """Return the span over which the burn rate is measured: the last seven days of this period, at least one.

    It ends with the current hour. It is at least one day long, even if that reaches into the previous period:
    one costly hour after midnight says little about a month.
    """
    end = calendar.next_hour(now)
    began = max(period(every, calendar.day_of(now), calendar).start, end - BURN_SECONDS)
    return Span(calendar.hour_start(min(began, end - DAY_SECONDS)), end)


def per_day(spent: Fraction, window: Span, now: int) -> Fraction:
    """Return the spending per day, given the amount `spent` since `window` began."""
    return spent * DAY_SECONDS / max(1, min(window.end, now) - window.start)


def budget_status(
    budget: Budget, spent: Fraction, per_day: Fraction, now: int, calendar: Calendar
) -> BudgetStatus:
    """Compute the state of `budget`, given the amount `spent` in the period that contains `now`."""
    amount = Fraction(budget.amount)
    today = calendar.day_of(now)
    if spent >= amount:
        return BudgetStatus(BudgetLevel.SPENT, _HOLDS[budget.at_limit], today)
    level = BudgetLevel.WARNED if spent >= amount * Fraction(budget.warn_at) else BudgetLevel.OK
    return BudgetStatus(level, None, _runs_out(budget.every, amount - spent, per_day, now, calendar))


def budget_outlook(level: BudgetLevel, runs_out: date | None) -> BudgetOutlook:
    """Return the level to show: what the forecast says comes before how much is spent."""
    if level is BudgetLevel.SPENT:
        return BudgetOutlook.SPENT
    if runs_out is not None:
        return BudgetOutlook.RUNS_OUT
    return BudgetOutlook.WARNED if level is BudgetLevel.WARNED else BudgetOutlook.OK


_HOLDS = {AtLimit.WARN: None, AtLimit.LOW_ONLY: Hold.LOW_ONLY, AtLimit.STOP: Hold.STOP}


def _runs_out(every: Every, left: Fraction, per_day: Fraction, now: int, calendar: Calendar) -> date | None:
    if per_day <= 0:
        return None
    seconds = left / per_day * DAY_SECONDS
    if now + seconds >= period(every, calendar.day_of(now), calendar).end:
        return None
    return calendar.day_of(now + int(seconds))


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
