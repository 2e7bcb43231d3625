"""Merge the fleet of an imported cluster into a fleet file that exists. Pure.

What the file says stays. Teams of one name are one team: it keeps its share, limits and parent, and gets the
new cluster's grants and members.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Final

from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.names import PoolName, TeamName, UserName, free_name
from fairway.model.team import Grant, Supply, Team
from fairway.model.text import duration_text, first_few

_ENTRY: Final = re.compile(r"\s+([^\s:]+):\s*(?:[{#].*)?$")

Comment = tuple[str, str]
"""What a comment is about, and its text; `compose_fleet` writes it above the team or pool it names last."""


def merge_fleets(base: Fleet, added: Fleet) -> tuple[Fleet, list[Comment]]:
    """Return `base` with the cluster, pools and teams of `added`, and comments on what differs."""
    (cluster,) = added.clusters
    pools, renamed = _pools(base, added, cluster)
    supplies = {Supply(p.name, s.slice) for p in pools for s in p.supplies}
    teams, comments = _teams(base, added, renamed, supplies)
    if added.fairness != base.fairness:
        half_lives = [duration_text(f.fairness.half_life_seconds) for f in (added, base)]
        comments.append(
            (
                f"cluster {cluster.name}",
                f"its half-life is {half_lives[0]}; this file's, {half_lives[1]}, stays",
            )
        )
    comments += [(f"pool {new}", f"is {old} on cluster {cluster.name}") for old, new in renamed.items()]
    known = any(c.name == cluster.name for c in base.clusters)
    merged = replace(
        base,
        clusters=base.clusters if known else (*base.clusters, cluster),
        pools=(*base.pools, *pools),
        teams=(),
    )
    order = {supply: i for i, pool in enumerate(merged.pools) for supply in pool.supplies}
    merged = replace(
        merged,
        teams=tuple(
            replace(t, grants=tuple(sorted(t.grants, key=lambda g: order[g.supply])))
            for t in _parents_first(_with_parents(teams, supplies))
        ),
    )
    return replace(merged, chosen_teams=_chosen(merged, added)), comments


def comments_of(text: str, names: Collection[str]) -> Iterator[Comment]:
    """Yield the comments of a fleet file that stand on lines of their own.

    Those above a team or pool are about it, and others about the whole file.
    """
    block: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            block.append(stripped.lstrip("#").strip())
            continue
        key = _ENTRY.match(line)
        if block and stripped:
            name = key[1].strip("\"'") if key else ""
            yield (name if name in names else "", " ".join(block))
            block = []
    if block:
        yield "", " ".join(block)


def _pools(base: Fleet, added: Fleet, cluster: Cluster) -> tuple[list[Pool], dict[PoolName, PoolName]]:
    """Return the new pools, and the names of those whose own is taken by a pool of another cluster."""
    known = {p.name for p in base.pools_of(cluster.name)}
    taken = {str(p.name) for p in base.pools}
    pools: list[Pool] = []
    renamed: dict[PoolName, PoolName] = {}
    for pool in added.pools:
        if pool.name in known:
            continue
        name = pool.name
        if name in taken:
            name = PoolName(free_name(f"{cluster.name}-{name}"[:40].rstrip("-"), taken))
            renamed[pool.name] = name
        taken.add(name)
        pools.append(replace(pool, name=name))
    return pools, renamed


def _teams(
    base: Fleet, added: Fleet, renamed: dict[PoolName, PoolName], supplies: Collection[Supply]
) -> tuple[list[Team], list[Comment]]:
    teams = {team.name: team for team in base.teams}
    comments: list[Comment] = []
    for team in added.teams:
        grants = tuple(
            grant
            for g in team.grants
            if (grant := replace(g, supply=_renamed(g.supply, renamed))).supply in supplies
        )
        here = teams.get(team.name)
        if here is None:
            teams[team.name] = replace(team, grants=grants, priorities=tuple(p.name for p in base.priorities))
            continue
        own = {g.supply for g in here.grants}
        teams[team.name] = replace(
            here,
            grants=(*here.grants, *(g for g in grants if g.supply not in own)),
            members=tuple(dict.fromkeys((*here.members, *team.members))),
            account=here.account or team.account,
        )
        comments += _differences(here, team, added.clusters[0])
    return list(teams.values()), comments


def _differences(here: Team, team: Team, cluster: Cluster) -> Iterator[Comment]:
    """Yield what a team of the same name has otherwise on the new cluster."""
    pairs = (
        ("share", here.share, team.share),
        ("parent", here.parent, team.parent),
        ("limits", here.limits, team.limits),
    )
    differ = [what for what, mine, theirs in pairs if mine != theirs]
    also = f"; its {first_few(differ, 3)} there differ, and stay as they are here" if differ else ""
    yield f"team {here.name}", f"is on cluster {cluster.name} too, and taken for the same team{also}"
    new = [m for m in team.members if m not in here.members]
    if new and here.members:
        yield f"team {here.name}", f"members from cluster {cluster.name}: {first_few(new, 8)}"


def _renamed(supply: Supply, renamed: dict[PoolName, PoolName]) -> Supply:
    return replace(supply, pool=renamed.get(supply.pool, supply.pool))


def _with_parents(teams: Iterable[Team], new: Collection[Supply]) -> list[Team]:
    """Return the teams with each grant of a new supply also at the parents: a child's is part of theirs."""
    by_name = {team.name: team for team in teams}
    children: dict[TeamName, list[Team]] = {}
    ordered = list(by_name.values())
    for team in sorted(ordered, key=lambda t: -_depth(t, by_name)):
        own = by_name[team.name]
        for child in children.get(team.name, ()):
            own = _covering(own, child, new)
        by_name[team.name] = own
        if team.parent is not None:
            children.setdefault(team.parent, []).append(own)
    return [by_name[team.name] for team in ordered]


def _covering(parent: Team, child: Team, new: Collection[Supply]) -> Team:
    grants = {g.supply: g for g in parent.grants}
    for grant in child.grants:
        if grant.supply in new and grant.ceiling != 0 and grant.supply not in grants:
            grants[grant.supply] = Grant(grant.supply, grant.guarantee)
    return replace(parent, grants=tuple(grants.values()))


def _parents_first(teams: list[Team]) -> Iterator[Team]:
    """Yield the teams as a file has them: children right after their parent."""
    children: dict[TeamName | None, list[Team]] = {}
    for team in teams:
        children.setdefault(team.parent, []).append(team)

    def walk(parent: TeamName | None) -> Iterator[Team]:
        for team in children.get(parent, ()):
            yield team
            yield from walk(team.name)

    yield from walk(None)


def _depth(team: Team, by_name: dict[TeamName, Team]) -> int:
    depth = 0
    while team.parent is not None:
        team = by_name[team.parent]
        depth += 1
    return depth


def _chosen(merged: Fleet, added: Fleet) -> dict[UserName, TeamName]:
    """Return the default teams: those of the file, then those of the cluster, then the first."""
    memberships: dict[UserName, list[TeamName]] = {}
    for team in merged.teams:
        for member in team.members:
            memberships.setdefault(member, []).append(team.name)
    chosen = dict(merged.chosen_teams)
    for user, own in memberships.items():
        if len(own) > 1 and user not in chosen:
            wanted = added.chosen_teams.get(user)
            chosen[user] = wanted if wanted in own else own[0]
    return chosen
