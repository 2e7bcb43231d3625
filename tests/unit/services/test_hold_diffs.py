"""A plan says which teams a lowered budget stops at once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

from fairway.cost.budgets import with_raises
from fairway.ledger import StoredBudgetStatus
from fairway.model.budget import AtLimit, Budget, BudgetLevel, Every
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.services.policy import hold_diffs
from tests.unit.services.cost_history import FLEET

NOW = int(datetime(2026, 11, 18, tzinfo=UTC).timestamp())
SPENT = StoredBudgetStatus(
    TeamName("nlp"),
    date(2026, 11, 1),
    Decimal(48000),
    Decimal("37198.4"),
    Decimal(0),
    None,
    BudgetLevel.OK,
    None,
)


def fleet(amount: int, at_limit: AtLimit = AtLimit.STOP, **changed: object) -> Fleet:
    budget = Budget(Decimal(amount), at_limit=at_limit)
    return replace(
        FLEET,
        teams=tuple(
            replace(t, budget=budget, **changed) if t.name == "nlp" else t  # type: ignore[arg-type]
            for t in FLEET.teams
        ),
    )


def said(before: Fleet | None, after: Fleet) -> list[str | None]:
    return [diff.after for diff in hold_diffs(before, after, [SPENT], NOW)]


def test_a_lowered_budget_stops_at_once() -> None:
    stops = ["37,198 of 30,000 spent: nlp stops at once"]
    assert said(fleet(48000), fleet(30000)) == stops
    assert said(None, fleet(30000)) == stops
    assert said(fleet(30000, AtLimit.LOW_ONLY), fleet(30000)) == stops
    low = fleet(30000, AtLimit.LOW_ONLY)
    assert said(fleet(48000), low) == ["37,198 of 30,000 spent: nlp starts only preemptible jobs at once"]


def test_what_is_held_already_or_not_at_all_is_not_said() -> None:
    assert said(fleet(48000), fleet(40000)) == []
    assert said(fleet(48000), fleet(30000, AtLimit.WARN)) == []
    assert said(fleet(36000), fleet(30000)) == []
    assert said(fleet(30000), fleet(48000)) == []


def test_an_approved_raise_counts_for_the_new_fleet_too() -> None:
    raised = {(TeamName("nlp"), Every.MONTH, date(2026, 11, 1)): Decimal(8000)}
    day = date(2026, 11, 18)
    now = with_raises(fleet(48000), raised, day)
    assert said(now, with_raises(fleet(30000), raised, day)) == []
    stops = ["37,198 of 28,000 spent: nlp stops at once"]
    assert said(now, with_raises(fleet(20000), raised, day)) == stops


def test_a_renamed_team_keeps_its_hold() -> None:
    renamed = fleet(30000, name=TeamName("lang"), renamed_from=TeamName("nlp"))
    assert said(fleet(48000), renamed) == ["37,198 of 30,000 spent: lang stops at once"]
