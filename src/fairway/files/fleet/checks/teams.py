"""Check teams: guarantees that exceed capacity, teams that can never run a job, limits without effect.

A limit without effect is a warning, never an error: the lowest limit applies, so the fleet is well defined,
but maybe not as its author intended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from fairway.files.diagnostics import FaultCode, Faults, Severity, Spot, did_you_mean, listed
from fairway.files.fleet import schema as fs
from fairway.files.fleet import schema_teams as ts
from fairway.files.fleet.build import PoolSupply, Supplies, WrittenTeam, priorities_of
from fairway.files.schema.containers import Key, Section
from fairway.files.schema.values import ParsedValue
from fairway.model.budget import AtLimit, Budget, Every, Running
from fairway.model.names import PoolName
from fairway.model.team import DEFAULT_PRIORITIES, Priority, Supply

MOST_PEOPLE = 8


def check_people(file: Section, teams: Sequence[WrittenTeam], faults: Faults) -> None:
    """Run all checks of `priorities`, of the teams that may use them, of members and of `users`."""
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
    told: Mapping[str, ParsedValue[Section]],
    where: ParsedValue[Mapping[str, ParsedValue[Section]]] | None,
    faults: Faults,
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
        related=spots[1:MOST_PEOPLE],
    )


def _preemptible_below(told: Mapping[str, ParsedValue[Section]], default: Section, faults: Faults) -> None:
    """Check that preemptible priorities rank below the default: above it they would make no sense."""
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


def _ranks_differ(told: Mapping[str, ParsedValue[Section]], faults: Faults) -> None:
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
    told: Mapping[str, ParsedValue[Section]], teams: Sequence[WrittenTeam], faults: Faults
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
        related=spots[1:MOST_PEOPLE],
    )


def check_budgets(teams: Sequence[WrittenTeam], priorities: Sequence[Priority], faults: Faults) -> None:
    """Run all checks of budgets."""
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
        _budgets_within_parents(team, budget, faults)
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


def _budgets_within_parents(team: WrittenTeam, budget: Budget, faults: Faults) -> None:
    """Compare with the nearest ancestor that has a budget; that one is compared with its own ancestors."""
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


MOST_SPOTS: Final = 8
"""Maximum number of positions shown per fault; nobody reads a list of a thousand teams."""


def check_teams(file: Section, teams: Sequence[WrittenTeam], supplies: Supplies, faults: Faults) -> None:
    """Run all checks of teams, priorities and users."""
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
    """A guarantee of one team, with its position."""

    devices: int
    spot: Spot
    team: str


_Promises = dict[Supply, list[_Promise]]


def _promises(teams: Iterable[WrittenTeam]) -> _Promises:
    """Group the guarantees of these teams by supply."""
    found: _Promises = {}
    for team in teams:
        for grant in team.team.grants:
            told = team.told(ts.GUARANTEE, grant.supply) if grant.guarantee else None
            if told is not None:
                promise = _Promise(grant.guarantee, told.spot, team.name)
                found.setdefault(grant.supply, []).append(promise)
    return found


def _shown(promises: Iterable[_Promise]) -> list[Spot]:
    """Return the positions of the largest guarantees, in file order."""
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
    """Check that guaranteed slices fit together: each kind may fit alone, but they share the memory."""
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


def _has(stock: PoolSupply) -> str:
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


_Most = Mapping[Supply, int | None]
"""The ceiling of a team on each of its supplies, including those of its ancestors; None if there is none."""


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
