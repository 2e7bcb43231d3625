"""Priorities and people: that jobs have a place in the order, and everybody a team."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairway.files import team_shape as ts
from fairway.files.faults import FaultCode, Faults, Severity, Spot
from fairway.files.records import Section
from fairway.files.shape import Found
from fairway.files.spelling import did_you_mean, listed
from fairway.files.teams import WrittenTeam, priorities_of
from fairway.model.team import DEFAULT_PRIORITIES

MOST_SPOTS = 8


def check_people(file: Section, teams: Sequence[WrittenTeam], faults: Faults) -> None:
    """Every check of `priorities`, of who may use them, of members and of `users`."""
    told = file.get(ts.PRIORITIES)
    if told is not None and file.sound(ts.PRIORITIES):
        _one_default(told, file.found(ts.PRIORITIES), faults)
        _ranks_differ(told, faults)
    known = file.names_in(ts.PRIORITIES) if told is not None else [p.name for p in DEFAULT_PRIORITIES]
    if told is not None or file.sound(ts.PRIORITIES):
        default = next((p.name for p in priorities_of(file) if p.default), None)
        for team in teams:
            _priorities_exist(team, known, faults)
            if default is not None and file.sound(ts.PRIORITIES):
                _default_is_allowed(team, default, faults)
    if told is not None and teams and file.sound(ts.PRIORITIES, ts.TEAMS):
        _priorities_are_used(told, teams, faults)
    _users(file, teams, faults)


# --- priorities -------------------------------------------------------------------------------------------


def _one_default(
    told: Mapping[str, Found[Section]], where: Found[Mapping[str, Found[Section]]] | None, faults: Faults
) -> None:
    defaults = [found for found in told.values() if found.value.get(ts.IS_DEFAULT)]
    if len(defaults) == 1:
        _preemptible_below(told, defaults[0].value, faults)
        return
    spots = [found.spot for found in defaults] or ([where.spot] if where else [])
    names = [found.value.name for found in defaults]
    first = names[0] if names else next((n for n in ("normal", *told) if n in told), "normal")
    faults.add(
        FaultCode.NOT_ONE_DEFAULT,
        spots[0],
        f"{listed(names)} are all the default priority" if names else "no priority is the default",
        expected="one priority with  default: true",
        hint=f"keep it at one of them, for example {first}" if names else f"add  default: true  to {first}",
        related=spots[1:MOST_SPOTS],
    )


def _preemptible_below(told: Mapping[str, Found[Section]], default: Section, faults: Faults) -> None:
    """`preemptible: always` is for what comes last; above the default it would be nonsense."""
    rank = default.need(ts.RANK)
    for name, found in told.items():
        if found.value.get(ts.PREEMPTIBLE) is None or found.value.need(ts.RANK) < rank:
            continue
        own = found.value is default
        faults.add(
            FaultCode.PREEMPTIBLE_TOO_HIGH,
            found.spot,
            f"priority {name} gives way to every other, but is the default"
            if own
            else f"priority {name} gives way to every other, but ranks above the default, {default.name}",
            expected=f"a rank below {rank}, that of {default.name}" if not own else "another default",
            hint="make another priority the default" if own else f"give it a rank below {rank}",
            related=[] if own else [default.spot],
        )


def _ranks_differ(told: Mapping[str, Found[Section]], faults: Faults) -> None:
    seen: dict[int, Section] = {}
    for name, found in told.items():
        rank = found.value.need(ts.RANK)
        first = seen.setdefault(rank, found.value)
        if first is not found.value:
            faults.add(
                FaultCode.SAME_RANK,
                found.spot,
                f"priorities {first.name} and {name} both have rank {rank}",
                expected="a rank of its own for each priority",
                hint=f"give {name} another rank, for example {rank + 1}",
                related=[first.spot],
            )


def _priorities_exist(team: WrittenTeam, known: Sequence[str], faults: Faults) -> None:
    for item in team.section.get(ts.TEAM_PRIORITIES) or ():
        if item.value not in known:
            faults.add(
                FaultCode.UNKNOWN_PRIORITY,
                item.spot,
                f"team {team.name} may use priority {item.value}, which the fleet does not have",
                expected=f"one of {listed(known)}",
                hint=did_you_mean(
                    item.value, known, f"use one of {listed(known)}, or add it under priorities"
                ),
            )


def _default_is_allowed(team: WrittenTeam, default: str, faults: Faults) -> None:
    told = team.section.found(ts.TEAM_PRIORITIES)
    allowed = team.team.priorities
    if told is None or not allowed or default in allowed:
        return
    if len(told.value) != len(allowed):
        return  # one is unknown, and perhaps meant to be this
    faults.add(
        FaultCode.DEFAULT_NOT_ALLOWED,
        told.spot,
        f"team {team.name} may not use {default}, so its jobs that name no priority are refused",
        expected=f"{default} among its priorities",
        hint=f"add {default}, or see to it that each of its jobs names one of {listed(allowed)}",
        severity=Severity.WARNING,
    )


def _priorities_are_used(
    told: Mapping[str, Found[Section]], teams: Sequence[WrittenTeam], faults: Faults
) -> None:
    used = {name for team in teams for name in team.team.priorities}
    for name, found in told.items():
        if name not in used:
            faults.add(
                FaultCode.UNUSED_PRIORITY,
                found.spot,
                f"no team may use priority {name}",
                expected="a team that may use it",
                hint=f"add {name} to the priorities of a team, or take it away",
                severity=Severity.WARNING,
            )


# --- people -----------------------------------------------------------------------------------------------


def _users(file: Section, teams: Sequence[WrittenTeam], faults: Faults) -> None:
    places: dict[str, list[tuple[str, Spot]]] = {}
    for team in teams:
        for item in team.section.get(ts.MEMBERS) or ():
            places.setdefault(item.value, []).append((team.name, item.spot))
    users = file.get(ts.USERS) or {}
    declared = frozenset(file.names_in(ts.USERS))
    for user, found in places.items():
        if len(found) > 1 and user not in declared:
            _needs_default(user, found, faults)
    if not file.sound(ts.TEAMS):
        return  # the team that is missed may be the one with a fault
    names = {team.name for team in teams}
    for user, entry in users.items():
        chosen = entry.value.found(ts.DEFAULT_TEAM)
        if chosen is None:
            continue
        mine = [team for team, _ in places.get(user, ())]
        if chosen.value not in names:
            near = () if faults.full else mine or names  # looking for what was meant is the slow part
            faults.add(
                FaultCode.UNKNOWN_TEAM,
                chosen.spot,
                f"the default team of {user} is {chosen.value}, which the file does not have",
                expected=f"one of {listed(mine)}" if mine else "a team",
                hint=did_you_mean(chosen.value, near, "add it under teams"),
            )
        elif chosen.value not in mine:
            faults.add(
                FaultCode.NOT_A_MEMBER,
                chosen.spot,
                f"the default team of {user} is {chosen.value}, but {user} is no member of it",
                expected=f"one of {listed(mine)}" if mine else f"{user} among the members of some team",
                hint=f"add {user} to the members of {chosen.value}"
                + (f", or write  default_team: {mine[0]}" if mine else ""),
            )


def _needs_default(user: str, places: Sequence[tuple[str, Spot]], faults: Faults) -> None:
    teams, spots = [team for team, _ in places], [spot for _, spot in places]
    faults.add(
        FaultCode.SEVERAL_TEAMS,
        spots[0],
        f"{user} is a member of {listed(teams)}: to which do jobs belong that name no team?",
        expected=f"a default team for {user}",
        hint=f"add  users: {{ {user}: {{ default_team: {teams[0]} }} }}",
        related=spots[1:MOST_SPOTS],
    )
