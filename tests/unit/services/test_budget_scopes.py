"""What budgets count that are no team's own, against the charges of everybody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction

import pytest

from fairway.cost.calendar import calendar_of
from fairway.ledger import Ledger, StoredBudgetStatus, StoredForecast
from fairway.model.budget import Budget, BudgetLevel
from fairway.model.charge import Label
from fairway.model.fleet import Capacity, Fleet, NamedBudget
from fairway.model.names import PoolName, TeamName
from fairway.model.price import Sharing
from fairway.services.charges import Costs
from fairway.services.convert.budgets import budgets, forecasts
from fairway.services.fleets import holds_of
from fairway.services.spending import SpendingHistory
from fairway.services.spent import TeamSpending
from tests.unit.services.cost_history import NOW, OCTOBER, CostBook, fill, with_rules

TEN = Budget(Decimal(10))
RESEARCH = TeamName("research")
BUDGETS = (
    NamedBudget("all", TEN),
    NamedBudget("cloud", TEN, capacity=(Capacity.SPOT, Capacity.ON_DEMAND)),
    NamedBudget("mig", TEN, pools=(PoolName("mig"),)),
    NamedBudget("research-all", TEN, team=RESEARCH),
    NamedBudget("research-cloud", TEN, team=RESEARCH, capacity=(Capacity.SPOT,)),
    NamedBudget("neither", TEN, pools=(PoolName("mig"),), capacity=(Capacity.SPOT,)),
)


@pytest.fixture
async def book(ledger: Ledger, database_url: str) -> AsyncIterator[CostBook]:
    made = CostBook(database_url)
    yield made
    made.close()


@pytest.mark.parametrize("idle", list(Sharing))
async def test_each_counts_the_charges_of_its_scope(ledger: Ledger, book: CostBook, idle: Sharing) -> None:
    await fill(ledger, book, OCTOBER, 5)
    fleet = replace(with_rules(idle, Sharing.BY_USAGE), budgets=BUDGETS)
    costs, october = Costs(ledger), calendar_of(fleet).month_span(OCTOBER)
    expected = dict.fromkeys((named.name for named in BUDGETS), Fraction(0))
    for charge in await costs.charges(fleet, october, (Label.TEAM,), now=NOW):
        of_research = charge.labels is not None and charge.labels[0] in {"research", "nlp", "vision"}
        expected["all"] += charge.amount
        expected["cloud"] += charge.amount if charge.pool == "spot" else 0
        expected["mig"] += charge.amount if charge.pool == "mig" else 0
        expected["research-all"] += charge.amount if of_research else 0
        expected["research-cloud"] += charge.amount if of_research and charge.pool == "spot" else 0
    spending = TeamSpending(ledger, costs)
    found = await spending.by_budget(fleet, BUDGETS, october, NOW)
    assert found == expected
    assert found["all"] > found["cloud"] > found["research-cloud"] > found["neither"] == 0
    assert found["research-all"] == (await spending.by_team(fleet, october, NOW))[RESEARCH]


async def test_its_forecast_is_from_what_it_counts(ledger: Ledger, book: CostBook) -> None:
    await fill(ledger, book, date(2026, 10, 26), 10)
    fleet = replace(with_rules(Sharing.OWN_LINE, Sharing.OWN_LINE), budgets=BUDGETS)
    models = await SpendingHistory(Costs(ledger)).budget_models(fleet, NOW)
    assert models.keys() == {named.name for named in BUDGETS}
    commitment = 24 * 6 * 0.31  # what the cloud costs each day, whatever becomes of it
    assert models["cloud"].per_day == pytest.approx(commitment, rel=0.01)
    assert models["all"].per_day > models["cloud"].per_day > models["research-cloud"].per_day > 0
    assert models["neither"].per_day == 0


def test_members_see_the_forecasts_of_their_teams_and_none_of_projects() -> None:
    """A project may have the name of their team, and its jobs be of any."""
    nine = Decimal(9)
    stored = [
        StoredForecast(label, "nlp", OCTOBER, nine, nine, nine, nine, datetime(2026, 10, 9, tzinfo=UTC))
        for label in (Label.TEAM, Label.PROJECT)
    ]
    fleet = with_rules(Sharing.OWN_LINE, Sharing.OWN_LINE)
    seen = [
        len(forecasts(fleet, one.label, [one], visible).forecasts)
        for one in stored
        for visible in (None, frozenset({"nlp"}), frozenset({"product"}))
    ]
    assert seen == [1, 1, 0, 1, 0, 0]


def spent(fleet: Fleet) -> list[StoredBudgetStatus]:
    period = calendar_of(fleet).day_of(NOW).replace(day=1)
    amounts = (Decimal(10), Decimal(11), Decimal(1))
    level = BudgetLevel.SPENT
    return [
        StoredBudgetStatus(TeamName(n.name), period, *amounts, runs_out=None, level=level, hold=None)
        for n in fleet.budgets
    ]


def test_members_see_those_of_their_teams_and_no_job_is_held_for_any() -> None:
    fleet = replace(with_rules(Sharing.OWN_LINE, Sharing.OWN_LINE), budgets=BUDGETS)
    statuses = spent(fleet)
    everyone = budgets(fleet, statuses, (), NOW, None).budgets
    assert [(b.name, b.forecast) for b in everyone] == [(n.name, "spent") for n in BUDGETS]
    own = budgets(fleet, statuses, (), NOW, frozenset({"research", "nlp"})).budgets
    assert [(b.name, b.team, b.scope) for b in own] == [
        ("research-all", "research", "team research"),
        ("research-cloud", "research", "team research, spot capacity"),
    ]
    assert holds_of(fleet, statuses, NOW) == {}
