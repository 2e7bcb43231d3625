"""Check teams: guarantees that exceed capacity, teams that can never run a job, limits without effect.

A limit without effect is a warning, never an error: the lowest limit applies, so the fleet is well defined,
but maybe not as its author intended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, Final, NamedTuple

from fairway.files.diagnostics import FaultCode, Faults, Location, Severity, did_you_mean, listed
from fairway.files.fleet import schema as fs
from fairway.files.fleet import schema_teams as ts
from fairway.files.fleet.build import PoolSupply, Supplies, TeamSection, priorities_of
from fairway.files.schema.containers import Key, Section, Sections
from fairway.files.schema.values import ParsedValue
from fairway.model.budget import AtLimit, Budget, Every, Running
from fairway.model.fleet import DEFAULT_SLURM_USER
from fairway.model.names import PoolName, is_system_user
from fairway.model.team import DEFAULT_PRIORITIES, Priority, Supply

MAX_LOCATIONS: Final = 8
"""Maximum number of positions shown per fault; nobody reads a list of a thousand teams."""


def check_teams(file: Section, teams: Sequence[TeamSection], supplies: Supplies, faults: Faults) -> None:
    """Run all checks of teams, priorities and users."""
    _names_differ(teams, faults)
    _accounts_differ(teams, faults)
    _past_is_clear(teams, faults)
    for team in teams:
        _supplies_exist(team, supplies, faults)
    if file.valid(fs.POOLS, fs.GPU_TYPES):
        _within_capacity(teams, supplies, faults)
    for parent, children in _families(teams):
        _within_parent(parent, children, faults)
    for team in teams:
        if team.parent is not None:
            _parent_has_it(team, faults)
            _still_draining(team, faults)
    _check_ceilings(teams, faults)
    _check_budgets(teams, priorities_of(file), faults)
    _can_run(teams, supplies, faults)
    _check_people(file, teams, faults)


def _check_people(file: Section, teams: Sequence[TeamSection], faults: Faults) -> None:
    """Run all checks of `priorities`, of the teams that may use them, of members and of `users`."""
    priorities = file.found(ts.PRIORITIES)
    if priorities is not None and file.valid(ts.PRIORITIES):
        _one_default(priorities, faults)
        _ranks_differ(priorities.value, faults)
    names = file.names_in(ts.PRIORITIES) if priorities else [p.name for p in DEFAULT_PRIORITIES]
    if priorities is not None or file.valid(ts.PRIORITIES):
        default = next((p.name for p in priorities_of(file) if p.default), None)
        for team in teams:
            _priorities_exist(team, names, faults)
            if default is not None and file.valid(ts.PRIORITIES):
                _default_is_allowed(team, default, faults)
    if priorities is not None and teams and file.valid(ts.PRIORITIES, ts.TEAMS):
        _priorities_are_used(priorities.value, teams, faults)
    _users(file, teams, faults)


# --- priorities -------------------------------------------------------------------------------------------


def _one_default(priorities: ParsedValue[Sections], faults: Faults) -> None:
    sections = priorities.value
    defaults = [found for found in sections.values() if found.value.get(ts.IS_DEFAULT)]
    if len(defaults) == 1:
        _preemptible_below(sections, defaults[0].value, faults)
        return
    locations = [found.location for found in defaults] or [priorities.location]
    names = [found.value.name for found in defaults]
    first = names[0] if names else next((n for n in ("normal", *sections) if n in sections), "normal")
    faults.add(
        FaultCode.NOT_ONE_DEFAULT,
        locations[0],
        f"{listed(names)} are all the default priority" if names else "no priority is the default",
        expected="one priority with  default: true",
        hint=f"keep it at one of them, for example {first}" if names else f"add  default: true  to {first}",
        related=locations[1:MAX_LOCATIONS],
    )


def _preemptible_below(priorities: Sections, default: Section, faults: Faults) -> None:
    """Check that preemptible priorities rank below the default: above it they would make no sense."""
    rank = default.require(ts.RANK)
    for name, found in priorities.items():
        if found.value.get(ts.PREEMPTIBLE) is None or found.value.require(ts.RANK) < rank:
            continue
        own = found.value is default
        faults.add(
            FaultCode.PREEMPTIBLE_TOO_HIGH,
            found.location,
            f"priority {name} gives way to every other, but is the default"
            if own
            else f"priority {name} gives way to every other, but ranks above the default, {default.name}",
            expected=f"a rank below {rank}, that of {default.name}" if not own else "another default",
            hint="make another priority the default" if own else f"give it a rank below {rank}",
            related=[] if own else [default.location],
        )


def _ranks_differ(priorities: Sections, faults: Faults) -> None:
    by_rank: dict[int, Section] = {}
    for name, found in priorities.items():
        rank = found.value.require(ts.RANK)
        first = by_rank.setdefault(rank, found.value)
        if first is not found.value:
            faults.add(
                FaultCode.SAME_RANK,
                found.location,
                f"priorities {first.name} and {name} both have rank {rank}",
                expected="a rank of its own for each priority",
                hint=f"give {name} another rank, for example {rank + 1}",
                related=[first.location],
            )


def _priorities_exist(team: TeamSection, names: Sequence[str], faults: Faults) -> None:
    for item in team.section.get(ts.TEAM_PRIORITIES) or ():
        if item.value not in names:
            faults.add(
                FaultCode.UNKNOWN_PRIORITY,
                item.location,
                f"team {team.name} may use priority {item.value}, which the fleet does not have",
                expected=f"one of {listed(names)}",
                hint=did_you_mean(
                    item.value, names, f"use one of {listed(names)}, or add it under priorities"
                ),
            )


def _default_is_allowed(team: TeamSection, default: str, faults: Faults) -> None:
    listed_priorities = team.section.found(ts.TEAM_PRIORITIES)
    allowed = team.team.priorities
    if listed_priorities is None or not allowed or default in allowed:
        return
    if len(listed_priorities.value) != len(allowed):
        return  # one is unknown, and perhaps meant to be this
    faults.add(
        FaultCode.DEFAULT_NOT_ALLOWED,
        listed_priorities.location,
        f"team {team.name} may not use {default}, so its jobs that name no priority are refused",
        expected=f"{default} among its priorities",
        hint=f"add {default}, or see to it that each of its jobs names one of {listed(allowed)}",
        severity=Severity.WARNING,
    )


def _priorities_are_used(priorities: Sections, teams: Sequence[TeamSection], faults: Faults) -> None:
    used = {name for team in teams for name in team.team.priorities}
    for name, found in priorities.items():
        if name not in used:
            faults.add(
                FaultCode.UNUSED_PRIORITY,
                found.location,
                f"no team may use priority {name}",
                expected="a team that may use it",
                hint=f"add {name} to the priorities of a team, or take it away",
                severity=Severity.WARNING,
            )


# --- people -----------------------------------------------------------------------------------------------


def _users(file: Section, teams: Sequence[TeamSection], faults: Faults) -> None:
    memberships: dict[str, list[tuple[str, Location]]] = {}
    for team in teams:
        for item in team.section.get(ts.MEMBERS) or ():
            memberships.setdefault(item.value, []).append((team.name, item.location))
    _are_people(file, memberships, faults)
    users = file.get(ts.USERS) or {}
    declared = frozenset(file.names_in(ts.USERS))
    for user, found in memberships.items():
        if len(found) > 1 and user not in declared:
            _needs_default(user, found, faults)
    if not file.valid(ts.TEAMS):
        return  # a missing team may be one with a fault
    names = {team.name for team in teams}
    for user, entry in users.items():
        chosen = entry.value.found(ts.DEFAULT_TEAM)
        if chosen is None:
            continue
        own_teams = [team for team, _ in memberships.get(user, ())]
        if chosen.value not in names:
            near = () if faults.full else own_teams or names  # finding similar names is the slow part
            faults.add(
                FaultCode.UNKNOWN_TEAM,
                chosen.location,
                f"the default team of {user} is {chosen.value}, which the file does not have",
                expected=f"one of {listed(own_teams)}" if own_teams else "a team",
                hint=did_you_mean(chosen.value, near, "add it under teams"),
            )
        elif chosen.value not in own_teams:
            faults.add(
                FaultCode.NOT_A_MEMBER,
                chosen.location,
                f"the default team of {user} is {chosen.value}, but {user} is no member of it",
                expected=f"one of {listed(own_teams)}"
                if own_teams
                else f"{user} among the members of some team",
                hint=f"add {user} to the members of {chosen.value}"
                + (f", or write  default_team: {own_teams[0]}" if own_teams else ""),
            )


def _are_people(
    file: Section, memberships: Mapping[str, Sequence[tuple[str, Location]]], faults: Faults
) -> None:
    """Refuse system users and Fairway's own as members: an operator could submit as them."""
    own = {
        credentials.get(fs.SLURM_USER) or DEFAULT_SLURM_USER
        for cluster in (file.get(fs.CLUSTERS) or {}).values()
        if (credentials := cluster.value.get(fs.CREDENTIALS)) is not None
    }
    for user, found in memberships.items():
        if is_system_user(user) or user in own:
            locations = [location for _, location in found]
            faults.add(
                FaultCode.SYSTEM_USER,
                locations[0],
                f"{user} is a user of the system or of Fairway itself: who runs a job as one can become "
                "any other user",
                expected="people",
                hint=f"take {user} out of the members",
                related=locations[1:MAX_LOCATIONS],
            )


