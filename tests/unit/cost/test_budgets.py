"""How a budget stands, and what that keeps from starting."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.cost.budget_text import state_text
from fairway.cost.budgets import (
    BudgetStatus,
    budget_outlook,
    budget_status,
    period,
    period_start,
    stricter,
    with_holds,
    with_raises,
)
from fairway.cost.calendar import Calendar
from fairway.cost.forecast import DailySpending, SpendingModel
from fairway.model.budget import AtLimit, Budget, BudgetLevel, BudgetOutlook, Every, Hold
from fairway.model.names import TeamName
from fairway.model.team import Team
from tests.unit.cost.small import CALENDAR, DAY, fleet, gpus, patient, team

BUDGET = Budget(Decimal(1000), at_limit=AtLimit.STOP)
TENTH = int(datetime(2026, 11, 10, 12, tzinfo=UTC).timestamp())
DECEMBER = date(2026, 12, 1)


def steady(per_day: str) -> SpendingModel:
    """A team that has spent as much each day of the last 60, and half of it today until noon."""
    rate = float(per_day)
    return SpendingModel(DailySpending(date(2026, 9, 11), [rate] * 60, rate / 2, 0.5))


@pytest.mark.parametrize(
    ("spent", "level", "hold"),
    [
        ("0", BudgetLevel.OK, None),
        ("799.99", BudgetLevel.OK, None),
        ("800", BudgetLevel.WARNED, None),
        ("999.99", BudgetLevel.WARNED, None),
        ("1000", BudgetLevel.SPENT, Hold.STOP),
        ("5000", BudgetLevel.SPENT, Hold.STOP),
    ],
)
def test_levels(spent: str, level: BudgetLevel, hold: Hold | None) -> None:
    found = budget_status(BUDGET, Fraction(spent), steady("0"), TENTH, CALENDAR)
    assert (found.level, found.hold) == (level, hold)


@pytest.mark.parametrize(
    ("at_limit", "hold"),
    [(AtLimit.WARN, None), (AtLimit.LOW_ONLY, Hold.LOW_ONLY), (AtLimit.STOP, Hold.STOP)],
)
def test_what_a_spent_budget_holds(at_limit: AtLimit, hold: Hold | None) -> None:
    budget = replace(BUDGET, at_limit=at_limit)
    found = budget_status(budget, Fraction(1000), steady("1"), TENTH, CALENDAR)
    # While nothing starts, the past says nothing about the rest of the month.
    forecast = None if hold else steady("1").forecast(1000, DECEMBER)
    assert found == BudgetStatus(BudgetLevel.SPENT, hold, date(2026, 11, 10), forecast)


@pytest.mark.parametrize(
    ("rate", "runs_out"),
    [("0", None), ("100", date(2026, 11, 15)), ("24.3", None), ("24.5", date(2026, 11, 30))],
)
def test_the_day_it_runs_out(rate: str, runs_out: date | None) -> None:
    assert budget_status(BUDGET, Fraction(500), steady(rate), TENTH, CALENDAR).runs_out == runs_out


@pytest.mark.parametrize(
    ("spent", "rate", "outlook", "text"),
    [
        ("100", "1", BudgetOutlook.OK, "will last the month"),
        ("850", "1", BudgetOutlook.WARNED, "over 80 %, but will last the month"),
        ("450", "55", BudgetOutlook.RUNS_OUT, "will run out 10 days early"),
        ("450", "28.5", BudgetOutlook.RUNS_OUT, "will run out 1 day early"),
        ("450", "27.5", BudgetOutlook.RUNS_OUT, "will run out on the last day"),
        ("850", "100", BudgetOutlook.RUNS_OUT, "will run out 18 days early"),
        ("1000", "1", BudgetOutlook.SPENT, "spent: no jobs start"),
    ],
)
def test_the_level_that_people_see_is_by_forecast(
    spent: str, rate: str, outlook: BudgetOutlook, text: str
) -> None:
    status = budget_status(BUDGET, Fraction(spent), steady(rate), TENTH, CALENDAR)
    assert budget_outlook(status.level, status.runs_out) is outlook
    assert state_text(outlook, status.hold, status.runs_out, DECEMBER, BUDGET.every, BUDGET.warn_at) == text


def test_a_budget_of_nothing_is_spent() -> None:
    nothing = Budget(Decimal(0), at_limit=AtLimit.STOP)
    assert budget_status(nothing, Fraction(0), steady("0"), TENTH, CALENDAR).hold is Hold.STOP


def test_periods() -> None:
    assert period_start(Every.MONTH, date(2026, 11, 30)) == date(2026, 11, 1)
    assert period_start(Every.QUARTER, date(2026, 12, 31)) == date(2026, 10, 1)
    assert period_start(Every.QUARTER, date(2026, 3, 1)) == date(2026, 1, 1)
    berlin = Calendar(ZoneInfo("Europe/Berlin"))
    quarter = period(Every.QUARTER, date(2026, 11, 5), berlin)
    assert (berlin.day_of(quarter.start), berlin.day_of(quarter.end)) == (date(2026, 10, 1), date(2027, 1, 1))
    assert quarter.end - quarter.start == 92 * DAY + 3600  # with the hour of October


def test_a_hold_goes_down_the_tree_and_the_stricter_wins() -> None:
    teams = (team("a"), team("b", "a"), team("c", "b"), team("d"))
    holds = {TeamName("a"): Hold.LOW_ONLY, TeamName("b"): Hold.STOP, TeamName("c"): Hold.LOW_ONLY}
    held = with_holds(fleet(gpus(), teams=teams), holds)
    assert [t.hold for t in held.teams] == [Hold.LOW_ONLY, Hold.STOP, Hold.STOP, None]
    assert [t.hold for t in with_holds(held, {}).teams] == [None] * 4


def test_nothing_held_changes_nothing() -> None:
    of = fleet(gpus(), teams=(team("a"),))
    assert with_holds(of, {}) is of


HOLDS = st.sampled_from([None, Hold.LOW_ONLY, Hold.STOP])


@patient
@given(HOLDS, HOLDS, HOLDS)
def test_stricter_is_a_maximum(a: Hold | None, b: Hold | None, c: Hold | None) -> None:
    assert stricter(a, b) is stricter(b, a)
    assert stricter(a, stricter(b, c)) is stricter(stricter(a, b), c)
    assert stricter(a, a) is a
    assert stricter(a, None) is a


RAISED = {
    (TeamName("nlp"), Every.MONTH, date(2026, 11, 1)): Decimal(250),
    (TeamName("nlp"), Every.QUARTER, date(2026, 10, 1)): Decimal(7000),
    (TeamName("nlp"), Every.MONTH, date(2026, 12, 1)): Decimal(1),
    (TeamName("gone"), Every.MONTH, date(2026, 11, 1)): Decimal(9),
}


def owner(name: str, budget: Budget) -> Team:
    return Team(TeamName(name), budget=budget)


@pytest.mark.parametrize(
    ("every", "day", "amount"),
    [
        (Every.MONTH, date(2026, 11, 30), 1250),
        (Every.MONTH, date(2026, 12, 1), 1001),
        (Every.MONTH, date(2026, 10, 31), 1000),
        (Every.QUARTER, date(2026, 12, 31), 8000),
        (Every.QUARTER, date(2027, 1, 1), 1000),
    ],
)
def test_a_raise_counts_in_its_own_period_and_for_its_own_team_only(
    every: Every, day: date, amount: int
) -> None:
    budget = replace(BUDGET, every=every)
    of = fleet(teams=(owner("nlp", budget), owner("product", budget), Team(TeamName("vision"))))
    found = {t.name: t.budget and t.budget.amount for t in with_raises(of, RAISED, day).teams}
    assert found == {"nlp": amount, "product": 1000, "vision": None}


def test_raises_replace_each_other_and_a_fleet_without_any_is_the_same_object() -> None:
    of = fleet(teams=(owner("nlp", BUDGET),))
    day = date(2026, 11, 18)
    assert with_raises(of, {}, day) is of
    raised = with_raises(of, RAISED, day)
    assert with_raises(raised, RAISED, day) is raised
    assert with_raises(raised, {}, day) == of
    (nlp,) = raised.teams
    assert nlp.budget is not None and nlp.budget.raised == 250


def test_a_renamed_team_keeps_its_raise() -> None:
    of = fleet(teams=(replace(owner("lang", BUDGET), renamed_from=TeamName("nlp")),))
    (lang,) = with_raises(of, RAISED, date(2026, 11, 18)).teams
    assert lang.budget is not None and lang.budget.amount == 1250
