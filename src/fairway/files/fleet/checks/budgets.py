"""Check the section `budgets`: names that a team has, unknown teams and pools, and what counts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from fairway.files.diagnostics import FaultCode, Faults
from fairway.files.fleet import schema as fs
from fairway.files.fleet import schema_budgets as bs
from fairway.files.fleet.build import TeamSection
from fairway.files.schema.containers import Section


def check_budgets(file: Section, teams: Sequence[TeamSection], faults: Faults) -> None:
    """Run all checks of budgets."""
    names = {team.name: team for team in teams}
    for name, found in (file.get(bs.BUDGETS) or {}).items():
        budget = found.value
        if name in names:
            faults.add(
                FaultCode.DUPLICATE_BUDGET,
                budget.location,
                f"budget {name} has the name of a team, whose own budget has it",
                expected="a name that no team has",
                hint=f"name it after what it counts:  {name}-cloud",
                related=[names[name].section.location],
            )
        amount, team = budget.found(bs.AMOUNT), budget.found(bs.TEAM)
        if amount is not None and not amount.value:
            faults.add(
                FaultCode.EMPTY_BUDGET,
                amount.location,
                f"budget {name} is 0: it is spent before anything runs",
                expected="an amount above 0",
                hint="write what may be spent",
            )
        if team is not None and team.value not in names:
            faults.add(
                FaultCode.UNKNOWN_TEAM,
                team.location,
                f"budget {name} counts team {team.value}, which does not exist",
                expected="a team of this file",
                hint="write the name of a team, or take the key away",
            )
        if team is not None and (project := budget.found(bs.PROJECT)) is not None:
            faults.add(
                FaultCode.NO_EFFECT,
                project.location,
                f"budget {name} counts team {team.value} or project {project.value}, not both",
                expected="team or project",
                hint="take one of them away",
            )
        if file.valid(fs.POOLS):
            _pools_exist(file, name, budget, faults)


def _pools_exist(file: Section, name: str, budget: Section, faults: Faults) -> None:
    pools = file.get(fs.POOLS) or {}
    for pool in budget.get(bs.POOLS) or ():
        if pool.value not in pools:
            faults.add(
                FaultCode.UNKNOWN_POOL,
                pool.location,
                f"budget {name} counts pool {pool.value}, which does not exist",
                expected="a pool of this file",
                hint="write the name of a pool",
            )