def _needs_default(user: str, memberships: Sequence[tuple[str, Location]], faults: Faults) -> None:
    teams, locations = [team for team, _ in memberships], [location for _, location in memberships]
    faults.add(
        FaultCode.SEVERAL_TEAMS,
        locations[0],
        f"{user} is a member of {listed(teams)}: to which do jobs belong that name no team?",
        expected=f"a default team for {user}",
        hint=f"add  users: {{ {user}: {{ default_team: {teams[0]} }} }}",
        related=locations[1:MAX_LOCATIONS],
    )


def _check_budgets(teams: Sequence[TeamSection], priorities: Sequence[Priority], faults: Faults) -> None:
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


def _is_something(team: TeamSection, budget: Budget, faults: Faults) -> None:
    if budget.amount:
        return
    faults.add(
        FaultCode.EMPTY_BUDGET,
        _location(team, ts.AMOUNT),
        f"the budget of team {team.name} is 0: it is spent before anything runs",
        expected="an amount above 0",
        hint="write what the team may spend; to let nothing of it start, write  draining: true",
    )


def _budgets_within_parents(team: TeamSection, budget: Budget, faults: Faults) -> None:
    """Compare with the nearest ancestor that has a budget; that one is compared with its own ancestors."""
    ancestor = team.parent
    while ancestor is not None and ancestor.team.budget is None:
        ancestor = ancestor.parent
    limit = ancestor.team.budget if ancestor else None
    if ancestor is None or limit is None or _per_year(budget) <= _per_year(limit):
        return
    faults.add(
        FaultCode.BUDGET_ABOVE_PARENT,
        _location(team, ts.AMOUNT),
        f"team {team.name} may spend {_amount_text(budget)}, "
        f"but {ancestor.name} around it only {_amount_text(limit)}",
        expected=f"at most as much as {ancestor.name}, whose budget covers it too",
        hint=f"lower it, or raise that of {ancestor.name}: what is spent first holds",
        related=[_location(ancestor, ts.AMOUNT)],
        severity=Severity.WARNING,
    )


