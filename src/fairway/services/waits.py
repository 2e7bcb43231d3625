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
from fairway.ledger.records.snapshots import JobForecast
from fairway.model.fleet import Fleet
from fairway.model.job import format_job_id
from fairway.model.names import TeamName
from fairway.model.team import Supply, TeamTree
from fairway.model.text import count
from fairway.services.rights import no_such_pool, no_such_team
from fairway.wire import jobs as wire

_OF_HOLDERS: Final = frozenset({"TeamAtCeiling", "UserLimit"})


@dataclass(frozen=True, slots=True)
class Wait:
    """What the ledger knows of a job that has not started, and of the supply that it waits for."""

    away: str
    """Why its cluster cannot be reached; empty: it can."""
    request: WaitingRequest | None
    """None: its team has no limits to check."""
    limits: tuple[Finding, ...]
    """The limits of the policy that it would exceed, with who holds how much of each."""
    free: Sequence[int]
    """The free devices of each node of its pool, as last observed; empty: nothing is known."""
    forecast: JobForecast | None
    ending: tuple[JobRow, ...]
    """The running jobs whose time limit ends soonest."""


@dataclass(frozen=True, slots=True)
class WaitReader:
    """Reads the waits of jobs from a ledger. Safe for concurrent use."""

    ledger: Ledger

    async def read(self, row: JobRow, fleet: Fleet, applied: Fleet) -> Wait:
        """Read the wait of a job, everything once. `applied`: the policy whose limits count."""
        async with self.ledger.reading() as ledger:
            state = next((c for c in await ledger.clusters.all() if c.cluster == row.cluster), None)
            tree = TeamTree(applied.teams)
            request = await _request(ledger, row, tree)
            limits = () if request is None else tuple(exceeded_limits(request, tree))
            pool = next((p for p in fleet.pools if p.name == row.pool), None)
            ending = await ledger.waiting.ending(row)
            ends = {r.id: r for r in await ledger.jobs.rows(ending)} if ending else {}
            return Wait(
                away="" if state is None or state.reachable else state.message,
                request=request,
                limits=tuple([await _with_holders(ledger, limit, row, tree) for limit in limits]),
                free=[]
                if pool is None
                else await ledger.pools.free(pool.cluster, Supply(pool.name, row.slice)),
                forecast=(await ledger.job_forecasts.of([row.id])).get(row.id),
                ending=tuple(ends[id_] for id_ in ending if id_ in ends),
            )

    async def queue(
        self, row: JobRow, fleet: Fleet, facts: WaitFacts | None, ending: Sequence[JobRow]
    ) -> wire.JobQueue | None:
        """Return the job's place in the queue of its supply; the engine's order if it reports one."""
        if row.pool is None:
            return None
        ranks = {p.name: p.rank for p in fleet.priorities}
        reported = None
        if facts is not None and facts.ahead_count is not None and len(facts.ahead) == facts.ahead_count:
            reported = facts.ahead
        async with self.ledger.reading() as ledger:
            teams = await ledger.waiting.queue(row, ranks, reported)
            if reported is not None:
                first = await ledger.jobs.by_engine_ids(row.cluster, reported[:MAX_ORDERED])
                place = {id_: n for n, id_ in enumerate(reported[:MAX_ORDERED])}
                ahead = sorted(first, key=lambda r: place.get(r.engine_id or "", len(place)))
            else:
                ids = await ledger.waiting.first_ahead(row, ranks)
                by_id = {r.id: r for r in await ledger.jobs.rows(ids)}
                ahead = [by_id[id_] for id_ in ids if id_ in by_id]
        jobs_ahead = sum(t.ahead for t in teams)
        if facts is not None and facts.ahead_count is not None:
            jobs_ahead = facts.ahead_count
        own = [t for t in teams if t.team == row.team]
        return wire.JobQueue(
            position=jobs_ahead + 1,
            waiting=max(jobs_ahead + 1, sum(t.waiting for t in teams)),
            devices_ahead=sum(t.devices_ahead for t in teams),
            team_ahead=sum(t.ahead for t in own),
            team_devices_ahead=sum(t.devices_ahead for t in own),
            ahead=[queued_job(r, None) for r in ahead],
            ending=[queued_job(r, ends_at(r)) for r in ending],
        )


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


async def _request(ledger: Ledger, row: JobRow, tree: TeamTree) -> WaitingRequest | None:
    """Return what a job requests and what is in use. Returns None if its team has no limits to check."""
    if row.pool is None or row.team is None or row.team not in tree:
        return None
    use = await ledger.waiting.use(row)
    held: dict[TeamName, int] = {}
    for name, devices in use.by_team.items():
        if name in tree:
            for team in (tree[name], *tree.ancestors(tree[name])):
                held[team.name] = held.get(team.name, 0) + devices
    return WaitingRequest(
        team=tree[row.team],
        user=row.user,
        supply=Supply(row.pool, row.slice),
        devices=row.devices,
        seconds=row.time_seconds,
        held=held,
        held_by_user=use.of_user,
    )


async def _with_holders(ledger: Ledger, finding: Finding, row: JobRow, tree: TeamTree) -> Finding:
    """Add to a limit who reached it."""
    if finding.code not in _OF_HOLDERS:
        return finding
    team = tree[finding.subject]
    teams = [team] if finding.code == "UserLimit" else list(tree.subtree(team))
    holdings = await ledger.waiting.holdings(row, [t.name for t in teams])
    if finding.code == "UserLimit":
        holdings = tuple(h for h in holdings if h.user == row.user)
    noun = Supply(row.pool, row.slice).noun if row.pool else "GPU"
    return replace(finding, evidence=tuple(_holding_text(h, noun) for h in holdings[:MAX_HOLDERS]))


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
