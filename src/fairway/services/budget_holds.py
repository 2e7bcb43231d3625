"""Which budget holds which team now."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import date
from fractions import Fraction

from fairway.cost.budget_text import SpentBudget
from fairway.cost.budgets import period, period_start
from fairway.ledger import Ledger, StoredBudgetStatus
from fairway.model.budget import Budget, Hold
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.model.team import TeamTree
from fairway.services.applied_fleet import has_budgets, holds_of
from fairway.services.charges import calendar_of
from fairway.services.fleets import Fleets


async def teams_held_by_budgets(
    ledger: Ledger, fleets: Fleets
) -> tuple[Fleet, Mapping[TeamName, SpentBudget]]:
    """Read the fleet, and of each held team the budget that holds it: jobs may wait for that."""
    fleet = await fleets.applied()
    if fleet is None or not has_budgets(fleet):
        return fleet or await fleets.current(), {}
    return fleet, spent_budgets(fleet, await ledger.budgets.standings(), int(time.time()))


def spent_budgets(
    fleet: Fleet, standings: Iterable[StoredBudgetStatus], now: int
) -> Mapping[TeamName, SpentBudget]:
    """Of each team that is held, the budget that holds it: the strictest, and of those the nearest."""
    kept = list(standings)
    holds = holds_of(fleet, kept, now)
    if not holds:
        return {}
    tree, spent = TeamTree(fleet.teams), {s.team: Fraction(s.spent) for s in kept}
    low = next((p.name for p in fleet.priorities if p.preemptible), None)
    found: dict[TeamName, SpentBudget] = {}
    for team in fleet.teams:
        around = [t for t in (team, *tree.ancestors(team)) if t.name in holds]
        if not around:
            continue
        by = next((t for t in around if holds[t.name] is Hold.STOP), around[0])
        if by.budget is None:  # only whoever has one is held by it
            continue
        first, until = budget_period(fleet, by.budget, now)
        found[team.name] = SpentBudget(
            team=by.name,
            spent=spent[by.name],
            amount=by.budget.amount,
            currency=fleet.currency,
            every=by.budget.every,
            period=first,
            until=until,
            hold=holds[by.name],
            low=low,
        )
    return found


def budget_period(fleet: Fleet, budget: Budget, now: int) -> tuple[date, date]:
    """The first day of the budget's period at `now`, and the first day of the next."""
    calendar = calendar_of(fleet)
    today = calendar.day_of(now)
    span = period(budget.every, today, calendar)
    return period_start(budget.every, today), calendar.day_of(span.end)