def _nothing_is_low(team: TeamSection, low: Sequence[str], faults: Faults) -> None:
    otherwise = (
        f"let it use {low[0]}:  priorities: [..., {low[0]}]"
        if low
        else ("add a priority that is:  priorities: { low: { rank: 10, preemptible: always } }")
    )
    faults.add(
        FaultCode.NOTHING_IS_LOW,
        _location(team, ts.AT_LIMIT),
        f"nothing of team {team.name} would start when its budget is spent: "
        "neither it nor a team inside it may use a preemptible priority",
        expected="a priority that is always preemptible, or another at_limit",
        hint=f"write  at_limit: stop, or {otherwise}",
    )


def _ends_nothing(team: TeamSection, faults: Faults) -> None:
    faults.add(
        FaultCode.NO_EFFECT,
        _location(team, ts.RUNNING),
        f"running: end of team {team.name} ends nothing, for at_limit: warn lets everything start",
        expected="at_limit: low-only or stop beside it",
        hint="write  at_limit: stop  or  at_limit: low-only, or take  running  away",
        severity=Severity.WARNING,
    )


def _location(team: TeamSection, key: Key[Any]) -> Location:
    budget = team.section.require(ts.BUDGET)
    found = budget.found(key)
    return found.location if found else budget.location


def _per_year(budget: Budget) -> Decimal:
    return budget.amount * (12 if budget.every is Every.MONTH else 4)


