"""Translate a fleet to the policy objects of a virtual cluster, and these to the terms of its simulator.

| kind | name | fields |
|---|---|---|
| `fairness` | `cluster` | half_life_seconds |
| `priority` | its name | rank, default, preemptible |
| `team` | its name | parent, share, draining, hold, priorities, job_gpus, job_seconds, user_gpus |
| `grant` | `team/supply` | guarantee, borrow (not set: whatever is idle) |
| `member` | `team/user` | default: whether jobs of the user that name no team are the team's |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from fairway.model.budget import Hold
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Fairness, Grant, Limits, Priority, Supply, Team
from fairway.policy.objects import ObjectKey, Translation, Value, WantedObject
from fairway.simulate.cluster.terms import ClusterTerms

FAIRNESS: Final = "fairness"
PRIORITY: Final = "priority"
TEAM: Final = "team"
GRANT: Final = "grant"
MEMBER: Final = "member"
KINDS: Final = (FAIRNESS, PRIORITY, TEAM, GRANT, MEMBER)

Fields = Mapping[str, Value]


def translate(fleet: Fleet, cluster: str) -> Translation:
    """Return all objects that the fleet wants on one virtual cluster."""
    supplies = {supply for pool in fleet.pools_of(cluster) for supply in pool.supplies}
    return Translation(tuple(_wanted(fleet, supplies)))


def _wanted(fleet: Fleet, supplies: set[Supply]) -> Iterator[WantedObject]:
    seconds = fleet.fairness.half_life_seconds
    yield WantedObject(ObjectKey(FAIRNESS, "cluster"), {"half_life_seconds": seconds})
    for priority in fleet.priorities:
        yield WantedObject(
            ObjectKey(PRIORITY, priority.name),
            {"rank": priority.rank, "default": priority.default, "preemptible": priority.preemptible},
        )
    default_teams = fleet.default_teams()
    for team in fleet.teams:
        yield _wanted_team(team)
        after = (ObjectKey(TEAM, team.name),)
        for grant in team.grants:
            if grant.supply in supplies:
                fields = {"guarantee": grant.guarantee, "borrow": grant.borrow}
                yield WantedObject(ObjectKey(GRANT, f"{team.name}/{grant.supply}"), fields, after, team.name)
        for user in team.members:
            is_default = {"default": default_teams.get(user) == team.name}
            yield WantedObject(ObjectKey(MEMBER, f"{team.name}/{user}"), is_default, after, team.name)


def _wanted_team(team: Team) -> WantedObject:
    needs = [ObjectKey(PRIORITY, name) for name in team.priorities]
    if team.parent is not None:
        needs.append(ObjectKey(TEAM, team.parent))
    fields: dict[str, Value] = {
        "parent": team.parent,
        "share": team.share,
        "draining": team.draining,
        "hold": team.hold,
        "priorities": tuple(team.priorities),
        "job_gpus": team.limits.job_gpus,
        "job_seconds": team.limits.job_seconds,
        "user_gpus": team.limits.user_gpus,
    }
    return WantedObject(ObjectKey(TEAM, team.name), fields, tuple(needs), team.name)


def needs_of(key: ObjectKey, fields: Fields) -> tuple[ObjectKey, ...]:
    """Return the keys of the objects that an existing object refers to."""
    if key.kind in (GRANT, MEMBER):
        return (ObjectKey(TEAM, key.name.partition("/")[0]),)
    if key.kind == TEAM:
        names = fields.get("priorities")
        priorities = names if isinstance(names, tuple) else ()
        parent = fields.get("parent")
        ancestor = (ObjectKey(TEAM, parent),) if isinstance(parent, str) else ()
        return (*(ObjectKey(PRIORITY, str(name)) for name in priorities), *ancestor)
    return ()


def team_of(key: ObjectKey) -> TeamName | None:
    """Return the team that an object belongs to."""
    return TeamName(key.name.partition("/")[0]) if key.kind in (TEAM, GRANT, MEMBER) else None


def read_terms(objects: Mapping[ObjectKey, Fields]) -> ClusterTerms:
    """Convert the objects, whoever wrote them, to terms.

    They may have been changed by hand: a team without an existing parent becomes a top-level team, objects of
    unknown teams are ignored, and a value of the wrong type counts as not set.
    """
    grants: dict[str, list[Grant]] = {}
    members: dict[str, list[UserName]] = {}
    defaults: dict[UserName, TeamName] = {}
    for key in sorted(objects):
        team, _, rest = key.name.partition("/")
        if key.kind == GRANT:
            pool, _, slice_ = rest.partition("/")
            supply = Supply(PoolName(pool), SliceName(slice_) if slice_ else None)
            fields = objects[key]
            grants.setdefault(team, []).append(
                Grant(supply, max(0, _number(fields, "guarantee") or 0), _number(fields, "borrow"))
            )
        elif key.kind == MEMBER:
            user = UserName(rest)
            members.setdefault(team, []).append(user)
            if objects[key].get("default") is True or user not in defaults:
                defaults[user] = TeamName(team)
    teams = {key.name: fields for key, fields in objects.items() if key.kind == TEAM}
    return ClusterTerms(
        teams=tuple(
            _read_team(name, teams, tuple(grants.get(name, ())), tuple(members.get(name, ())))
            for name in _parents_first(teams)
        ),
        priorities=_read_priorities(objects),
        fairness=_read_fairness(objects),
        default_teams=MappingProxyType({user: team for user, team in defaults.items() if team in teams}),
    )


def _read_team(
    name: str, teams: Mapping[str, Fields], grants: tuple[Grant, ...], members: tuple[UserName, ...]
) -> Team:
    fields = teams[name]
    priorities = fields.get("priorities")
    return Team(
        TeamName(name),
        _parent(name, teams),
        share=max(1, _number(fields, "share") or 1),
        grants=grants,
        limits=Limits(
            _number(fields, "job_gpus"), _number(fields, "job_seconds"), _number(fields, "user_gpus")
        ),
        priorities=tuple(PriorityName(str(p)) for p in priorities) if isinstance(priorities, tuple) else (),
        members=members,
        draining=fields.get("draining") is True,
        hold=next((hold for hold in Hold if hold == fields.get("hold")), None),
    )


def _read_priorities(objects: Mapping[ObjectKey, Fields]) -> tuple[Priority, ...]:
    found = [
        Priority(
            PriorityName(key.name),
            _number(fields, "rank") or 0,
            fields.get("default") is True,
            fields.get("preemptible") is True,
        )
        for key, fields in objects.items()
        if key.kind == PRIORITY
    ]
    return tuple(sorted(found, key=lambda p: (-p.rank, p.name)))


def _read_fairness(objects: Mapping[ObjectKey, Fields]) -> Fairness:
    seconds = _number(objects.get(ObjectKey(FAIRNESS, "cluster"), {}), "half_life_seconds")
    return Fairness(seconds) if seconds else Fairness()


def _number(fields: Fields, name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _parent(name: str, teams: Mapping[str, Fields]) -> TeamName | None:
    """Return the parent of a team if it exists and is not a descendant of the team."""
    parent = teams[name].get("parent")
    ancestor, steps = parent, 0
    while isinstance(ancestor, str) and ancestor in teams and steps <= len(teams):
        if ancestor == name:
            return None
        ancestor, steps = teams[ancestor].get("parent"), steps + 1
    return TeamName(parent) if isinstance(parent, str) and parent in teams and steps <= len(teams) else None


def _parents_first(teams: Mapping[str, Fields]) -> Iterable[str]:
    done: dict[str, None] = {}

    def add(name: str) -> None:
        if name not in done:
            parent = _parent(name, teams)
            if parent is not None:
                add(parent)
            done[name] = None

    for name in sorted(teams):
        add(name)
    return done
