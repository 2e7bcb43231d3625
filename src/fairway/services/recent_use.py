"""Find in the ledger who used in the last 30 days what a fleet removes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from fairway.cost.calendar import calendar_of
from fairway.ledger import Ledger, UsageFilter, UsageView
from fairway.model.charge import Dimension, Label, Span, UsageSum
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.model.team import TeamTree
from fairway.policy.recent_use import DAYS, RecentUse
from fairway.policy.removals import Removal, RemovalKind

SECONDS: Final = 10.0
"""Who used what a plan removes is worth no longer wait."""

_OF_POOLS: Final = frozenset({RemovalKind.POOL, RemovalKind.SLICE})
_OF_TEAMS: Final = frozenset(
    {RemovalKind.TEAM, RemovalKind.GUARANTEE, RemovalKind.GRANT, RemovalKind.PRIORITY, RemovalKind.MEMBER}
)
_USABLE: Final = _OF_POOLS | _OF_TEAMS | {RemovalKind.CLUSTER, RemovalKind.LOWERED}

MAX_LIMITS: Final = 20
"""Lowered limits of jobs whose users are looked for: each needs a query of its own."""

_BY_CLUSTER: Final = (Label.CLUSTER, Label.USER)
_BY_TEAM: Final = (Label.TEAM, Label.USER, Label.PRIORITY)
_BY_PRIORITY: Final = (Label.PRIORITY, Label.USER)


async def recent_use(
    ledger: Ledger, fleets: Sequence[Fleet], removals: Sequence[Removal], now: int | None = None
) -> Mapping[Removal, RecentUse]:
    """Find who used what is removed: up to four sums of the ledger, in one snapshot.

    `fleets` have what is removed. Things that nobody can use, such as budgets, are left out.
    """
    usable = [r for r in removals if r.kind in _USABLE]
    if not usable or not fleets:
        return {}
    subtrees = _subtrees(fleets)
    calendar, now = calendar_of(fleets[0]), int(time.time()) if now is None else now
    span = Span(calendar.hour_start(now - DAYS * 86_400), calendar.next_hour(now))
    spans = {pool.name: (span,) for fleet in fleets for pool in fleet.pools}
    limits = [r for r in usable if r.limit is not None]
    summed = [r for r in usable if r.limit is None]
    views = [UsageView(spans, by, which) for by, which in _queries(summed, subtrees)]
    try:
        async with asyncio.timeout(SECONDS):
            sums = await ledger.usage.views(views, now, local=calendar)
            above = {r: await _above(ledger, r, subtrees, span) for r in limits[:MAX_LIMITS]}
    except TimeoutError:
        return dict.fromkeys(usable, RecentUse(unknown=f"the ledger did not respond within {SECONDS:g} s"))
    except FairwayError as error:
        return dict.fromkeys(usable, RecentUse(unknown=error.message))
    too_many = RecentUse(unknown=f"more than {MAX_LIMITS} limits change at once")
    found = match_use(summed, dict(zip((view.by for view in views), sums, strict=True)), subtrees)
    return {**found, **dict.fromkeys(limits[MAX_LIMITS:], too_many), **above}


async def _above(
    ledger: Ledger, removal: Removal, subtrees: Mapping[str, frozenset[str]], span: Span
) -> RecentUse:
    """Find who had jobs above a lowered limit of jobs."""
    teams = sorted(subtrees.get(removal.name, frozenset({removal.name})))
    since = datetime.fromtimestamp(span.start, UTC)
    if removal.what == "GPUs of a job":
        return RecentUse.of(await ledger.jobs.use_above(teams, since, gpus=removal.limit))
    if removal.what == "time of a job":
        return RecentUse.of(await ledger.jobs.use_above(teams, since, seconds=removal.limit))
    return RecentUse(unknown="Fairway does not keep what one user held at once")


def match_use(
    removals: Iterable[Removal],
    sums: Mapping[tuple[Dimension, ...], Sequence[UsageSum]],
    subtrees: Mapping[str, frozenset[str]],
) -> dict[Removal, RecentUse]:
    """Find the sums of each removal. Pure. `subtrees`: each team with all teams below it."""
    found: dict[tuple[str, ...], dict[str, int]] = {}

    def add(key: tuple[str, ...], user: str, row: UsageSum) -> None:
        users = found.setdefault(key, {})
        users[user] = users.get(user, 0) + row.device_seconds

    for row in sums.get(_BY_CLUSTER, ()):
        add(("cluster", row.labels[0]), row.labels[1], row)
    for row in sums.get((Label.USER,), ()):
        add(("pool", row.supply.pool), row.labels[0], row)
        add(("slice", row.supply.pool, row.supply.slice or ""), row.labels[0], row)
    for row in sums.get(_BY_PRIORITY, ()):
        add(("priority", row.labels[0]), row.labels[1], row)
    for row in sums.get(_BY_TEAM, ()):
        team, user, priority = row.labels
        add(("team", team), user, row)
        add(("team", team, "supply", str(row.supply)), user, row)
        add(("team", team, "priority", priority), user, row)
    return {r: RecentUse.of(_users(r, found, subtrees)) for r in removals}


def _users(
    r: Removal, found: Mapping[tuple[str, ...], Mapping[str, int]], subtrees: Mapping[str, frozenset[str]]
) -> Mapping[str, int]:
    match r.kind:
        case RemovalKind.CLUSTER | RemovalKind.POOL:
            return found.get((r.kind.value, r.name), {})
        case RemovalKind.SLICE:
            return found.get(("slice", r.name, r.what), {})
        case RemovalKind.PRIORITY if not r.what:
            return found.get(("priority", r.name), {})
        case RemovalKind.TEAM:
            return found.get(("team", r.name), {})
        case RemovalKind.MEMBER:
            return {u: n for u, n in found.get(("team", r.name), {}).items() if u == r.what}
    label = "priority" if r.kind is RemovalKind.PRIORITY else "supply"
    users: dict[str, int] = {}
    for team in subtrees.get(r.name, frozenset({r.name})):
        for user, seconds in found.get(("team", team, label, r.what), {}).items():
            users[user] = users.get(user, 0) + seconds
    return users


def _queries(
    removals: Iterable[Removal], subtrees: Mapping[str, frozenset[str]]
) -> list[tuple[tuple[Dimension, ...], UsageFilter]]:
    clusters: set[str] = set()
    pools: set[str] = set()
    teams: set[str] = set()
    priorities: set[str] = set()
    for r in removals:
        if r.kind is RemovalKind.CLUSTER:
            clusters.add(r.name)
        elif r.kind in _OF_POOLS:
            pools.add(r.name)
        elif r.kind is RemovalKind.PRIORITY and not r.what:
            priorities.add(r.name)
        else:
            teams |= subtrees.get(r.name, frozenset({r.name}))
    queries = [
        (_BY_CLUSTER, clusters, UsageFilter(clusters=frozenset(clusters))),
        ((Label.USER,), pools, UsageFilter(pools=frozenset(pools))),
        (_BY_TEAM, teams, UsageFilter(teams=frozenset(teams))),
        (_BY_PRIORITY, priorities, UsageFilter(priorities=frozenset(priorities))),
    ]
    return [(by, which) for by, names, which in queries if names]


def _subtrees(fleets: Iterable[Fleet]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for fleet in fleets:
        tree = TeamTree(fleet.teams)
        for team in fleet.teams:
            below = frozenset(str(t.name) for t in tree.subtree(team))
            found[team.name] = found.get(team.name, frozenset()) | below
    return found