def _amount_text(budget: Budget) -> str:
    return f"{budget.amount:,f} a {budget.every}"


def _names_differ(teams: Iterable[TeamSection], faults: Faults) -> None:
    by_name: dict[str, TeamSection] = {}
    for team in teams:
        first = by_name.setdefault(team.name, team)
        if first is not team:
            prefix = team.parent.name if team.parent else "other"
            faults.add(
                FaultCode.DUPLICATE_TEAM,
                team.section.location,
                f"two teams are called {team.name}",
                expected="names that are unique in the fleet, whatever the parent",
                hint=f"rename one of them, for example to {prefix}-{team.name}"[:90],
                related=[first.section.location],
            )


def _past_is_clear(teams: Sequence[TeamSection], faults: Faults) -> None:
    """Report teams whose past is another team's too, and moves that say nothing."""
    owners = {team.name: team for team in teams}
    for team in teams:
        renamed = team.section.found(ts.RENAMED_FROM)
        if renamed is not None:
            first = owners.setdefault(renamed.value, team)
            if first is not team:
                faults.add(
                    FaultCode.NAME_IN_USE,
                    renamed.location,
                    f"{team.name} is renamed from {renamed.value}, whose past belongs to team {first.name}",
                    hint="take renamed_from away: what was applied with it is remembered",
                    related=[first.section.location],
                )
        moved = team.section.found(ts.MOVED)
        if moved is not None and team.team.moved is not None and team.team.moved.source == team.team.parent:
            faults.add(
                FaultCode.NO_EFFECT,
                moved.location,
                f"{team.name} moved from where it is",
                hint="write the parent that it had before:  moved: { from: research, since: 2026-11-01 }",
                severity=Severity.WARNING,
            )


def _accounts_differ(teams: Iterable[TeamSection], faults: Faults) -> None:
    """Report accounts of two teams. Slurm stores account names in lower case."""
    by_account: dict[str, TeamSection] = {}
    for team in teams:
        account = team.team.account_name
        first = by_account.setdefault(account.lower(), team)
        written = team.section.found(ts.ACCOUNT_NAME) or first.section.found(ts.ACCOUNT_NAME)
        if first is team or first.name == team.name or written is None:
            continue
        faults.add(
            FaultCode.DUPLICATE_ACCOUNT,
            written.location,
            f"teams {first.name} and {team.name} have one account on Slurm, {account}",
            expected="an account of its own for each team",
            hint="take one of them away, or name another account:  account: NAME",
            related=[first.section.location],
        )


# --- what is granted --------------------------------------------------------------------------------------

_GRANTS: Final[tuple[Key[Any], ...]] = (ts.GUARANTEE, ts.BORROW)


def _supplies_exist(team: TeamSection, supplies: Supplies, faults: Faults) -> None:
    reported: set[str] = set()
    for key in _GRANTS:
        for text, found in (team.section.get(key) or {}).items():
            if supplies.find(text) is None and text not in reported:
                reported.add(text)
                supplies.report_unknown(text, found.location, faults)


