"""Decide which fleet each part of a period is charged by, from the fleets in force over time. Pure.

Undated settings hold from the apply on, dated ones (price steps, commitments, dated moves) as the newest file
has them. See docs/adr/0053.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import pairwise
from types import MappingProxyType
from typing import Final, TypeAlias

from fairway.cost.calendar import Calendar
from fairway.model.charge import Span
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.price import Commitment, Sharing
from fairway.model.team import Team

TeamPath: TypeAlias = tuple[TeamName, ...]
"""A team and those that it was inside of, the top-level one first, under the names that they have now."""

Timeline: TypeAlias = Sequence[tuple[int, Fleet]]
"""When each fleet came into force, in order."""

_NO_PATHS: Final[Mapping[str, TeamPath]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FleetSpan:
    """A part of a period, and the fleet that it is charged by, with the current names of teams."""

    span: Span
    fleet: Fleet
    removed: frozenset[PoolName] = frozenset()
    """Pools of `fleet` that had left it: jobs that still ran there are charged, unused capacity is not."""
    paths: Mapping[str, TeamPath] = field(default_factory=lambda: _NO_PATHS)
    """The path of each team by the name that usage of this time has, also of teams that had left."""

    def path(self, team: str) -> TeamPath:
        """Return the path of a team; of one that no fleet has, the team alone."""
        return self.paths.get(team) or ((TeamName(team),) if team else ())

    @property
    def current_paths(self) -> dict[str, TeamPath]:
        """Return the paths by the name that each team has now."""
        return {path[-1]: path for path in self.paths.values()}


def fleet_spans(timeline: Timeline, calendar: Calendar, period: Span) -> tuple[FleetSpan, ...]:
    """Split a period by the fleets in force; what is before the first of them is left out.

    The first fleet holds from the start of its hour, each later one from the hour after: an hour has one
    price list. Adjacent parts are merged if nothing differs that charges depend on.
    """
    if not timeline:
        return ()
    newest = timeline[-1][1]
    starts = [_effective(at, calendar, first=n == 0) for n, (at, _) in enumerate(timeline)]
    names = _current_names([fleet for _, fleet in timeline])
    moves = {calendar.day_start(team.moved.since) for team in newest.teams if team.moved is not None}
    ends = (*starts[1:], max(period.end, starts[-1]))
    found: list[FleetSpan] = []
    pools: dict[PoolName, Pool] = {}
    clusters: dict[ClusterName, Cluster] = {}
    paths: dict[str, TeamPath] = {}
    for n, (_, then) in enumerate(timeline):
        cuts = sorted({starts[n], ends[n], *(at for at in moves if starts[n] < at < ends[n])})
        for start, end in pairwise(cuts) if len(cuts) > 1 else ((starts[n], ends[n]),):
            paths = _paths(paths, then, names[n], newest, calendar.day_of(start))
            span = Span(max(start, period.start), min(end, period.end))
            if span.start < span.end:
                _append(found, _fleet_span(span, then, newest, names[n], (pools, clusters), paths))
        clusters |= {c.name: replace(c, overhead=MappingProxyType({})) for c in then.clusters}
        pools |= {p.name: _without_commitments(p) for p in then.pools}
    return tuple(found)


def always(fleet: Fleet, period: Span) -> FleetSpan:
    """Return a period in which one fleet is in force all the time."""
    return FleetSpan(period, fleet, paths=_paths({}, fleet, {}, fleet, date.max))


def all_teams(timeline: Timeline) -> Mapping[str, TeamName]:
    """Return the current name of each team that ever was in a fleet, by each of its names."""
    found: dict[str, TeamName] = {}
    fleets = [fleet for _, fleet in timeline]
    for fleet, names in zip(fleets, _current_names(fleets), strict=True):
        found.update({t.name: _named(t.name, names) for t in fleet.teams})
        found.update(names)
    return found


def money_differs(one: Fleet, other: Fleet) -> bool:
    """Return whether two fleets differ in anything that charges, and who is charged, depend on."""
    return one is not other and _money(one) != _money(other)


def _effective(at: int, calendar: Calendar, *, first: bool) -> int:
    hour = calendar.hour_start(at)
    return hour if first or hour == at else calendar.next_hour(at)


def _money(fleet: Fleet) -> tuple[object, ...]:
    by_guarantee = Sharing.BY_GUARANTEE in (fleet.cost.idle, fleet.cost.overhead)
    return (
        fleet.currency,
        fleet.cost,
        sorted(
            ((p.name, p.cluster, p.gpu, p.capacity, p.price, p.pricing, p.slices) for p in fleet.pools),
            key=lambda row: row[0],
        ),
        sorted(((c.name, c.overhead, c.energy) for c in fleet.clusters), key=lambda row: row[0]),
        sorted(
            (
                (t.name, t.parent or "", t.renamed_from, t.moved, _guarantees(t) if by_guarantee else ())
                for t in fleet.teams
            ),
            key=lambda row: row[0],
        ),
    )


def _guarantees(team: Team) -> list[tuple[object, ...]]:
    return sorted((g.supply.pool, g.supply.slice or "", g.guarantee) for g in team.grants if g.guarantee)


def _append(found: list[FleetSpan], part: FleetSpan) -> None:
    before = found[-1] if found else None
    if (
        before is not None
        and before.span.end == part.span.start
        and (before.removed, before.paths) == (part.removed, part.paths)
        and not money_differs(before.fleet, part.fleet)
    ):
        found[-1] = replace(part, span=Span(before.span.start, part.span.end))
    else:
        found.append(part)


def _fleet_span(
    span: Span,
    then: Fleet,
    newest: Fleet,
    names: Mapping[str, TeamName],
    past: tuple[Mapping[PoolName, Pool], Mapping[ClusterName, Cluster]],
    paths: Mapping[str, TeamPath],
) -> FleetSpan:
    pools_now = {pool.name: pool for pool in newest.pools}
    removed = past[0].keys() - {pool.name for pool in then.pools}
    kept = {cluster.name for cluster in then.clusters}
    fleet = replace(
        then,
        currency=newest.currency,
        cost=replace(then.cost, timezone=newest.cost.timezone),
        pools=(
            *(_with_dated_prices(pool, pools_now.get(pool.name, pool)) for pool in then.pools),
            *(past[0][name] for name in sorted(removed)),
        ),
        clusters=(*then.clusters, *(c for name, c in sorted(past[1].items()) if name not in kept)),
        teams=_renamed(then.teams, names),
    )
    return FleetSpan(span, fleet, frozenset(removed), paths)


def _renamed(teams: tuple[Team, ...], names: Mapping[str, TeamName]) -> tuple[Team, ...]:
    if not any(team.name in names or team.parent in names for team in teams):
        return teams
    return tuple(
        replace(team, name=_named(team.name, names), parent=team.parent and _named(team.parent, names))
        for team in teams
    )


def _named(team: TeamName, names: Mapping[str, TeamName]) -> TeamName:
    return names.get(team, team)


def _without_commitments(pool: Pool) -> Pool:
    if not pool.pricing.commitments:
        return pool
    return replace(pool, pricing=replace(pool.pricing, commitments=()))


def _with_dated_prices(then: Pool, newest: Pool) -> Pool:
    """Return a past pool with the dated prices of the newest file, from the first of them on."""
    if then is newest or then.pricing == newest.pricing:
        return then
    steps = newest.pricing.steps
    earlier = (step for step in then.pricing.steps if not steps or step.since < steps[0].since)
    pricing = replace(
        then.pricing,
        steps=(*earlier, *steps),
        commitments=_commitments(then.pricing.commitments, newest.pricing.commitments),
    )
    return replace(then, pricing=pricing)


def _commitments(then: Sequence[Commitment], newest: Sequence[Commitment]) -> tuple[Commitment, ...]:
    """Return the newest commitments and those removed since, which held until the apply that removed them.

    A commitment that begins or ends on the same day as one that is missing is that one, corrected.
    """
    corrections = [c for c in newest if c not in then]
    removed = []
    for commitment in then:
        if commitment in newest:
            continue
        same = (c for c in corrections if c.since == commitment.since or c.until == commitment.until)
        corrected = next(same, None)
        if corrected is None:
            removed.append(commitment)
        else:
            corrections.remove(corrected)
    return (*newest, *removed)


def _current_names(fleets: Sequence[Fleet]) -> list[Mapping[str, TeamName]]:
    """Return for each fleet the current names of teams that were renamed since, or whose old name is used."""
    found: list[Mapping[str, TeamName]] = []
    later: Mapping[str, TeamName] = {}
    for fleet in reversed(fleets):
        own = {team.name for team in fleet.teams}
        renamed: dict[str, TeamName] = {
            team.renamed_from: later.get(team.name, team.name)
            for team in fleet.teams
            if team.renamed_from is not None and team.renamed_from not in own
        }
        if renamed:
            later = {**later, **renamed}
        found.append(later)
    found.reverse()
    return found


def _paths(
    before: Mapping[str, TeamPath],
    then: Fleet,
    names: Mapping[str, TeamName],
    newest: Fleet,
    today: date,
) -> dict[str, TeamPath]:
    """Return the path of each team of a fleet. One that had left is inside of the team where it last was."""
    parents = {_named(t.name, names): t.parent and _named(t.parent, names) for t in then.teams}
    for team in newest.teams:
        move = team.moved
        if move is not None and parents.get(team.name, team.name) in (move.source, team.parent):
            parents[team.name] = team.parent if move.since <= today else move.source
    by_name = {team: _path(team, parents) for team in parents}
    known = dict.fromkeys((*before, *names, *(team.name for team in then.teams)))
    own = {team.name for team in then.teams}
    found = {}
    for raw in known:
        name = names.get(raw) or (raw if raw in own or raw not in before else before[raw][-1])
        path = by_name.get(TeamName(name)) or _path_of_left(before.get(raw, ()), by_name)
        if path:
            found[raw] = path
    return found


def _path_of_left(last: TeamPath, by_name: Mapping[TeamName, TeamPath]) -> TeamPath:
    """Return the path of a team that had left, whose last parents may have moved since."""
    if not last or last[-1] in by_name:
        return by_name[last[-1]] if last else ()
    return (*_path_of_left(last[:-1], by_name), last[-1])


def _path(team: TeamName, parents: Mapping[TeamName, TeamName | None]) -> TeamPath:
    path = [team]
    while (above := parents.get(path[-1])) is not None and above not in path:
        path.append(above)
    return tuple(reversed(path))
