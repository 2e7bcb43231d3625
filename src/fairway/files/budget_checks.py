"""Budgets that could not work: of nothing, above the one around them, or low-only where nothing is low."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from fairway.files import team_shape as ts
from fairway.files.faults import FaultCode, Faults, Severity, Spot
from fairway.files.records import Key
from fairway.files.teams import WrittenTeam
from fairway.model.budget import AtLimit, Budget, Every, Running
from fairway.model.team import Priority


def check_budgets(teams: Sequence[WrittenTeam], priorities: Sequence[Priority], faults: Faults) -> None:
    """Every check of budgets."""
    low = frozenset(p.name for p in priorities if p.preemptible)
    with_low: set[int] = set()
    for team in reversed(teams):  # children come after their parents
        if not low.isdisjoint(team.team.priorities):
            with_low.add(id(team))
        if id(team) in with_low and team.parent is not None:
            with_low.add(id(team.parent))
    for team in teams:
        budget = team.team.budget
        if budget is None:
            continue
        _is_something(team, budget, faults)
        _within_parents(team, budget, faults)
        if budget.at_limit is AtLimit.LOW_ONLY and id(team) not in with_low:
            _nothing_is_low(team, sorted(low), faults)
        if budget.at_limit is AtLimit.WARN and budget.running is Running.END:
            _ends_nothing(team, faults)


def _is_something(team: WrittenTeam, budget: Budget, faults: Faults) -> None:
    if budget.amount:
        return
    faults.add(
        FaultCode.EMPTY_BUDGET,
        _spot(team, ts.AMOUNT),
        f"the budget of team {team.name} is 0: it is spent before anything runs",
        expected="an amount above 0",
        hint="write what the team may spend; to let nothing of it start, write  draining: true",
    )


def _within_parents(team: WrittenTeam, budget: Budget, faults: Faults) -> None:
    """Only the nearest one around it: that one is compared with those around itself."""
    above = team.parent
    while above is not None and above.team.budget is None:
        above = above.parent
    if above is None or above.team.budget is None or _a_year(budget) <= _a_year(above.team.budget):
        return
    faults.add(
        FaultCode.BUDGET_ABOVE_PARENT,
        _spot(team, ts.AMOUNT),
        f"team {team.name} may spend {_said(budget)}, but {above.name} around it only "
        f"{_said(above.team.budget)}",
        expected=f"at most as much as {above.name}, whose budget covers it too",
        hint=f"lower it, or raise that of {above.name}: what is spent first holds",
        related=[_spot(above, ts.AMOUNT)],
        severity=Severity.WARNING,
    )


def _nothing_is_low(team: WrittenTeam, low: Sequence[str], faults: Faults) -> None:
    known = (
        f"let it use {low[0]}:  priorities: [..., {low[0]}]"
        if low
        else ("add a priority that is:  priorities: { low: { rank: 10, preemptible: always } }")
    )
    faults.add(
        FaultCode.NOTHING_IS_LOW,
        _spot(team, ts.AT_LIMIT),
        f"nothing of team {team.name} would start when its budget is spent: "
        "neither it nor a team inside it may use a preemptible priority",
        expected="a priority that is always preemptible, or another at_limit",
        hint=f"write  at_limit: stop, or {known}",
    )


def _ends_nothing(team: WrittenTeam, faults: Faults) -> None:
    faults.add(
        FaultCode.NO_EFFECT,
        _spot(team, ts.RUNNING),
        f"running: end of team {team.name} ends nothing, for at_limit: warn lets everything start",
        expected="at_limit: low-only or stop beside it",
        hint="write  at_limit: stop  or  at_limit: low-only, or take  running  away",
        severity=Severity.WARNING,
    )


def _spot(team: WrittenTeam, key: Key[Any]) -> Spot:
    budget = team.section.need(ts.BUDGET)
    found = budget.found(key)
    return found.spot if found else budget.spot


def _a_year(budget: Budget) -> Decimal:
    return budget.amount * (12 if budget.every is Every.MONTH else 4)


def _said(budget: Budget) -> str:
    return f"{budget.amount:,f} a {budget.every}"