class _TeamGuarantee(NamedTuple):
    """A guarantee of one team, with its position."""

    devices: int
    location: Location
    team: str


_Guarantees = dict[Supply, list[_TeamGuarantee]]


def _guarantees(teams: Iterable[TeamSection]) -> _Guarantees:
    """Group the guarantees of these teams by supply."""
    found: _Guarantees = {}
    for team in teams:
        for grant in team.team.grants:
            guarantee = team.amount(ts.GUARANTEE, grant.supply) if grant.guarantee else None
            if guarantee is not None:
                item = _TeamGuarantee(grant.guarantee, guarantee.location, team.name)
                found.setdefault(grant.supply, []).append(item)
    return found


def _locations(guarantees: Iterable[_TeamGuarantee]) -> list[Location]:
    """Return the positions of the largest guarantees, in file order."""
    largest = sorted(guarantees, key=lambda g: -g.devices)[:MAX_LOCATIONS]
    return sorted(g.location for g in largest)


def _within_capacity(teams: Sequence[TeamSection], supplies: Supplies, faults: Faults) -> None:
    by_supply = _guarantees(team for team in teams if team.parent is None)
    exceeded: set[str] = set()
    for supply, guarantees in by_supply.items():
        capacity, total = supplies.by_supply[supply], sum(g.devices for g in guarantees)
        if capacity.max_devices is None or total <= capacity.max_devices:
            continue
        exceeded.add(supply.pool)
        first, *others = _locations(guarantees)
        faults.add(
            FaultCode.GUARANTEES_TOO_HIGH,
            first,
            f"{_sum_on(supply, total, guarantees)}, but {_has(capacity)}",
            expected=f"guarantees that add up to at most {capacity.max_devices}",
            hint=f"lower {'one of them' if others else 'it'}, or let the team borrow the rest:  "
            f"borrow: {{ {supply}: {total - capacity.max_devices} }}",
            related=others,
        )
    by_pool: dict[PoolName, _Guarantees] = {}
    for supply, guarantees in by_supply.items():
        if supply.slice is not None and supply.pool not in exceeded:
            by_pool.setdefault(supply.pool, {})[supply] = guarantees
    for by_slice in by_pool.values():
        _slices_fit(by_slice, supplies, faults)


def _slices_fit(by_slice: _Guarantees, supplies: Supplies, faults: Faults) -> None:
    """Check that guaranteed slices fit together: each kind may fit alone, but they share the memory."""
    one = supplies.by_supply[next(iter(by_slice))]
    gpus, name = one.pool.get(fs.POOL_GPUS), one.supply.pool
    if gpus is None or one.exact:
        return
    taken = sum(
        g.devices * supplies.by_supply[supply].gpu_part
        for supply, guarantees in by_slice.items()
        for g in guarantees
    )
    if taken <= gpus:
        return
    first, *others = _locations(chain.from_iterable(by_slice.values()))
    faults.add(
        FaultCode.GUARANTEES_TOO_HIGH,
        first,
        f"guarantees on the slices of pool {name} take {taken:g} GPUs, but it has {gpus}",
        expected=f"slices that fit on {gpus} GPUs together",
        hint="lower one of them, or let the team borrow the rest",
        related=others,
    )


def _sum_on(supply: Supply, total: int, guarantees: Sequence[_TeamGuarantee]) -> str:
    on, devices = (f"pool {supply}", "GPUs") if supply.slice is None else (str(supply), "slices")
    if len(guarantees) == 1:
        return f"the guarantee of team {guarantees[0].team} on {on} is {total} {devices}"
    return f"guarantees on {on} add up to {total} {devices}"


def _has(capacity: PoolSupply) -> str:
    devices = capacity.max_devices
    if capacity.supply.slice is None:
        return f"it has {devices}"
    return f"there are {devices}" if capacity.exact else f"its GPUs give at most {devices}"


def _families(teams: Sequence[TeamSection]) -> Iterator[tuple[TeamSection, list[TeamSection]]]:
    children: dict[int, list[TeamSection]] = {}
    for team in teams:
        if team.parent is not None:
            children.setdefault(id(team.parent), []).append(team)
    return ((team, children[id(team)]) for team in teams if id(team) in children)


