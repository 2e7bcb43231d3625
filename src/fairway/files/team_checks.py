"""What only arithmetic shows: guarantees that add up to too much, and who could never run anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from fairway.files import fleet_shape as fs
from fairway.files import team_shape as ts
from fairway.files.budget_checks import check_budgets
from fairway.files.ceiling_checks import check_ceilings
from fairway.files.faults import FaultCode, Faults, Severity, Spot
from fairway.files.people_checks import check_people
from fairway.files.records import Key, Section
from fairway.files.spelling import listed
from fairway.files.supplies import Stock, Supplies
from fairway.files.teams import WrittenTeam, priorities_of
from fairway.model.names import PoolName
from fairway.model.team import Supply

MOST_SPOTS: Final = 8
"""Places shown for one fault; a sum over a thousand teams is not read."""


def check_teams(file: Section, teams: Sequence[WrittenTeam], supplies: Supplies, faults: Faults) -> None:
    """Every check of teams, priorities and users."""
    _names_differ(teams, faults)
    for team in teams:
        _supplies_exist(team, supplies, faults)
    if file.sound(fs.POOLS, fs.GPU_TYPES):
        _within_capacity(teams, supplies, faults)
    for parent, children in _families(teams):
        _within_parent(parent, children, faults)
    for team in teams:
        if team.parent is not None:
            _parent_has_it(team, faults)
            _still_draining(team, faults)
    check_ceilings(teams, faults)
    check_budgets(teams, priorities_of(file), faults)
    _can_run(teams, supplies, faults)
    check_people(file, teams, faults)


def _names_differ(teams: Iterable[WrittenTeam], faults: Faults) -> None:
    seen: dict[str, WrittenTeam] = {}
    for team in teams:
        first = seen.setdefault(team.name, team)
        if first is not team:
            faults.add(
                FaultCode.DUPLICATE_TEAM,
                team.section.spot,
                f"two teams are called {team.name}",
                expected="names that are unique in the fleet, whatever the parent",
                hint=f"rename one of them, for example to {_parent_name(team)}{team.name}"[:90],
                related=[first.section.spot],
            )


def _parent_name(team: WrittenTeam) -> str:
    return f"{team.parent.name}-" if team.parent else "other-"


# --- what is granted --------------------------------------------------------------------------------------

_GRANTS: Final[tuple[Key[Any], ...]] = (ts.GUARANTEE, ts.BORROW)


def _supplies_exist(team: WrittenTeam, supplies: Supplies, faults: Faults) -> None:
    explained: set[str] = set()
    for key in _GRANTS:
        for text, found in (team.section.get(key) or {}).items():
            if supplies.named(text) is None and text not in explained:
                explained.add(text)
                supplies.explain(text, found.spot, faults)


class _Promise(NamedTuple):
    """A guarantee of one team, and where it stands."""

    devices: int
    spot: Spot
    team: str


_Promises = dict[Supply, list[_Promise]]


def _promises(teams: Iterable[WrittenTeam]) -> _Promises:
    """What of each supply is promised to these teams."""
    found: _Promises = {}
    for team in teams:
        for grant in team.team.grants:
            told = team.told(ts.GUARANTEE, grant.supply) if grant.guarantee else None
            if told is not None:
                promise = _Promise(grant.guarantee, told.spot, team.name)
                found.setdefault(grant.supply, []).append(promise)
    return found


def _shown(promises: Iterable[_Promise]) -> list[Spot]:
    """The places of the largest, in the order of the file."""
    largest = sorted(promises, key=lambda p: -p.devices)[:MOST_SPOTS]
    return sorted(p.spot for p in largest)


def _within_capacity(teams: Sequence[WrittenTeam], supplies: Supplies, faults: Faults) -> None:
    promised = _promises(team for team in teams if team.parent is None)
    over: set[str] = set()
    for supply, each in promised.items():
        stock, total = supplies.stocks[supply], sum(p.devices for p in each)
        if stock.most is None or total <= stock.most:
            continue
        over.add(supply.pool)
        first, *others = _shown(each)
        faults.add(
            FaultCode.GUARANTEES_TOO_HIGH,
            first,
            f"{_sum_on(supply, total, each)}, but {_has(stock)}",
            expected=f"guarantees that add up to at most {stock.most}",
            hint=f"lower {'one of them' if others else 'it'}, or let the team borrow the rest:  "
            f"borrow: {{ {supply}: {total - stock.most} }}",
            related=others,
        )
    by_pool: dict[PoolName, _Promises] = {}
    for supply, each in promised.items():
        if supply.slice is not None and supply.pool not in over:
            by_pool.setdefault(supply.pool, {})[supply] = each
    for here in by_pool.values():
        _slices_fit(here, supplies, faults)


def _slices_fit(here: _Promises, supplies: Supplies, faults: Faults) -> None:
    """Each kind of slice may fit alone and all of them together not: memory is what they share."""
    one = supplies.stocks[next(iter(here))]
    gpus, name = one.pool.get(fs.POOL_GPUS), one.supply.pool
    if gpus is None or one.exact:
        return
    taken = sum(p.devices * supplies.stocks[s].gpu_part for s, each in here.items() for p in each)
    if taken <= gpus:
        return
    first, *others = _shown(p for each in here.values() for p in each)
    faults.add(
        FaultCode.GUARANTEES_TOO_HIGH,
        first,
        f"guarantees on the slices of pool {name} take {taken:g} GPUs, but it has {gpus}",
        expected=f"slices that fit on {gpus} GPUs together",
        hint="lower one of them, or let the team borrow the rest",
        related=others,
    )


def _sum_on(supply: Supply, total: int, each: Sequence[_Promise]) -> str:
    on, devices = (f"pool {supply}", "GPUs") if supply.slice is None else (str(supply), "slices")
    if len(each) == 1:
        return f"the guarantee of team {each[0].team} on {on} is {total} {devices}"
    return f"guarantees on {on} add up to {total} {devices}"


def _has(stock: Stock) -> str:
    if stock.supply.slice is None:
        return f"it has {stock.most}"
    return f"there are {stock.most}" if stock.exact else f"its GPUs give at most {stock.most}"


def _families(teams: Sequence[WrittenTeam]) -> Iterator[tuple[WrittenTeam, list[WrittenTeam]]]:
    children: dict[int, list[WrittenTeam]] = {}
    for team in teams:
        if team.parent is not None:
            children.setdefault(id(team.parent), []).append(team)
    return ((team, children[id(team)]) for team in teams if id(team) in children)


def _within_parent(parent: WrittenTeam, children: Sequence[WrittenTeam], faults: Faults) -> None:
    if not parent.section.sound(ts.GUARANTEE):
        return
    has = {grant.supply: grant.guarantee for grant in parent.team.grants}
    for supply, each in _promises(children).items():
        total = sum(p.devices for p in each)
        if supply not in has or total <= has[supply]:
            continue
        first, *others = _shown(each)
        told = parent.told(ts.GUARANTEE, supply)
        subject = (
            f"team {each[0].team} is guaranteed {total} on {supply}"
            if len(each) == 1
            else f"guarantees on {supply} inside {parent.name} add up to {total}"
        )
        faults.add(
            FaultCode.ABOVE_PARENT,
            first,
            f"{subject}, but {parent.name} itself has {has[supply]}",
            expected=f"at most {has[supply]}: a team's guarantee is part of its parent's",
            hint=f"raise that of {parent.name}:  guarantee: {{ {supply}: {total} }}; or lower these",
            related=[*others, told.spot if told else parent.section.spot],
        )


def _parent_has_it(team: WrittenTeam, faults: Faults) -> None:
    parent = team.parent
    if parent is None or not parent.section.sound(*_GRANTS):
        return
    above = dict.fromkeys(grant.supply for grant in parent.team.grants)
    for grant in team.team.grants:
        if grant.supply in above:
            continue
        told = team.told(ts.GUARANTEE, grant.supply) or team.told(ts.BORROW, grant.supply)
        faults.add(
            FaultCode.PARENT_WITHOUT,
            told.spot if told else team.section.spot,
            f"team {team.name} has a grant on {grant.supply}, but its parent {parent.name} has none",
            expected=f"one of {listed(str(s) for s in above)}" if above else "a grant of the parent",
            hint=f"grant it to {parent.name} too:  guarantee: {{ {grant.supply}: {grant.guarantee} }}",
            related=[parent.section.spot],
        )


# --- who could never run anything -------------------------------------------------------------------------


def _can_run(teams: Sequence[WrittenTeam], supplies: Supplies, faults: Faults) -> None:
    for team in teams:
        if not team.team.draining:
            _has_a_grant(team, supplies, faults)
            _has_a_priority(team, faults)
    _have_members(teams, faults)


def _has_a_grant(team: WrittenTeam, supplies: Supplies, faults: Faults) -> None:
    if team.team.grants or (team.parent is not None and not team.parent.team.grants):
        return  # one fault for the whole branch
    told = [text for key in _GRANTS for text in team.section.get(key) or {}]
    if not team.section.sound(*_GRANTS) or any(supplies.named(text) is None for text in told):
        return
    pool = next(iter(supplies.stocks), "POOL")
    faults.add(
        FaultCode.CANNOT_RUN,
        team.section.spot,
        f"team {team.name} can never run anything: it is granted nothing on any pool",
        expected="a guarantee, or leave to borrow, on some pool",
        hint=f"add  guarantee: {{ {pool}: 8 }}, or to let it borrow only:  borrow: {{ {pool}: unlimited }}",
    )


def _has_a_priority(team: WrittenTeam, faults: Faults) -> None:
    told = team.section.found(ts.TEAM_PRIORITIES)
    if told is None or told.value or not team.section.sound(ts.TEAM_PRIORITIES):
        return
    faults.add(
        FaultCode.CANNOT_RUN,
        told.spot,
        f"team {team.name} can never run anything: it may use no priority",
        expected="at least one priority",
        hint="name one, or take the key away: then it has those of its parent, or all",
    )


def _have_members(teams: Sequence[WrittenTeam], faults: Faults) -> None:
    people: dict[int, int] = {}
    for team in reversed(teams):  # children come after their parents
        people[id(team)] = people.get(id(team), 0) + len(team.team.members)
        if team.parent is not None:
            people[id(team.parent)] = people.get(id(team.parent), 0) + people[id(team)]
    for team in teams:
        lonely = not people[id(team)] and (team.parent is None or people[id(team.parent)])
        if lonely and not team.team.draining and team.section.sound(ts.MEMBERS, ts.INNER_TEAMS):
            faults.add(
                FaultCode.NO_MEMBERS,
                team.section.spot,
                f"nobody belongs to team {team.name}, so nobody can run anything for it",
                expected="members, in it or in a team inside it",
                hint="add  members: [alice], or take the team away",
                severity=Severity.WARNING,
            )


def _still_draining(team: WrittenTeam, faults: Faults) -> None:
    told = team.section.found(ts.DRAINING)
    if told is None or told.value or team.parent is None or not team.parent.team.draining:
        return
    faults.add(
        FaultCode.STILL_DRAINING,
        told.spot,
        f"team {team.name} drains all the same: its parent {team.parent.name} does",
        hint=f"take it away, or move {team.name} out of {team.parent.name}",
        related=[team.parent.section.spot],
        severity=Severity.WARNING,
    )
