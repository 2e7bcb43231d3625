"""Ceilings and limits that have no effect, because another one is lower. Worth a word, never an error: what
counts is always the lowest, so the fleet means something, only not what its writer may have thought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairway.files import team_shape as ts
from fairway.files.faults import FaultCode, Faults, Severity
from fairway.files.records import Key, Section
from fairway.files.teams import WrittenTeam
from fairway.model.team import Supply

_Most = Mapping[Supply, int | None]
"""The most a team can hold of each of its supplies, its parents' ceilings counted; None: no ceiling."""


def check_ceilings(teams: Sequence[WrittenTeam], faults: Faults) -> None:
    """Compare every ceiling with the parent's, and every limit with the ceilings."""
    most: dict[int, _Most] = {}
    for team in teams:
        above = most[id(team.parent)] if team.parent is not None else {}
        most[id(team)] = {
            grant.supply: _lower(grant.ceiling, above.get(grant.supply)) for grant in team.team.grants
        }
        if team.section.sound(ts.GUARANTEE, ts.BORROW):
            _within_parents(team, above, faults)
            _limits(team, most[id(team)], faults)


def _lower(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _within_parents(team: WrittenTeam, above: _Most, faults: Faults) -> None:
    for grant in team.team.grants:
        limit, told = above.get(grant.supply), team.told(ts.BORROW, grant.supply)
        if limit is None or told is None or grant.ceiling is None or grant.ceiling <= limit:
            continue
        if team.parent is None or grant.guarantee > limit:
            continue  # above the parent's guarantee too, which is an error of its own
        faults.add(
            FaultCode.CEILING_ABOVE_PARENT,
            told.spot,
            f"team {team.name} may hold {grant.ceiling} on {grant.supply}, "
            f"but {team.parent.name} around it only {limit}",
            expected=f"guarantee and borrow of at most {limit} together",
            hint=f"write  borrow: {{ {grant.supply}: {limit - grant.guarantee} }}, "
            f"or raise that of {team.parent.name}",
            severity=Severity.WARNING,
        )


def _limits(team: WrittenTeam, most: _Most, faults: Faults) -> None:
    limits = team.section.get(ts.LIMITS)
    known = [n for n in most.values() if n is not None]
    if limits is None or not known or len(known) < len(most):
        return
    _below(team, limits, ts.JOB_LIMITS, ts.JOB_GPUS, max(known), faults)
    _below(team, limits, ts.USER_LIMITS, ts.USER_GPUS, max(known), faults)


def _below(
    team: WrittenTeam, limits: Section, of: Key[Section], key: Key[int | None], most: int, faults: Faults
) -> None:
    section = limits.get(of)
    found = section.found(key) if section else None
    if found is None or found.value is None or found.value <= most:
        return
    faults.add(
        FaultCode.LIMIT_ABOVE_CEILING,
        found.spot,
        f"one {of.name} of team {team.name} may have {found.value} GPUs, but the whole team at most {most}",
        expected=f"at most {most}",
        hint=f"lower it to {most}, take it away, or let the team borrow more",
        severity=Severity.WARNING,
    )
