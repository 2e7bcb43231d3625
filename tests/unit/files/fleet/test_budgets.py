"""Budgets in a fleet file: what they read as, what they read back as, what is said against them."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from fairway.files import Severity, check_text
from fairway.files.fleet.write import compose_fleet
from fairway.model.budget import AtLimit, Budget, Every, Running
from fairway.model.fleet import Fleet
from fairway.model.team import Team
from tests.unit.files.fleets import SHARED, changed, checked, only_fault


def with_budget(text: str) -> str:
    """The budget on team nlp."""
    return changed("share: 2,", f"budget: {text},", SHARED)


def nlp(fleet: Fleet | None) -> Team:
    assert fleet is not None
    return next(t for t in fleet.teams if t.name == "nlp")


def test_an_amount_is_enough_and_the_rest_is_usual() -> None:
    budget = nlp(checked(with_budget("{ amount: 120000 }")).fleet).budget
    assert budget == Budget(Decimal(120000), Every.MONTH, Decimal("0.8"), AtLimit.WARN, Running.LEAVE)


def test_every_key_is_read() -> None:
    text = "{ amount: 1.25, every: quarter, warn_at: 62.5%, at_limit: low-only, running: end }"
    budget = nlp(checked(with_budget(text)).fleet).budget
    said = Budget(Decimal("1.25"), Every.QUARTER, Decimal("0.625"), AtLimit.LOW_ONLY, Running.END)
    assert budget == said


def test_a_budget_is_not_inherited_for_it_covers_those_inside_as_it_is() -> None:
    fleet = checked(changed("share: 60", "budget: { amount: 9, at_limit: stop }", SHARED)).fleet
    assert nlp(fleet).budget is None


@pytest.mark.parametrize(
    "budget",
    [
        Budget(Decimal("0.001")),
        Budget(Decimal(10) ** 12, Every.QUARTER),
        Budget(Decimal(7), warn_at=Decimal("0.999999"), at_limit=AtLimit.STOP),
        Budget(Decimal(7), warn_at=Decimal(1), at_limit=AtLimit.LOW_ONLY, running=Running.END),
    ],
)
def test_it_reads_back(budget: Budget) -> None:
    fleet = checked(SHARED).fleet
    assert fleet is not None
    teams = tuple(replace(t, budget=budget) if t.name == "nlp" else t for t in fleet.teams)
    again = check_text(compose_fleet(replace(fleet, teams=teams)), "composed", None)
    assert nlp(again.fleet).budget == budget


def test_what_is_usual_is_left_out() -> None:
    fleet = checked(with_budget("{ amount: 5, every: month, warn_at: 80%, at_limit: stop }")).fleet
    assert fleet is not None
    assert "budget: { amount: 5, at_limit: stop }" in compose_fleet(fleet)


@pytest.mark.parametrize(
    ("outer", "inner", "said"),
    [
        ("{ amount: 100 }", "{ amount: 101 }", True),
        ("{ amount: 100 }", "{ amount: 100 }", False),
        ("{ amount: 300, every: quarter }", "{ amount: 101 }", True),
        ("{ amount: 300, every: quarter }", "{ amount: 100 }", False),
    ],
)
def test_a_budget_above_the_one_around_it_is_worth_a_word(outer: str, inner: str, said: bool) -> None:
    text = changed("share: 60", f"budget: {outer}", changed("share: 2,", f"budget: {inner},", SHARED))
    if not said:
        assert checked(text).faults == ()
        return
    fault = only_fault(text)
    assert (fault.severity, fault.code) == (Severity.WARNING, "BudgetAboveParent")
    assert "research" in fault.message and fault.path == "teams.research.teams.nlp.budget.amount"
    assert [spot.path for spot in fault.related] == ["teams.research.budget.amount"]


def test_low_only_is_well_where_a_team_inside_may_use_low() -> None:
    budget = "budget: { amount: 9, at_limit: low-only }"
    text = changed("share: 60", f"{budget}\n    priorities: [normal]", SHARED)
    assert [f.code for f in checked(text).faults if f.severity is Severity.ERROR] == ["NothingIsLow"]
    inner = changed("members: [alice, erin]", "members: [alice, erin], priorities: [normal, low]", text)
    assert "NothingIsLow" not in [f.code for f in checked(inner).faults]


def test_without_any_preemptible_priority_the_hint_says_how_to_make_one() -> None:
    text = changed(
        "rank: 10, preemptible: always", "rank: 10", with_budget("{ amount: 9, at_limit: low-only }")
    )
    fault = next(f for f in checked(text).faults if f.code == "NothingIsLow")
    assert "preemptible: always" in fault.hint


def test_ending_what_runs_where_nothing_is_stopped_is_worth_a_word() -> None:
    fault = only_fault(with_budget("{ amount: 9, running: end }"))
    assert (fault.severity, fault.code) == (Severity.WARNING, "NoEffect")
    assert fault.path == "teams.research.teams.nlp.budget.running" and "at_limit: stop" in fault.hint


def test_the_guides_fleet_is_sound_and_its_keys_are_all_of_them() -> None:
    guide = (Path(__file__).parents[4] / "docs/guides/budgets.md").read_text()
    block, scopes = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    report = checked(block)
    scoped = checked(block + scopes)
    assert scoped.faults == () and scoped.fleet is not None and len(scoped.fleet.budgets) == 4
    assert report.faults == () and report.fleet is not None
    assert report.fleet.teams[0].budget == Budget(Decimal(120000), at_limit=AtLimit.LOW_ONLY)
    assert re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE)[:5] == [
        "amount",
        "every",
        "warn_at",
        "at_limit",
        "running",
    ]


SCOPED = """
budgets:
  cloud: { amount: 50000.50, every: quarter, warn_at: 75%, capacity: [on-demand, spot] }
  nlp-hpc: { amount: 9, team: nlp, pools: [hpc-a100] }
  llm: { amount: 8, project: llm }
