"""Convert budgets to wire types. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final

from fairway.cost.budget_text import SpentBudget, range_text, spent_hint, spent_text, state_text
from fairway.cost.budgets import budget_outlook
from fairway.ledger import BudgetEvent, StoredBudgetStatus, StoredForecast
from fairway.model.budget import Budget, Every
from fairway.model.charge import Label
from fairway.model.fleet import Fleet, NamedBudget
from fairway.model.names import TeamName
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
    """Convert the budgets of the teams in `visible`; None is all. `fleet` has the amounts in force."""
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
        ]
        + [
            _budget(fleet, named, named.budget, by_team.get(TeamName(named.name)), None, team_events, now)
            for named in fleet.budgets
            if visible is None or named.team in visible
        ],
        of_teams=None if visible is None else sorted(visible),
    )


def forecasts(
    fleet: Fleet, label: Label, stored: Sequence[StoredForecast], visible: frozenset[str] | None
) -> wire.Forecasts:
    """Convert the forecasts of the teams in `visible`, of projects only if that is None: all."""
    quantum = cent(fleet.currency)
    return wire.Forecasts(
        fleet=fleet.name,
        currency=fleet.currency,
        by=label,
        month=max((f.month for f in stored), default=None),
        forecasts=[
            wire.Forecast(
                name=f.payer,
                spent=f.spent.quantize(quantum, ROUND_HALF_EVEN),
                expected=f.expected.quantize(quantum, ROUND_HALF_EVEN),
                low=f.low.quantize(quantum, ROUND_HALF_EVEN),
                high=f.high.quantize(quantum, ROUND_HALF_EVEN),
                range=range_text(f.low, f.high, f.expected, Every.MONTH),
                checked_at=f.checked_at,
            )
            for f in stored
            if f.checked_at is not None and (visible is None or (label is Label.TEAM and f.payer in visible))
        ],
        of_teams=None if visible is None else sorted(visible),
    )


def _budget(
    fleet: Fleet,
    of: Team | NamedBudget,
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
        forecast = state_text(outlook, status.hold, status.runs_out, until, budget.every, budget.warn_at)
    return wire.Budget(
        name=of.name,
        scope=of.scope if isinstance(of, NamedBudget) else f"team {of.name}",
        team=(of.team or "") if isinstance(of, NamedBudget) else of.name,
        currency=fleet.currency,
        every=budget.every,
        period=first,
        until=until,
        amount=budget.amount,
        raised=budget.raised,
        warn_at=budget.warn_at,
        at_limit=budget.at_limit,
        running=budget.running,
        spent=spent,
        part=part,
        per_day=None if status is None else status.per_day.quantize(quantum, ROUND_HALF_EVEN),
        runs_out=None if status is None else status.runs_out,
        expected=None if status is None else _in_cents(status.expected, quantum),
        low=None if status is None else _in_cents(status.low, quantum),
        high=None if status is None else _in_cents(status.high, quantum),
        level=None if status is None else status.level.value,
        outlook=None if outlook is None else outlook.value,
        forecast=forecast,
        range="" if status is None else range_text(status.low, status.high, budget.amount, budget.every),
        hold=None if spent_budget is None else spent_budget.hold,
        since=None if status is None else status.since,
        checked_at=None if status is None else status.checked_at,
        summary="" if spent_budget is None else spent_text(spent_budget),
        hint="" if spent_budget is None else spent_hint(spent_budget),
        events=events.get(of.name, [])[:MAX_EVENTS],
    )


def _in_cents(amount: Decimal | None, quantum: Decimal) -> Decimal | None:
    return None if amount is None else amount.quantize(quantum, ROUND_HALF_EVEN)
