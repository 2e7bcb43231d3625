"""Find what a new fleet takes away: clusters, teams, pools, budgets, limits, prices, rights and room.

What goes together with something larger is part of its removal: the pools of a removed cluster, the members
of a removed team. A budget is always a removal of its own: money must not disappear inside another line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.names import TeamName
from fairway.model.team import Team
from fairway.model.text import count, duration_text


class RemovalKind(StrEnum):
    """What is removed, in the order in which a plan announces it."""

    CLUSTER = "cluster"
    POOL = "pool"
    TEAM = "team"
    BUDGET = "budget"
    LIMIT = "limit"
    """A limit that no longer holds, which loosens the policy."""
    GUARANTEE = "guarantee"
    GRANT = "grant"
    """The right of a team to use a pool or slice."""
    PRIORITY = "priority"
    SLICE = "slice"
    PRICE = "price"
    """A discount, dated price, commitment or slice price of a pool."""
    OVERHEAD = "overhead"
    MEMBER = "member"
    DEFAULT_TEAM = "default team"
    LOWERED = "lowered limit"
    """A guarantee, ceiling or limit of a job or user that is lower than before, or new."""


NEVER_FORCED: Final = frozenset({RemovalKind.MEMBER, RemovalKind.DEFAULT_TEAM, RemovalKind.LOWERED})
"""Announced only: people leave teams and limits change every week, and the next apply undoes it."""


NEVER_BY_PARTIAL: Final = frozenset(
    {RemovalKind.CLUSTER, RemovalKind.POOL, RemovalKind.TEAM, RemovalKind.BUDGET}
)
"""What a partial fleet file cannot remove, even with force: it does not say what else there is."""


@dataclass(frozen=True, slots=True)
class Removal:
    """One thing that the new fleet no longer has."""

    kind: RemovalKind
    name: str
    """The cluster, pool, team, user or priority it is, or belongs to: what a user types to confirm it."""
    what: str = ""
    """Which of the things of that name it is: `GPUs of a job`, a supply, a member."""
    value: str = ""
    """What it was: `120,000 a month`, `8`."""
    detail: str = ""
    """What goes with it: the pools of a cluster, the members of a team."""
    limit: int | None = None
    """Of a lowered limit of a job or user: the new one, in GPUs or seconds."""


def find_removals(before: Fleet | None, after: Fleet) -> tuple[Removal, ...]:
    """List what `before` has and `after` has not, in the order of `RemovalKind`."""
    if before is None:
        return ()
    found = [
        *_clusters(before, after),
        *_pools(before, after),
        *_teams(before, after),
        *_priorities(before, after),
        *_default_teams(before, after),
    ]
    order = list(RemovalKind)
    return tuple(sorted(found, key=lambda r: order.index(r.kind)))


def needs_force(removal: Removal, with_history: Collection[str]) -> bool:
    """Return whether a removal must be confirmed; `with_history` are the teams that ever had jobs."""
    if removal.kind is RemovalKind.TEAM:
        return removal.name in with_history
    return removal.kind not in NEVER_FORCED


# --- clusters and pools -----------------------------------------------------------------------------------


def _clusters(before: Fleet, after: Fleet) -> Iterator[Removal]:
    remaining = {c.name: c for c in after.clusters}
    for cluster in before.clusters:
        now = remaining.get(cluster.name)
        if now is None:
            pools = before.pools_of(cluster.name)
            staying = {p.name for p in after.pools}
            gone = [p for p in pools if p.name not in staying]
            parts = [_list("pool", [p.name for p in gone]), _guaranteed(before, gone)]
            yield Removal(RemovalKind.CLUSTER, cluster.name, detail="; ".join(filter(None, parts)))
        else:
            yield from _overhead(cluster, now)


def _overhead(was: Cluster, now: Cluster) -> Iterator[Removal]:
    for what, amount in sorted(was.overhead.items()):
        if amount and not now.overhead.get(what):
            yield Removal(RemovalKind.OVERHEAD, was.name, what, f"{amount:,f} a month")


def _pools(before: Fleet, after: Fleet) -> Iterator[Removal]:
    remaining = {p.name: p for p in after.pools}
    clusters = {c.name for c in after.clusters}
    for pool in before.pools:
        now = remaining.get(pool.name)
        if now is not None:
            yield from _pool(pool, now)
        elif pool.cluster in clusters:
            yield Removal(RemovalKind.POOL, pool.name, detail=_guaranteed(before, [pool]))


def _pool(was: Pool, now: Pool) -> Iterator[Removal]:
    for cut in was.slices:
        if cut not in now.slices:
            yield Removal(RemovalKind.SLICE, was.name, cut)
    old, new = was.pricing, now.pricing
    if old.discount and not new.discount:
        yield Removal(RemovalKind.PRICE, was.name, "discount", f"{(old.discount * 100).normalize():f} %")
    days = {step.since for step in new.steps}
    for step in old.steps:
        if step.since not in days:
            yield Removal(RemovalKind.PRICE, was.name, f"price from {step.since}", f"{step.per_gpu_hour:f}")
    for commitment in old.commitments:
        if not any((c.since, c.until) == (commitment.since, commitment.until) for c in new.commitments):
            what = f"commitment from {commitment.since} until {commitment.until}"
            value = f"{count(commitment.gpus, 'GPU')} at {commitment.per_gpu_hour:f}"
            yield Removal(RemovalKind.PRICE, was.name, what, value)
    for cut, price in sorted(old.slices.items()):
        if cut not in new.slices and cut in now.slices:
            yield Removal(RemovalKind.PRICE, was.name, f"price of {cut}", f"{price:f}")


def _guaranteed(fleet: Fleet, pools: Iterable[Pool]) -> str:
    """Count what top-level teams are guaranteed on these pools: a child's guarantee is part of theirs."""
    names = {p.name for p in pools}
    by_team = {
        team.name: sum(g.guarantee for g in team.grants if g.supply.pool in names)
        for team in fleet.teams
        if team.parent is None
    }
    teams = [name for name, devices in by_team.items() if devices]
    if not teams:
        return ""
    return f"guarantees of {sum(by_team.values())} to {count(len(teams), 'team')}"