"""


def with_scopes(old: str = "", new: str = "") -> str:
    return SHARED + SCOPED.replace(old, new) if old else SHARED + SCOPED


def test_budgets_of_the_fleet_and_of_some_capacity_read_back_as_they_were() -> None:
    fleet = checked(with_scopes()).fleet
    assert fleet is not None
    cloud, hpc, llm = fleet.budgets
    assert cloud.budget == Budget(Decimal("50000.50"), Every.QUARTER, Decimal("0.75"))
    assert cloud.scope == "the fleet, on-demand and spot capacity"
    assert (hpc.scope, llm.scope) == ("team nlp, hpc-a100", "project llm")
    again = check_text(compose_fleet(fleet), "again.yaml", Path.cwd()).fleet
    assert again is not None and again.budgets == fleet.budgets


@pytest.mark.parametrize(
    ("old", "new", "code", "path"),
    [
        ("llm: {", "nlp: {", "DuplicateBudget", "budgets.nlp"),
        ("amount: 8", "amount: 0", "EmptyBudget", "budgets.llm.amount"),
        ("team: nlp", "team: nobody", "UnknownTeam", "budgets.nlp-hpc.team"),
        ("[hpc-a100]", "[none]", "UnknownPool", "budgets.nlp-hpc.pools[0]"),
        ("project: llm", "project: llm, team: nlp", "NoEffect", "budgets.llm.project"),
        ("amount: 8", "amount: 8, at_limit: stop", "UnknownKey", "budgets.llm.at_limit"),
    ],
)
def test_what_is_said_against_them(old: str, new: str, code: str, path: str) -> None:
    """They only warn: an engine would hold what they do not count, so at_limit is no key of theirs."""
    fault = only_fault(with_scopes(old, new))
    assert (fault.code.value, str(fault.locations[0].path)) == (code, path)