def _within_parent(parent: TeamSection, children: Sequence[TeamSection], faults: Faults) -> None:
    if not parent.section.valid(ts.GUARANTEE):
        return
    guaranteed = {grant.supply: grant.guarantee for grant in parent.team.grants}
    for supply, guarantees in _guarantees(children).items():
        total = sum(g.devices for g in guarantees)
        if supply not in guaranteed or total <= guaranteed[supply]:
            continue
        first, *others = _locations(guarantees)
        guarantee = parent.amount(ts.GUARANTEE, supply)
        subject = (
            f"team {guarantees[0].team} is guaranteed {total} on {supply}"
            if len(guarantees) == 1
            else f"guarantees on {supply} inside {parent.name} add up to {total}"
        )
        faults.add(
            FaultCode.ABOVE_PARENT,
            first,
            f"{subject}, but {parent.name} itself has {guaranteed[supply]}",
            expected=f"at most {guaranteed[supply]}: a team's guarantee is part of its parent's",
            hint=f"raise that of {parent.name}:  guarantee: {{ {supply}: {total} }}; or lower these",
            related=[*others, guarantee.location if guarantee else parent.section.location],
        )


def _parent_has_it(team: TeamSection, faults: Faults) -> None:
    parent = team.parent
    if parent is None or not parent.section.valid(*_GRANTS):
        return
    granted = dict.fromkeys(grant.supply for grant in parent.team.grants)
    for grant in team.team.grants:
        if grant.supply in granted:
            continue
        amount = team.amount(ts.GUARANTEE, grant.supply) or team.amount(ts.BORROW, grant.supply)
        faults.add(
            FaultCode.PARENT_WITHOUT,
            amount.location if amount else team.section.location,
            f"team {team.name} has a grant on {grant.supply}, but its parent {parent.name} has none",
            expected=f"one of {listed(str(s) for s in granted)}" if granted else "a grant of the parent",
            hint=f"grant it to {parent.name} too:  guarantee: {{ {grant.supply}: {grant.guarantee} }}",
            related=[parent.section.location],
        )


# --- who could never run anything -------------------------------------------------------------------------


def _can_run(teams: Sequence[TeamSection], supplies: Supplies, faults: Faults) -> None:
    for team in teams:
        if not team.team.draining:
            _has_a_grant(team, supplies, faults)
            _has_a_priority(team, faults)
    _have_members(teams, faults)


def _has_a_grant(team: TeamSection, supplies: Supplies, faults: Faults) -> None:
    if team.team.grants or (team.parent is not None and not team.parent.team.grants):
        return  # one fault for the whole branch
    names = [name for key in _GRANTS for name in team.section.get(key) or {}]
    if not team.section.valid(*_GRANTS) or any(supplies.find(name) is None for name in names):
        return
    pool = next(iter(supplies.by_supply), "POOL")
    faults.add(
        FaultCode.CANNOT_RUN,
        team.section.location,
        f"team {team.name} can never run anything: it is granted nothing on any pool",
        expected="a guarantee, or leave to borrow, on some pool",
        hint=f"add  guarantee: {{ {pool}: 8 }}, or to let it borrow only:  borrow: {{ {pool}: unlimited }}",
    )


def _has_a_priority(team: TeamSection, faults: Faults) -> None:
    priorities = team.section.found(ts.TEAM_PRIORITIES)
    if priorities is None or priorities.value or not team.section.valid(ts.TEAM_PRIORITIES):
        return
    faults.add(
        FaultCode.CANNOT_RUN,
        priorities.location,
        f"team {team.name} can never run anything: it may use no priority",
        expected="at least one priority",
        hint="name one, or take the key away: then it has those of its parent, or all",
    )


