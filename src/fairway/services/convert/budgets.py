"""Convert budgets to wire types. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final

from fairway.cost.budget_text import SpentBudget, outlook_text, spent_hint, spent_text
from fairway.cost.budgets import budget_outlook
from fairway.ledger import BudgetEvent, StoredBudgetStatus
from fairway.model.budget import Budget
from fairway.model.fleet import Fleet
from fairway.model.price import cent
from fairway.model.team import Team
from fairway.services.fleets import budget_period, spent_budgets
from fairway.wire import budgets as wire

MAX_EVENTS: Final = 5


def budgets(
    fleet: Fleet,
    statuses: Sequence[StoredBudgetStatus],
    events: Iterable[BudgetEvent],
    now: int,
    visible: frozenset[str] | None,
) -> wire.Budgets:
    """Convert the budgets of the teams in `visible`; None is all."""
    by_team = {s.team: s for s in statuses}
    team_events: dict[str, list[wire.BudgetEvent]] = {}
    for e in events:
        team_events.setdefault(e.team, []).append(wire.BudgetEvent(at=e.at, text=e.text))
    spent = spent_budgets(fleet, statuses, now, visible)
    return wire.Budgets(
        budgets=[
            _budget(fleet, team, team.budget, by_team.get(team.name), spent.get(team.name), team_events, now)
            for team in fleet.teams
            if team.budget is not None and (visible is None or team.name in visible)
        ],
        of_teams=None if visible is None else sorted(visible),
    )


def _budget(
    fleet: Fleet,
    team: Team,
    budget: Budget,
    status: StoredBudgetStatus | None,
    spent_budget: SpentBudget | None,
    events: Mapping[str, list[wire.BudgetEvent]],
    now: int,
) -> wire.Budget:
    first, until = budget_period(fleet, budget, now)
    if status is not None and status.period != first:
        status = None  # of a past period
    quantum = cent(fleet.currency)
    spent = None if status is None else status.spent.quantize(quantum, ROUND_HALF_EVEN)
    part = None if status is None else (100 * status.spent / budget.amount).quantize(Decimal("0.1"))
    outlook = None if status is None else budget_outlook(status.level, status.runs_out)
    forecast = ""
    if outlook is not None and status is not None:
        forecast = outlook_text(outlook, status.runs_out, until, budget.every, budget.warn_at)
    return wire.Budget(
        team=team.name,
        currency=fleet.currency,
        every=budget.every,
        period=first,
        until=until,
        amount=budget.amount,
        warn_at=budget.warn_at,
        at_limit=budget.at_limit,
        running=budget.running,
        spent=spent,
        part=part,
        per_day=None if status is None else status.per_day.quantize(quantum, ROUND_HALF_EVEN),
        runs_out=None if status is None else status.runs_out,
        level=None if status is None else status.level.value,
        outlook=None if outlook is None else outlook.value,
        forecast=forecast,
        hold=None if spent_budget is None else spent_budget.hold,
        since=None if status is None else status.since,
        checked_at=None if status is None else status.checked_at,
        summary="" if spent_budget is None else spent_text(spent_budget),
        hint="" if spent_budget is None else spent_hint(spent_budget),
        events=events.get(team.name, [])[:MAX_EVENTS],
    )
