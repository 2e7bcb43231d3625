"""Count what a fleet removes, and require that the caller confirms it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from fairway.ledger import Ledger
from fairway.ledger.records.fleet import PoolState
from fairway.ledger.records.jobs import JobCount
from fairway.model.fleet import Fleet
from fairway.model.job import JobState
from fairway.model.names import TeamName
from fairway.policy import removals as policy
from fairway.policy.recent_use import DAYS, RecentUse
from fairway.policy.removals import Removal, RemovalKind
from fairway.services.convert import policy as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets
from fairway.services.recent_use import recent_use
from fairway.views.removals import removal_text
from fairway.wire import policy as wire

RECENT: Final = timedelta(days=DAYS)

KNOWN_AT_ONCE: Final = frozenset(
    {RemovalKind.CLUSTER, RemovalKind.POOL, RemovalKind.TEAM, RemovalKind.BUDGET}
)
"""What a revision brings before it is applied: its clusters are tracked and its teams may submit."""


async def find_removals(ledger: Ledger, fleets: Fleets, fleet: Fleet) -> list[wire.Removal]:
    """List what `fleet` removes from the applied fleet, and from the newest one, which may not be applied."""
    number = await ledger.revisions.newest_id()
    applied, newest = await fleets.applied(), None if number is None else await fleets.at(number)
    found = dict.fromkeys(policy.find_removals(applied, fleet))
    known = {(r.kind, r.name) for r in found}
    for removal in policy.find_removals(newest, fleet):
        if removal.kind in KNOWN_AT_ONCE and (removal.kind, removal.name) not in known:
            found[removal] = None
    if not found:
        return []
    teams = [r.name for r in found if r.kind is RemovalKind.TEAM]
    history = await ledger.jobs.history(teams, datetime.now(UTC) - RECENT)
    pools, open_jobs = await ledger.clusters.pools(), await ledger.jobs.counts()
    used = await recent_use(ledger, [f for f in (applied, newest) if f is not None], list(found))
    return count_removals(list(found), history, pools, open_jobs, used, partial=fleet.partial)


def count_removals(
    removals: Iterable[Removal],
    history: Mapping[TeamName, int],
    pools: Iterable[PoolState],
    open_jobs: Iterable[JobCount],
    used: Mapping[Removal, RecentUse] | None = None,
    *,
    partial: bool = False,
) -> list[wire.Removal]:
    """Add to each removal the GPUs, jobs and users it is about, in the order of `RemovalKind`.

    `history` has the number of recent jobs of every team that ever had one; `used` who used what can be used;
    `partial`: the fleet file is.
    """
    users = used or {}
    gpus = Counter[tuple[RemovalKind, str]]()
    for state in pools:
        if state.slice is None:
            gpus[RemovalKind.CLUSTER, state.cluster] += state.total
            gpus[RemovalKind.POOL, state.pool or ""] += state.total
    running, waiting = Counter[tuple[RemovalKind, str]](), Counter[tuple[RemovalKind, str]]()
    for jobs in open_jobs:
        into = running if jobs.state is JobState.RUNNING else waiting
        into[RemovalKind.CLUSTER, jobs.cluster] += jobs.jobs
        into[RemovalKind.POOL, jobs.pool or ""] += jobs.jobs
        into[RemovalKind.TEAM, jobs.team or ""] += jobs.jobs
    order = list(RemovalKind)
    return [
        wire.Removal(
            kind=r.kind,
            name=r.name,
            what=r.what,
            value=r.value,
            detail=r.detail,
            gpus=gpus.get((r.kind, r.name)),
            running=running[r.kind, r.name],
            waiting=waiting[r.kind, r.name],
            recent=history.get(TeamName(r.name), 0) if r.kind is RemovalKind.TEAM else 0,
            used=convert.recent_use(users[r]) if r in users else None,
            needs_force=policy.needs_force(r, history),
            refused=partial and r.kind in policy.NEVER_BY_PARTIAL,
        )
        for r in sorted(removals, key=lambda r: order.index(r.kind))
    ]


def require_confirmed(removals: Iterable[wire.Removal], confirmed: Collection[str], *, force: bool) -> None:
    """Raise RequestError for removals that need force and were not confirmed by name, or are refused."""
    found = list(removals)
    refused = [r for r in found if r.refused]
    if refused:
        texts = "; ".join(removal_text(r) for r in refused)
        raise RequestError(
            ErrorKind.CONFLICT,
            "PartialFleetFile",
            f"not applied: the fleet file is partial, and would remove {texts}",
            "put its clusters, pools and teams into the whole file, which  fairway get fleet  prints; or, if "
            "it is the whole fleet, take out  partial: true",
        )
    missing = [r for r in found if r.needs_force and r.name not in confirmed]
    if missing and not force:
        texts = "; ".join(removal_text(r) for r in missing)
        raise RequestError(
            ErrorKind.CONFLICT,
            "RemovalsNotConfirmed",
            f"not applied: nobody confirmed what the fleet file removes: {texts}",
            "put it back into the fleet file; or, if all of it is meant, apply it with --force, or with "
            + " ".join(f"--remove {name}" for name in dict.fromkeys(r.name for r in missing)),
        )
