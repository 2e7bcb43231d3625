"""Budgets in wire types, and what a spent one means for a job that waits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from typing import Final, TypeVar

from fairway.api import budget_wire as wire
from fairway.api import job_wire
from fairway.control.applied import holds_of
from fairway.control.costs import calendar_of
from fairway.cost.budget_words import SPENT_CODE, SpentBudget, spent_hint, spent_text
from fairway.cost.budgets import period, period_start
from fairway.ledger import BudgetEvent, BudgetStanding
from fairway.model.budget import Budget, Hold
from fairway.model.fleet import Fleet
from fairway.model.job import JobState
from fairway.model.names import TeamName
from fairway.model.price import cent
from fairway.model.team import Team, TeamTree

MOST_EVENTS: Final = 5
_WAITS: Final = (JobState.QUEUED, JobState.WAITING)


def budgets(
    fleet: Fleet,
    standings: Sequence[BudgetStanding],
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


def spent_budgets(
    fleet: Fleet, standings: Iterable[BudgetStanding], now: int
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
        first, until = _period(fleet, by.budget, now)
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


JobT = TypeVar("JobT", bound=job_wire.Job)


def explained(job: JobT, fleet: Fleet, held: Mapping[TeamName, SpentBudget]) -> JobT:
    """The job with the budget it waits for in its reason, if it does."""
    budget = held.get(TeamName(job.team)) if job.team else None
    if budget is None or job.state not in _WAITS:
        return job
    low = {p.name for p in fleet.priorities if p.preemptible}
    if budget.hold is Hold.LOW_ONLY and job.priority in low:
        return job
    engine = f" [{job.reason}]" if job.reason else ""
    said = {"code": SPENT_CODE, "reason": spent_text(budget) + engine, "hint": spent_hint(budget)}
    return job.model_copy(update=said)


def _budget(
    fleet: Fleet,
    team: Team,
    budget: Budget,
    known: BudgetStanding | None,
    held: SpentBudget | None,
    events: Mapping[str, list[wire.BudgetEvent]],
    now: int,
) -> wire.Budget:
    first, until = _period(fleet, budget, now)
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
        said="" if held is None else spent_text(held),
        hint="" if held is None else spent_hint(held),
        events=events.get(team.name, [])[:MOST_EVENTS],
    )


def _period(fleet: Fleet, budget: Budget, now: int) -> tuple[date, date]:
    calendar = calendar_of(fleet)
    today = calendar.day_of(now)
    span = period(budget.every, today, calendar)
    return period_start(budget.every, today), calendar.day_of(span.end)