# --- teams ------------------------------------------------------------------------------------------------


def _teams(before: Fleet, after: Fleet) -> Iterator[Removal]:
    kept = {named.name for named in after.budgets}
    for named in before.budgets:
        if named.name not in kept:
            value = f"{named.budget.amount:,f} a {named.budget.every}"
            yield Removal(RemovalKind.BUDGET, named.name, value=value)
    remaining = {t.name: t for t in after.teams}
    was = {t.name: t for t in before.teams}
    for team in before.teams:
        now = remaining.get(team.name)
        if team.budget is not None and (now is None or now.budget is None):
            value = f"{team.budget.amount:,f} a {team.budget.every}"
            yield Removal(RemovalKind.BUDGET, team.name, value=value)
        if now is None:
            yield Removal(RemovalKind.TEAM, team.name, detail=_list("member", team.members))
            continue
        parent, parent_now = _parents(team, was, remaining)
        yield from _limits(team, now, parent, parent_now)
        yield from _lowered_limits(team, now, parent, parent_now)
        yield from _lowered_grants(team, now)
        yield from _grants(team, now, parent, parent_now, after)
        yield from _allowed_priorities(team, now, parent, parent_now, after)
        for member in team.members:
            if member not in now.members:
                yield Removal(RemovalKind.MEMBER, team.name, member)


def _parents(
    team: Team, was: dict[TeamName, Team], remaining: dict[TeamName, Team]
) -> tuple[Team | None, Team | None]:
    """Return the team's parent before and after, if both fleets have it: it is listed with what it loses."""
    if team.parent is None or team.parent not in remaining:
        return None, None
    return was[team.parent], remaining[team.parent]


def _limits(team: Team, now: Team, parent: Team | None, parent_now: Team | None) -> Iterator[Removal]:
    inherited = _limit_values(parent, parent_now)
    for (what, old, new), (_, old_above, new_above) in zip(_limit_values(team, now), inherited, strict=True):
        if old is None or new is not None:
            continue
        if old_above == old and new_above is None:  # the parent is listed with it
            continue
        yield Removal(RemovalKind.LIMIT, team.name, what, old)


