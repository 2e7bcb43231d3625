"""Read what the ledger knows of a waiting job: its limits and who reached them, its queue, the free GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from fairway.explain.findings import Finding, WaitFacts
from fairway.explain.limits import WaitingRequest, exceeded_limits
from fairway.explain.reasons import REASONS
from fairway.ledger import Ledger
from fairway.ledger.jobs.waiting import MAX_HOLDERS, MAX_ORDERED, UserHolding, WaitSum
from fairway.ledger.records.jobs import JobRow
from fairway.model.fleet import Fleet, Pool
from fairway.model.job import JobState, format_job_id
from fairway.model.names import SliceName, TeamName
from fairway.model.observation import Devices, free_devices
from fairway.model.team import Supply, TeamTree
from fairway.model.text import count
from fairway.services.rights import no_such_pool, no_such_team
from fairway.wire import jobs as wire

_OF_HOLDERS: Final = frozenset({"TeamAtCeiling", "UserLimit"})


@dataclass(frozen=True, slots=True)
class WaitReader:
    """Reads the waits of jobs from a ledger. Safe for concurrent use."""

    ledger: Ledger

    async def request(self, row: JobRow, fleet: Fleet) -> WaitingRequest | None:
        """Return what a job requests and what is in use. Returns None if its team has no limits to check."""
        tree = TeamTree(fleet.teams)
        if row.pool is None or row.team is None or row.team not in tree:
            return None
        supply = Supply(row.pool, row.slice)
        held: dict[TeamName, int] = {}
        for c in await self.ledger.jobs.counts(row.cluster):
            if c.team is None or c.team not in tree or c.state is not JobState.RUNNING:
                continue
            if (c.pool, c.slice) == (supply.pool, supply.slice):
                for team in (tree[c.team], *tree.ancestors(tree[c.team])):
                    held[team.name] = held.get(team.name, 0) + c.devices
        users = await self.ledger.waiting.holdings(row, [row.team])
        return WaitingRequest(
            team=tree[row.team],
            user=row.user,
            supply=supply,
            devices=row.devices,
            seconds=row.time_seconds,
            held=held,
            held_by_user=sum(u.devices for u in users if u.user == row.user),
        )

    async def limits(self, row: JobRow, fleet: Fleet) -> tuple[Finding, ...]:
        """Return the limits of the policy that a job would exceed, with who holds how much of each."""
        request = await self.request(row, fleet)
        if request is None:
            return ()
        tree = TeamTree(fleet.teams)
        return tuple(
            [await self._with_holders(f, row, tree) for f in exceeded_limits(request, tree)],
        )

    async def _with_holders(self, finding: Finding, row: JobRow, tree: TeamTree) -> Finding:
        if finding.code not in _OF_HOLDERS:
            return finding
        team = tree[finding.subject]
        teams = [team] if finding.code == "UserLimit" else list(tree.subtree(team))
        holdings = await self.ledger.waiting.holdings(row, [t.name for t in teams])
        if finding.code == "UserLimit":
            holdings = tuple(h for h in holdings if h.user == row.user)
        noun = Supply(row.pool, row.slice).noun if row.pool else "GPU"
        return replace(finding, evidence=tuple(_holding_text(h, noun) for h in holdings[:MAX_HOLDERS]))

    async def queue(self, row: JobRow, fleet: Fleet, facts: WaitFacts | None) -> wire.JobQueue | None:
        """Return the job's place in the queue of its supply; the engine's order if it reports one."""
        if row.pool is None:
            return None
        ranks = {p.name: p.rank for p in fleet.priorities}
        reported = None
        if facts is not None and facts.ahead_count is not None and len(facts.ahead) == facts.ahead_count:
            reported = facts.ahead
        teams = await self.ledger.waiting.queue(row, ranks, reported)
        if reported is not None:
            first = await self.ledger.jobs.by_engine_ids(row.cluster, reported[:MAX_ORDERED])
            place = {id_: n for n, id_ in enumerate(reported)}
            ahead = sorted(first, key=lambda r: place.get(r.engine_id or "", len(place)))
        else:
            ids = await self.ledger.waiting.first_ahead(row, ranks)
            by_id = {r.id: r for r in await self.ledger.jobs.rows(ids)}
            ahead = [by_id[id_] for id_ in ids if id_ in by_id]
        jobs_ahead = sum(t.ahead for t in teams)
        if facts is not None and facts.ahead_count is not None:
            jobs_ahead = facts.ahead_count
        own = [t for t in teams if t.team == row.team]
        ending = await self.ledger.waiting.ending(row)
        ends = {r.id: r for r in await self.ledger.jobs.rows(ending)} if ending else {}
        return wire.JobQueue(
            position=jobs_ahead + 1,
            waiting=max(jobs_ahead + 1, sum(t.waiting for t in teams)),
            devices_ahead=sum(t.devices_ahead for t in teams),
            team_ahead=sum(t.ahead for t in own),
            team_devices_ahead=sum(t.devices_ahead for t in own),
            ahead=[queued_job(r, None) for r in ahead],
            ending=[queued_job(ends[id_], ends_at(ends[id_])) for id_ in ending if id_ in ends],
        )

    async def free(self, pool: Pool, slice_: SliceName | None) -> list[int]:
        """Return the free devices of each node of a pool, as last observed."""
        seen = await self.ledger.pools.pool(pool.cluster, pool.name, largest=0, select_nodes=lambda _: ())
        return [
            free_devices(r.health, Devices(pool.name, "", r.slice, r.total, r.in_use, r.unhealthy))
            for r in seen.devices
            if r.slice == slice_
        ]


async def wait_sums(
    ledger: Ledger, fleet: Fleet, pool: str | None = None, team: str | None = None
) -> wire.WaitSums:
    """Sum what keeps jobs of a pool, or of a team and those inside it, from starting, by reason.

    Raises RequestError if there is no such pool or team.
    """
    if pool is not None and all(known.name != pool for known in fleet.pools):
        raise no_such_pool(pool)
    teams = None
    if team is not None:
        tree = TeamTree(fleet.teams)
        if (name := TeamName(team)) not in tree:
            raise no_such_team(team)
        teams = [inside.name for inside in tree.subtree(tree[name])]
    return sum_waits(await ledger.waiting.sums(pool=pool, teams=teams))


def sum_waits(sums: Iterable[WaitSum]) -> wire.WaitSums:
    """Sum the waits of several clusters and pools by reason, the most GPU-hours first."""
    by_code: dict[str, list[WaitSum]] = {}
    for one in sums:
        by_code.setdefault(one.code, []).append(one)
    reasons = [_wait_sum(code, found) for code, found in by_code.items()]
    return wire.WaitSums(reasons=sorted(reasons, key=lambda r: (-r.gpu_hours, r.code)))


def _wait_sum(code: str, found: Sequence[WaitSum]) -> wire.WaitSum:
    known = REASONS.get(code) or REASONS["EngineSays" if code else "EngineSilent"]
    return wire.WaitSum(
        code=code,
        text=known.means,
        hint=known.remedy,
        jobs=sum(one.jobs for one in found),
        devices=sum(one.devices for one in found),
        gpu_hours=round(sum(one.device_seconds for one in found) / 3600, 1),
        largest=[format_job_id(id_) for one in found for id_ in one.largest][:3],
    )


def _holding_text(holding: UserHolding, noun: str) -> str:
    ids = ", ".join(format_job_id(id_) for id_ in holding.largest)
    more = f" and {holding.jobs - len(holding.largest)} more" if holding.jobs > len(holding.largest) else ""
    jobs = count(holding.jobs, "job")
    return f"{holding.user} holds {count(holding.devices, noun)} with {jobs}: {ids}{more}"


def ends_at(row: JobRow) -> datetime | None:
    """Return when its time limit ends a running job. Returns None if it has none."""
    if row.started_at is None or row.time_seconds is None:
        return None
    return row.started_at + timedelta(seconds=row.time_seconds)


def queued_job(row: JobRow, ends: datetime | None) -> wire.QueuedJob:
    """Return a job of a queue as it travels."""
    return wire.QueuedJob(
        id=format_job_id(row.id),
        name=row.name,
        user=row.user,
        team=row.team,
        devices=row.devices,
        ends_at=ends,
    )