def _have_members(teams: Sequence[TeamSection], faults: Faults) -> None:
    people: dict[int, int] = {}
    for team in reversed(teams):  # children come after their parents
        people[id(team)] = people.get(id(team), 0) + len(team.team.members)
        if team.parent is not None:
            people[id(team.parent)] = people.get(id(team.parent), 0) + people[id(team)]
    for team in teams:
        lonely = not people[id(team)] and (team.parent is None or people[id(team.parent)])
        if lonely and not team.team.draining and team.section.valid(ts.MEMBERS, ts.INNER_TEAMS):
            faults.add(
                FaultCode.NO_MEMBERS,
                team.section.location,
                f"nobody belongs to team {team.name}, so nobody can run anything for it",
                expected="members, in it or in a team inside it",
                hint="add  members: [alice], or take the team away",
                severity=Severity.WARNING,
            )


def _still_draining(team: TeamSection, faults: Faults) -> None:
    draining = team.section.found(ts.DRAINING)
    if draining is None or draining.value or team.parent is None or not team.parent.team.draining:
        return
    faults.add(
        FaultCode.STILL_DRAINING,
        draining.location,
        f"team {team.name} drains all the same: its parent {team.parent.name} does",
        hint=f"take it away, or move {team.name} out of {team.parent.name}",
        related=[team.parent.section.location],
        severity=Severity.WARNING,
    )


_Ceilings = Mapping[Supply, int | None]
"""The ceiling of a team on each of its supplies, including those of its ancestors; None if there is none."""


def _check_ceilings(teams: Sequence[TeamSection], faults: Faults) -> None:
    """Compare every ceiling with the parent's, and every limit with the ceilings."""
    ceilings: dict[int, _Ceilings] = {}
    for team in teams:
        inherited = ceilings[id(team.parent)] if team.parent is not None else {}
        ceilings[id(team)] = {
            grant.supply: _lower(grant.ceiling, inherited.get(grant.supply)) for grant in team.team.grants
        }
        if team.section.valid(ts.GUARANTEE, ts.BORROW):
            _within_parents(team, inherited, faults)
            _limits(team, ceilings[id(team)], faults)


def _lower(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _within_parents(team: TeamSection, inherited: _Ceilings, faults: Faults) -> None:
    for grant in team.team.grants:
        limit, borrow = inherited.get(grant.supply), team.amount(ts.BORROW, grant.supply)
        if limit is None or borrow is None or grant.ceiling is None or grant.ceiling <= limit:
            continue
        if team.parent is None or grant.guarantee > limit:
            continue  # above the parent's guarantee too, which is an error of its own
        faults.add(
            FaultCode.CEILING_ABOVE_PARENT,
            borrow.location,
            f"team {team.name} may hold {grant.ceiling} on {grant.supply}, "
            f"but {team.parent.name} around it only {limit}",
            expected=f"guarantee and borrow of at most {limit} together",
            hint=f"write  borrow: {{ {grant.supply}: {limit - grant.guarantee} }}, "
            f"or raise that of {team.parent.name}",
            severity=Severity.WARNING,
        )


def _limits(team: TeamSection, ceilings: _Ceilings, faults: Faults) -> None:
    limits = team.section.get(ts.LIMITS)
    limited = [n for n in ceilings.values() if n is not None]
    if limits is None or not limited or len(limited) < len(ceilings):
        return
    _below(team, limits, ts.JOB_LIMITS, ts.JOB_GPUS, max(limited), faults)
    _below(team, limits, ts.USER_LIMITS, ts.USER_GPUS, max(limited), faults)


def _below(
    team: TeamSection, limits: Section, of: Key[Section], key: Key[int | None], limit: int, faults: Faults
) -> None:
    section = limits.get(of)
    found = section.found(key) if section else None
    if found is None or found.value is None or found.value <= limit:
        return
    faults.add(
        FaultCode.LIMIT_ABOVE_CEILING,
        found.location,
        f"one {of.name} of team {team.name} may have {found.value} GPUs, but the whole team at most {limit}",
        expected=f"at most {limit}",
        hint=f"lower it to {limit}, take it away, or let the team borrow more",
        severity=Severity.WARNING,
    )