def _lowered_limits(team: Team, now: Team, parent: Team | None, parent_now: Team | None) -> Iterator[Removal]:
    inherited = _limit_values(parent, parent_now)
    numbers = (now.limits.job_gpus, now.limits.job_seconds, now.limits.user_gpus)
    were = (team.limits.job_gpus, team.limits.job_seconds, team.limits.user_gpus)
    values = zip(_limit_values(team, now), inherited, were, numbers, strict=True)
    for (what, old, new), (_, old_above, new_above), was, limit in values:
        if limit is None or (was is not None and was <= limit):
            continue
        if parent is not None and (old, new) == (old_above, new_above):  # the parent is listed with it
            continue
        yield Removal(RemovalKind.LOWERED, team.name, what, f"{old or 'none'} → {new}", limit=limit)


def _lowered_grants(team: Team, now: Team) -> Iterator[Removal]:
    for grant in team.grants:
        new = now.grant(grant.supply)
        if new is None:
            continue
        values = []
        if 0 < new.guarantee < grant.guarantee:
            values.append(f"guarantee {grant.guarantee} → {new.guarantee}")
        if new.ceiling is not None and (grant.ceiling is None or new.ceiling < grant.ceiling):
            most = "unlimited" if grant.ceiling is None else str(grant.ceiling)
            values.append(f"at most {most} → {new.ceiling}")
        if values:
            yield Removal(RemovalKind.LOWERED, team.name, str(grant.supply), ", ".join(values))


def _limit_values(was: Team | None, now: Team | None) -> list[tuple[str, str | None, str | None]]:
    values: list[list[str | None]] = []
    for limits in (was.limits if was else None, now.limits if now else None):
        gpus = [] if limits is None else [limits.job_gpus, limits.user_gpus]
        texts = [None if n is None else str(n) for n in gpus] or [None, None]
        seconds = limits.job_seconds if limits else None
        values.append([texts[0], None if seconds is None else duration_text(seconds), texts[1]])
    names = ("GPUs of a job", "time of a job", "GPUs of a user")
    return [(what, old, new) for what, old, new in zip(names, *values, strict=True)]


def _grants(
    team: Team, now: Team, parent: Team | None, parent_now: Team | None, after: Fleet
) -> Iterator[Removal]:
    supplies = {supply for pool in after.pools for supply in pool.supplies}
    for grant in team.grants:
        if grant.supply not in supplies:  # it goes with its pool or slice
            continue
        new = now.grant(grant.supply)
        above = parent_now.grant(grant.supply) if parent_now else None
        lost_above = bool(parent and parent.grant(grant.supply)) and above is None
        if grant.guarantee and not (new and new.guarantee):
            yield Removal(RemovalKind.GUARANTEE, team.name, str(grant.supply), str(grant.guarantee))
        elif new is None and not lost_above:
            yield Removal(RemovalKind.GRANT, team.name, str(grant.supply))
        if grant.borrow is not None and new is not None and new.borrow is None:
            old_above = parent.grant(grant.supply) if parent else None
            if old_above and old_above.borrow == grant.borrow and above and above.borrow is None:
                continue  # the parent is listed with it
            what = f"borrowing on {grant.supply}"
            yield Removal(RemovalKind.LIMIT, team.name, what, str(grant.borrow))


def _allowed_priorities(
    team: Team, now: Team, parent: Team | None, parent_now: Team | None, after: Fleet
) -> Iterator[Removal]:
    existing = {p.name for p in after.priorities}
    for name in team.priorities:
        if name in now.priorities or name not in existing:
            continue
        if parent and parent_now and name in parent.priorities and name not in parent_now.priorities:
            continue
        yield Removal(RemovalKind.PRIORITY, team.name, name)


# --- the fleet --------------------------------------------------------------------------------------------


def _priorities(before: Fleet, after: Fleet) -> Iterator[Removal]:
    remaining = {p.name for p in after.priorities}
    for priority in before.priorities:
        if priority.name not in remaining:
            yield Removal(RemovalKind.PRIORITY, priority.name)


def _default_teams(before: Fleet, after: Fleet) -> Iterator[Removal]:
    teams = {t.name for t in after.teams}
    members = {(t.name, member) for t in after.teams for member in t.members}
    for user, team in before.chosen_teams.items():
        if user not in after.chosen_teams and team in teams and (team, user) in members:
            yield Removal(RemovalKind.DEFAULT_TEAM, user, team)


def _list(noun: str, names: Iterable[str]) -> str:
    found = list(names)
    return f"{noun}{'' if len(found) == 1 else 's'} {', '.join(found)}" if found else ""
