"""Explain why a job waits, from its engine, the ledger and the policy together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from fairway.cost.budget_text import SPENT_CODE
from fairway.engines.port import Explains
from fairway.explain.alternatives import fits, smaller_requests
from fairway.explain.findings import NO_FACTS, ROOM, TURN, Finding, WaitFacts, decide
from fairway.explain.limits import WaitingRequest, exceeded_limits
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobDetail, JobFilter, JobRow
from fairway.model.apply import Lifted
from fairway.model.errors import FairwayError
from fairway.model.fleet import EngineKind, Fleet, Pool
from fairway.model.job import NOT_STARTED_JOBS, EngineId, JobSpec, JobState, format_job_id
from fairway.model.names import SliceName, TeamName, UserName
from fairway.model.observation import Devices, free_devices
from fairway.model.team import Supply, TeamTree
from fairway.policy.placement import PlacementOptions, Start
from fairway.services.convert import jobs as convert
from fairway.services.engine_cache import EngineCache
from fairway.services.jobs import FleetSource
from fairway.views.conditions import with_conditions
from fairway.views.jobs import STATE_WORDS
from fairway.views.why import WaitAnswer, build_why, pool_option, smaller_option
from fairway.wire import jobs as wire

ENGINE_SECONDS: Final = 15.0
"""How long an engine may take to report on one job."""
_MAX_JOBS: Final = 2000
_AFTER: Final = frozenset({"AfterAnother", "DependencyNeverMet"})
_STOPS: Final = frozenset({"TeamHeld", "QueueInactive"})
_MAX_AHEAD: Final = 5
_MAX_ENDING: Final = 3
_MAX_POOLS: Final = 3
_CAN_CHANGE: Final = frozenset(
    {ROOM, TURN, "NoRackFits", "QuotaInUse", "ReservedForAnother", "TeamAtCeiling", "UserLimit"}
)
"""Reasons that a smaller request or another pool may avoid."""
FindOptions = Callable[[JobSpec, UserName], Awaitable[PlacementOptions]]


class JobExplainer:
    """Explains jobs of every cluster. Safe for concurrent use."""

    def __init__(
        self,
        ledger: Ledger,
        fleets: FleetSource,
        engines: EngineCache,
        find_options: FindOptions | None = None,
    ) -> None:
        """`find_options`: finds the pools that fit a job now; without it, no other pools are suggested."""
        self._ledger = ledger
        self._fleets = fleets
        self._engines = engines
        self._find_options = find_options

    async def why(self, job: wire.JobDetail, found: JobDetail) -> wire.Why:
        """Explain a job. `job` is what the caller may read of `found`, with or without its spec."""
        row = found.row
        fleet = await self._fleets.current()
        dependencies: list[wire.Job] = []
        unreachable, left_by = "", None
        if row.state is JobState.QUEUED:
            after = [a.job for a in found.spec.after] if found.spec and job.spec else []
            dependencies = [convert.job(r) for r in await self._ledger.jobs.rows(after)]
            clusters = {c.cluster: c for c in await self._ledger.clusters.all()}
            state = clusters.get(row.cluster)
            unreachable = "" if state is None or state.reachable else state.message
            applied = await self._ledger.applies.applied_to(row.cluster)
            left_by = applied.lifted_by if applied and applied.lifted is Lifted.LEFT else None
        # The virtual engine's sentences are Fairway's own.
        plain = any(c.name == row.cluster and c.engine is EngineKind.VIRTUAL for c in fleet.clusters)
        answer = facts = None
        if row.state is JobState.WAITING and job.code != SPENT_CODE:
            facts, problem = await self._facts(row, fleet)
            answer = await self._answer(row, fleet, facts, problem, plain=plain)
        now = datetime.now(UTC)
        why = build_why(job, dependencies, unreachable, now, left_by=left_by, plain=plain, answer=answer)
        if answer is not None:
            alternatives = await self._alternatives(job, found, fleet, answer, facts)
            queue = await self._queue(row, fleet, facts)
            why = why.model_copy(update={"queue": queue, "alternatives": alternatives})
        conditions = [c.condition for c in await self._ledger.conditions.all() if c.cluster == row.cluster]
        return with_conditions(why, conditions)

    async def waiting_task(self, row: JobRow) -> JobRow | None:
        """Return a waiting task of the array that a job is the first task of, if the job itself started."""
        if row.array != row.id or row.state in NOT_STARTED_JOBS:
            return None
        which = JobFilter(array=row.id, states=NOT_STARTED_JOBS)
        return next(iter(await self._ledger.jobs.page(which, limit=1)), None)

    async def _answer(
        self, row: JobRow, fleet: Fleet, facts: WaitFacts | None, problem: str, *, plain: bool
    ) -> WaitAnswer | None:
        """Decide why a job waits. Returns None if its stored reason is all there is, and is readable."""
        if facts is None and plain and not problem:
            return None
        code = facts.code if facts else row.reason_code
        applied = await self._fleets.applied() or fleet
        limits = await self._limits(row, applied)
        found = decide(code, facts or NO_FACTS, limits)
        if facts is not None and facts.other:
            (name,) = await self._names(row, [facts.other])
            found = Finding(found.code, found.text.replace("{job}", name))
        if facts is not None:
            found = _refine(found, row, applied)
        facts = facts or WaitFacts(row.reason_code, row.reason)
        hidden = facts.hidden_by if found.code != code or not code else ""
        return WaitAnswer(
            code=found.code,
            text=found.text or await self._others(found.code, row, facts),
            engine=facts.reason,
            hidden_by=hidden,
            problem=problem,
        )

    async def _facts(self, row: JobRow, fleet: Fleet) -> tuple[WaitFacts | None, str]:
        """Ask the job's engine. Returns None, and why, if it cannot be asked."""
        cluster = next((c for c in fleet.clusters if c.name == row.cluster), None)
        if cluster is None or row.engine_id is None:
            return None, ""
        engine = await self._engines.get(*fleet.engine_parts(cluster.name))
        if not isinstance(engine, Explains):
            return None, ""
        try:
            async with asyncio.timeout(ENGINE_SECONDS):
                return await engine.explain(row.engine_id, fleet), ""
        except FairwayError as error:
            return None, error.message
        except TimeoutError:
            return None, f"{row.cluster} did not respond within {ENGINE_SECONDS:g} s"

    async def _limits(self, row: JobRow, fleet: Fleet) -> tuple[Finding, ...]:
        request = await self._request(row, fleet)
        return () if request is None else tuple(exceeded_limits(request, TeamTree(fleet.teams)))

    async def _request(self, row: JobRow, fleet: Fleet) -> WaitingRequest | None:
        """Return what a job requests and what is in use. Returns None if its team has no limits to check."""
        tree = TeamTree(fleet.teams)
        if row.pool is None or row.team is None or row.team not in tree:
            return None
        supply = Supply(row.pool, row.slice)
        held: dict[TeamName, int] = {}
        for c in await self._ledger.jobs.counts(row.cluster):
            if c.team is None or c.team not in tree or c.state is not JobState.RUNNING:
                continue
            if (c.pool, c.slice) == (supply.pool, supply.slice):
                for team in (tree[c.team], *tree.ancestors(tree[c.team])):
                    held[team.name] = held.get(team.name, 0) + c.devices
        of_user = JobFilter(
            cluster=row.cluster, team=row.team, user=row.user, pool=row.pool, states=(JobState.RUNNING,)
        )
        running = await self._ledger.jobs.page(of_user, limit=_MAX_JOBS)
        return WaitingRequest(
            team=tree[row.team],
            user=row.user,
            supply=supply,
            devices=row.devices,
            seconds=row.time_seconds,
            held=held,
            held_by_user=sum(r.devices for r in running if r.slice == supply.slice),
        )

    async def _queue(self, row: JobRow, fleet: Fleet, facts: WaitFacts | None) -> wire.JobQueue | None:
        """Return the job's place in the queue of its supply; the engine's order if it reports one."""
        if row.pool is None:
            return None
        same = JobFilter(cluster=row.cluster, pool=row.pool, states=(JobState.WAITING,))
        waiting = [r for r in await self._ledger.jobs.page(same, limit=_MAX_JOBS) if r.slice == row.slice]
        if facts is not None and facts.ahead_count is not None:
            found = await self._ledger.jobs.by_engine_ids(row.cluster, facts.ahead)
            by_id = {r.engine_id: r for r in found}
            ahead = [r for id_ in facts.ahead if (r := by_id.get(EngineId(id_))) is not None]
            position = facts.ahead_count + 1
        else:
            ranks = {p.name: p.rank for p in fleet.priorities}

            def order(r: JobRow) -> tuple[int, datetime, int]:
                return -ranks.get(r.priority, 0) if r.priority else 0, r.submitted_at, r.id

            ahead = sorted((r for r in waiting if order(r) < order(row)), key=order)
            position = len(ahead) + 1
        runs = replace(same, states=(JobState.RUNNING,))
        running = [r for r in await self._ledger.jobs.page(runs, limit=_MAX_JOBS) if r.slice == row.slice]
        ends = sorted((at, r.id, r) for r in running if (at := _ends_at(r)) is not None)
        return wire.JobQueue(
            position=position,
            waiting=max(position, len(waiting)),
            ahead=[_queued(r, None) for r in ahead[:_MAX_AHEAD]],
            ending=[_queued(r, at) for at, _, r in ends[:_MAX_ENDING]],
        )

    async def _alternatives(
        self, job: wire.JobDetail, found: JobDetail, fleet: Fleet, answer: WaitAnswer, facts: WaitFacts | None
    ) -> list[wire.Alternative]:
        """Return what could start now instead: a smaller request, or another pool."""
        row = found.row
        if row.pool is None or answer.code not in _CAN_CHANGE:
            return []
        options: list[wire.Alternative] = []
        pool = next((p for p in fleet.pools if p.name == row.pool), None)
        if pool is not None and row.array is None and not (facts and facts.other):
            free = await self._free(pool, row.slice)
            applied = await self._fleets.applied() or fleet
            request, tree = await self._request(row, applied), TeamTree(applied.teams)

            def allowed(devices: int) -> bool:
                return request is None or not any(exceeded_limits(replace(request, devices=devices), tree))

            smaller = smaller_requests(row.gpus, row.nodes, free, allowed)
            options += [smaller_option(job, gpus, nodes) for gpus, nodes in smaller]
        if self._find_options is not None and found.spec is not None and job.spec is not None and pool:
            options += await self._other_pools(job, found, fleet, pool)
        return options

    async def _other_pools(
        self, job: wire.JobDetail, found: JobDetail, fleet: Fleet, own: Pool
    ) -> list[wire.Alternative]:
        row, spec = found.row, found.spec
        if spec is None or self._find_options is None:
            return []
        try:
            placements = await self._find_options(replace(spec, pool=None, array=()), row.user)
        except FairwayError:
            return []  # the team or its grants have changed meanwhile
        price = next((o.price for o in placements.fits if o.supply == Supply(own.name, row.slice)), own.price)
        options = []
        for option in placements.fits:
            pool = fleet.pool(option.supply.pool)
            if option.start not in (Start.GUARANTEED, Start.LENT) or pool.name == own.name:
                continue
            if fits(row.gpus, row.nodes, await self._free(pool, option.supply.slice)):
                change = option.price - price
                options.append(pool_option(job, option.supply, change, fleet.currency))
        return options[:_MAX_POOLS]

    async def _free(self, pool: Pool, slice_: SliceName | None) -> list[int]:
        """Return the free devices of each node of a pool, as last observed."""
        seen = await self._ledger.pools.pool(pool.cluster, pool.name, largest=0, select_nodes=lambda _: ())
        return [
            free_devices(r.health, Devices(pool.name, "", r.slice, r.total, r.in_use, r.unhealthy))
            for r in seen.devices
            if r.slice == slice_
        ]

    async def _others(self, code: str, row: JobRow, facts: WaitFacts) -> str:
        """Name the jobs that this one waits for, by Fairway's id and name."""
        if code == TURN and facts.ahead:
            names = ", ".join(await self._names(row, facts.ahead))
            more = (facts.ahead_count or 0) - len(facts.ahead)
            return f"Ahead in the queue: {names}" + (f" and {more} more" if more > 0 else "")
        if facts.same_as:
            (name,) = await self._names(row, [facts.same_as])
            return f"The job requests the same as {name}, which cannot start either"
        if code in _AFTER and facts.after:
            return f"The job starts after {', '.join(await self._names(row, facts.after, states=True))}"
        return ""

    async def _names(self, row: JobRow, ids: Sequence[str], *, states: bool = False) -> list[str]:
        rows = {r.engine_id: r for r in await self._ledger.jobs.by_engine_ids(row.cluster, ids)}
        texts = []
        for engine_id in ids:
            other = rows.get(engine_id)  # type: ignore[call-overload]
            if other is None:
                texts.append(f"job {engine_id} of {row.cluster}")
                continue
            state = f", {STATE_WORDS[other.state]}" if states else ""
            by = f" by {other.user}" if other.user else ""
            texts.append(f"{other.name} ({format_job_id(other.id)}{state}){by}")
        return texts


