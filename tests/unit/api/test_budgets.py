"""Budgets over HTTP: whose, how they stand, and what a job that waits for money says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from fairway.cli.output.budgets import budgets_view
from fairway.cli.output.format import table
from fairway.ledger import BudgetEvent, StoredBudgetStatus
from fairway.model.budget import AtLimit, Budget, BudgetLevel, Every, Hold
from fairway.model.fleet import Fleet
from fairway.model.job import JobState
from fairway.model.names import TeamName
from fairway.model.team import Team
from fairway.services.convert.budgets import budgets
from fairway.services.convert.jobs import with_budget_reason
from fairway.services.fleets import spent_budgets
from fairway.views.jobs import reason_text
from fairway.wire.jobs import Job
from tests.wire_jobs import wire_job

NOW = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp())
AT = datetime(2026, 11, 15, 11, tzinfo=UTC)


def fleet(research: Budget | None, nlp: Budget | None) -> Fleet:
    teams = (
        Team(TeamName("research"), budget=research),
        Team(TeamName("nlp"), TeamName("research"), budget=nlp),
        Team(TeamName("product"), budget=Budget(Decimal(50))),
    )
    return Fleet("acme", "USD", (), (), teams)


def stands(
    team: str, spent: str, hold: Hold | None = None, *, period: date = date(2026, 11, 1)
) -> StoredBudgetStatus:
    level = BudgetLevel.SPENT if hold else BudgetLevel.OK
    return StoredBudgetStatus(
        TeamName(team), period, Decimal(100), Decimal(spent), Decimal("3.456"), None, level, hold, AT, AT
    )


ENGINE = "AssocGrpJobsLimit"
STOP, LOW = Budget(Decimal(100), at_limit=AtLimit.STOP), Budget(Decimal(200), at_limit=AtLimit.LOW_ONLY)


def job(**changes: object) -> Job:
    """One that waits for its engine; native, and of no pool that is known."""
    waits = wire_job(
        "waiting", code="TeamHeld", reason=ENGINE, engine_reason=ENGINE, native=True, attempt_count=0,
        pool=None, engine_id=None,
    )  # fmt: skip
    return Job.model_validate(waits | {"gpus": 1, "devices": 1, "hint": "", "submitted_at": AT} | changes)


def test_a_waiting_job_says_what_is_spent_and_what_would_help_and_keeps_the_engines_words() -> None:
    of = fleet(None, STOP)
    held = spent_budgets(of, [stands("nlp", "104")], NOW, None)
    told = with_budget_reason(job(), of, held)
    assert told.code == "BudgetSpent"
    assert told.reason == (
        "Team nlp has spent 104 of its 100 USD budget for November; no jobs start until 1 December"
    )
    assert told.engine_reason == ENGINE
    assert reason_text(told) == f"{told.reason} [{ENGINE}]"
    assert reason_text(job()) == ENGINE
    assert told.hint.startswith("raise  budget.amount  of nlp")
    for other in (job(state=JobState.RUNNING), job(team="product"), job(team=None)):
        assert with_budget_reason(other, of, held) == other


def test_the_budget_around_it_is_named_and_the_strictest_holds() -> None:
    around = spent_budgets(fleet(LOW, STOP), [stands("research", "200"), stands("nlp", "10")], NOW, None)
    assert (around[TeamName("nlp")].team, around[TeamName("nlp")].hold) == ("research", Hold.LOW_ONLY)
    both = spent_budgets(fleet(LOW, STOP), [stands("research", "200"), stands("nlp", "100")], NOW, None)
    assert (both[TeamName("nlp")].team, both[TeamName("nlp")].hold) == ("nlp", Hold.STOP)
    assert both[TeamName("research")].hold is Hold.LOW_ONLY
    outer = spent_budgets(
        fleet(replace(STOP, amount=Decimal(200)), replace(LOW, amount=Decimal(100))),
        [stands("research", "200"), stands("nlp", "100")],
        NOW,
        None,
    )
    assert (outer[TeamName("nlp")].team, outer[TeamName("nlp")].hold) == ("research", Hold.STOP)


def test_a_low_job_of_a_low_only_team_waits_for_something_else() -> None:
    of = fleet(None, LOW)
    held = spent_budgets(of, [stands("nlp", "200")], NOW, None)
    assert with_budget_reason(job(priority="low"), of, held).code == "TeamHeld"
    assert with_budget_reason(job(priority=None), of, held).code == "BudgetSpent"


def test_whose_budgets_are_shown_and_what_of_them() -> None:
    of = fleet(LOW, STOP)
    events = [BudgetEvent(2, AT, TeamName("nlp"), "spent"), BudgetEvent(1, AT, TeamName("nlp"), "told")]
    found = budgets(of, [stands("nlp", "104.5", Hold.STOP)], events, NOW, frozenset({"nlp"}))
    (nlp,) = found.budgets
    assert (nlp.spent, nlp.part, nlp.per_day, nlp.hold) == (
        Decimal("104.50"),
        Decimal("104.5"),
        Decimal("3.46"),
        "stop",
    )
    assert (nlp.period, nlp.until) == (date(2026, 11, 1), date(2026, 12, 1))
    assert [e.text for e in nlp.events] == ["spent", "told"]
    assert found.of_teams == ["nlp"]
    assert [b.team for b in budgets(of, [], [], NOW, None).budgets] == ["research", "nlp", "product"]


def test_the_forecast_is_shown_with_its_range() -> None:
    status = replace(
        stands("research", "98"),
        expected=Decimal("151.234"),
        low=Decimal("140.5"),
        high=Decimal("162.49"),
    )
    found = budgets(fleet(LOW, None), [status], [], NOW, None)
    research, product = found.budgets
    assert (research.expected, research.low, research.high) == (
        Decimal("151.23"),
        Decimal("140.50"),
        Decimal("162.49"),
    )
    assert research.range == "140–162 by month end"
    assert (product.expected, product.range) == (None, "")
    view = budgets_view(found, wide=False)
    lines = table(view.columns, view.rows, None)
    assert "RANGE" in lines[0] and "will last the month  140–162 by month end" in lines[1]


def test_what_was_counted_for_another_period_is_not_shown() -> None:
    of = fleet(None, replace(STOP, every=Every.QUARTER))
    (nlp, _) = budgets(of, [stands("nlp", "104", Hold.STOP)], [], NOW, None).budgets
    assert (nlp.spent, nlp.hold, nlp.period, nlp.until) == (None, None, date(2026, 10, 1), date(2027, 1, 1))


@pytest.mark.parametrize("wide", [False, True])
def test_the_table_fits_and_says_what_to_do(wide: bool) -> None:
    of = fleet(replace(LOW, amount=Decimal(123_456_789)), replace(STOP, every=Every.QUARTER))
    kept = [
        stands("research", "98765432.19"),
        stands("nlp", "104", Hold.STOP, period=date(2026, 10, 1)),
    ]
    view = budgets_view(budgets(of, kept, [], NOW, None), wide=wide)
    lines = table(view.columns, view.rows, None)
    assert wide or all(len(line) <= 100 for line in lines)
    assert "2026-Q4" in lines[2] and "stop" in lines[2]
    assert "98,765,432" in lines[1] and "80" in lines[1]
    assert len(view.notes) == 2 and view.notes[1].startswith("hint: raise")
    assert view.alarming == {1}
