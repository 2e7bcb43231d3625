"""Budgets in wire types, and what a spent one means for a job that waits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final, TypeVar

from fairway.cost.budget_text import SPENT_CODE, SpentBudget, spent_hint, spent_text
from fairway.ledger import BudgetEvent, StoredBudgetStatus
from fairway.model.budget import Budget, Hold
from fairway.model.fleet import Fleet
from fairway.model.job import JobState
from fairway.model.names import TeamName
from fairway.model.price import cent
from fairway.model.team import Team
from fairway.services.budget_holds import budget_period, spent_budgets
from fairway.wire import budgets as wire
from fairway.wire import jobs as job_wire

MOST_EVENTS: Final = 5
_WAITS: Final = (JobState.QUEUED, JobState.WAITING)


def budgets(
    fleet: Fleet,
    standings: Sequence[StoredBudgetStatus],
    events: Iterable[BudgetEvent],
    now: int,
    seen: frozenset[str] | None,
) -> wire.Budgets:
    """Every budget of the fleet that the caller may see; `seen` None: all."""
    known = {s.team: s for s in standings}
    told: dict[str, list[wire.BudgetEvent]] = {}
    for e in events:
        told.setdefault(e.team, []).append(wire.BudgetEvent(at=e.at, text=e.text))
    held = spent_budgets(fleet, standings, now)
    return wire.Budgets(
        budgets=[
            _budget(fleet, team, team.budget, known.get(team.name), held.get(team.name), told, now)
            for team in fleet.teams
            if team.budget is not None and (seen is None or team.name in seen)
        ],
        of_teams=None if seen is None else sorted(seen),
    )


JobT = TypeVar("JobT", bound=job_wire.Job)


def explained(job: JobT, fleet: Fleet, held: Mapping[TeamName, SpentBudget]) -> JobT:
    """The job with the budget it waits for as its reason, if it does; `engine_reason` stays."""
    budget = held.get(TeamName(job.team)) if job.team else None
    if budget is None or job.state not in _WAITS:
        return job
    low = {p.name for p in fleet.priorities if p.preemptible}
    if budget.hold is Hold.LOW_ONLY and job.priority in low:
        return job
    said = {"code": SPENT_CODE, "reason": spent_text(budget), "hint": spent_hint(budget)}
    return job.model_copy(update=said)


def _budget(
    fleet: Fleet,
    team: Team,
    budget: Budget,
    known: StoredBudgetStatus | None,
    held: SpentBudget | None,
    events: Mapping[str, list[wire.BudgetEvent]],
    now: int,
) -> wire.Budget:
    first, until = budget_period(fleet, budget, now)
    if known is not None and known.period != first:
        known = None  # of a period that is over
    smallest = cent(fleet.currency)
    spent = None if known is None else known.spent.quantize(smallest, ROUND_HALF_EVEN)
    part = None if known is None else (100 * known.spent / budget.amount).quantize(Decimal("0.1"))
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
        per_day=None if known is None else known.per_day.quantize(smallest, ROUND_HALF_EVEN),
        runs_out=None if known is None else known.runs_out,
        level=None if known is None else known.level.value,
        hold=None if held is None else held.hold,
        since=None if known is None else known.since,
        checked_at=None if known is None else known.checked_at,
        summary="" if held is None else spent_text(held),
        hint="" if held is None else spent_hint(held),
        events=events.get(team.name, [])[:MOST_EVENTS],
    )