def _ends_at(row: JobRow) -> datetime | None:
    """Return when its time limit ends a running job. Returns None if it has none."""
    if row.started_at is None or row.time_seconds is None:
        return None
    return row.started_at + timedelta(seconds=row.time_seconds)


def _queued(row: JobRow, ends_at: datetime | None) -> wire.QueuedJob:
    return wire.QueuedJob(
        id=format_job_id(row.id),
        name=row.name,
        user=row.user,
        team=row.team,
        devices=row.devices,
        ends_at=ends_at,
    )


def _refine(found: Finding, row: JobRow, fleet: Fleet) -> Finding:
    """Tell a team that is closed, and limits of the site, from what Fairway itself wrote."""
    team = next((t for t in fleet.teams if t.name == row.team), None)
    if found.code in _STOPS and team is not None and team.draining:
        return Finding("TeamDraining", found.text)
    if found.code == "TeamHeld" and (team is None or team.hold is None):
        return Finding("AccountLimit", found.text)
    if found.code == "TeamAtCeiling" and not found.text and not _is_limited(row, fleet):
        return Finding("AccountLimit", found.text)
    return found


def _is_limited(row: JobRow, fleet: Fleet) -> bool:
    """Return whether the policy limits what the job's team, an ancestor or one user may hold."""
    tree = TeamTree(fleet.teams)
    if row.team is None or row.team not in tree:
        return False
    team = tree[row.team]
    ceilings = [
        g.ceiling for t in (team, *tree.ancestors(team)) for g in t.grants if g.supply.pool == row.pool
    ]
    return team.limits.user_gpus is not None or any(ceiling is not None for ceiling in ceilings)
