"""Explain why a job waits, from its engine, the ledger and the policy together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol

from fairway.cost.budget_text import SPENT_CODE
from fairway.engines.port import Explains
from fairway.explain.alternatives import fits, smaller_requests
from fairway.explain.binding import room_left, turn_left
from fairway.explain.findings import NO_FACTS, ROOM, TURN, Finding, WaitFacts, decide
from fairway.explain.limits import exceeded_limits
from fairway.explain.start_times import unknown_start
from fairway.ledger import Ledger
from fairway.ledger.jobs.waiting import MAX_ORDERED
from fairway.ledger.records.jobs import JobDetail, JobFilter, JobRow
from fairway.model.apply import Lifted
from fairway.model.errors import FairwayError
from fairway.model.fleet import EngineKind, Fleet, Pool
from fairway.model.job import NOT_STARTED_JOBS, JobSpec, JobState, format_job_id
from fairway.model.names import UserName
from fairway.model.team import Supply, TeamTree
from fairway.policy.placement import PlacementOptions, Start
from fairway.services.convert import jobs as convert
from fairway.services.engine_cache import EngineCache
from fairway.services.jobs import FleetSource
from fairway.services.rights import Person
from fairway.services.waits import Wait, WaitReader
from fairway.views.conditions import with_conditions
from fairway.views.expected_start import why_unknown
from fairway.views.jobs import STATE_WORDS
from fairway.views.why import WaitAnswer, build_why, pool_option, smaller_option, with_remaining
from fairway.wire import jobs as wire

ENGINE_SECONDS: Final = 15.0
"""How long an engine may take to report on one job."""
_DETAILS: Final = frozenset({"LicensesInUse", "ReservationWait"})
"""Findings that explain an engine's reason, and that prove nothing without it."""
_AFTER: Final = frozenset({"AfterAnother", "DependencyNeverMet"})
_STOPS: Final = frozenset({"TeamHeld", "QueueInactive"})
_MAX_POOLS: Final = 3
_CAN_CHANGE: Final = frozenset(
    {ROOM, TURN, "NoRackFits", "QuotaInUse", "ReservedForAnother", "TeamAtCeiling", "UserLimit"}
)
"""Reasons that a smaller request or another pool may avoid."""
FindOptions = Callable[[JobSpec, UserName], Awaitable[PlacementOptions]]


class FindsRemedies(Protocol):
    """Finds what would help a waiting job; implemented by `services.remedies.RemedyFinder`."""

    async def find(
        self, who: Person, job: wire.Job, row: JobRow, spec: JobSpec
    ) -> tuple[list[wire.Alternative], bool]: ...


class JobExplainer:
    """Explains jobs of every cluster. Safe for concurrent use."""

    def __init__(
        self,
        ledger: Ledger,
        fleets: FleetSource,
        engines: EngineCache,
        find_options: FindOptions | None = None,
        remedies: FindsRemedies | None = None,
    ) -> None:
        """`find_options`: finds the pools that fit a job now; without it, no other pools are suggested.

        `remedies`: verifies in the model what would help; without it, what would start now is suggested.
        """
        self._ledger = ledger
        self._fleets = fleets
        self._engines = engines
        self._find_options = find_options
        self._remedies = remedies
        self._waits = WaitReader(ledger)

    async def why(self, job: wire.JobDetail, found: JobDetail, person: Person | None = None) -> wire.Why:
        """Explain a job. `job` is what the caller may read of `found`, with or without its spec.

        What would help is for a `person` who may change the job.
        """
        row = found.row
        fleet = await self._fleets.current()
        applied = await self._fleets.applied() or fleet
        dependencies: list[wire.Job] = []
        left_by = None
        if row.state is JobState.QUEUED:
            after = [a.job for a in found.spec.after] if found.spec and job.spec else []
            dependencies = [convert.job(r) for r in await self._ledger.jobs.rows(after)]
            cluster = await self._ledger.applies.applied_to(row.cluster)
            left_by = cluster.lifted_by if cluster and cluster.lifted is Lifted.LEFT else None
        # The virtual engine's sentences are Fairway's own.
        plain = any(c.name == row.cluster and c.engine is EngineKind.VIRTUAL for c in fleet.clusters)
        answer = facts = queue = wait = None
        if row.state in NOT_STARTED_JOBS:
            asks = row.state is JobState.WAITING and job.code != SPENT_CODE
            wait, facts, problem = await self._read(row, fleet, applied, asks=asks)
            if asks:
                answer = await self._answer(row, fleet, applied, facts, wait, problem, plain=plain)
        now = datetime.now(UTC)
        unsent = wait.away if wait is not None and row.state is JobState.QUEUED else ""
        why = build_why(job, dependencies, unsent, now, left_by=left_by, plain=plain, answer=answer)
        if wait is not None and job.last_seen_at is None:
            queue = await self._waits.queue(row, fleet, facts, wait.ending)
            why = with_remaining(why, job, _remaining(row, fleet, facts, wait, queue))
            why = why.model_copy(update={"expected": _expected(job, why, wait, now)})
        if answer is not None and wait is not None:
            helps, pending = await self._helps(job, found, person, fleet, applied, answer, facts, wait)
            update = {"queue": queue, "alternatives": helps, "alternatives_pending": pending}
            why = why.model_copy(update=update)
        conditions = [c.condition for c in await self._ledger.conditions.all() if c.cluster == row.cluster]
        return with_conditions(why, conditions)

    async def _read(
        self, row: JobRow, fleet: Fleet, applied: Fleet, *, asks: bool
    ) -> tuple[Wait, WaitFacts | None, str]:
        """Read the ledger, and `asks` the job's engine meanwhile.

        Returns no facts, and why, if the engine cannot be asked.
        """
        if not asks:
            return await self._waits.read(row, fleet, applied), None, ""
        asked = asyncio.create_task(self._facts(row, fleet))
        try:
            wait = await self._waits.read(row, fleet, applied)
            return wait, *(await asked)
        finally:
            asked.cancel()

    async def waiting_task(self, row: JobRow) -> JobRow | None:
        """Return a waiting task of the array that a job is the first task of, if the job itself started."""
        if row.array != row.id or row.state in NOT_STARTED_JOBS:
            return None
        which = JobFilter(array=row.id, states=NOT_STARTED_JOBS)
        return next(iter(await self._ledger.jobs.page(which, limit=1)), None)

    async def _answer(
        self,
        row: JobRow,
        fleet: Fleet,
        applied: Fleet,
        facts: WaitFacts | None,
        wait: Wait,
        problem: str,
        *,
        plain: bool,
    ) -> WaitAnswer | None:
        """Decide why a job waits. Returns None if its stored reason is all there is, and is readable."""
        if facts is None and plain and not problem:
            return None
        code = facts.code if facts else row.reason_code
        found = decide(code, facts or NO_FACTS, wait.limits)
        if facts is not None:
            found = _refine(found, row, applied)
        found = _counted(found, row, fleet, wait)
        facts = facts or WaitFacts(row.reason_code, row.reason)
        # Where the engine reports a reason, the answer shows it as evidence.
        hidden = "" if facts.reason else facts.hidden_by
        return WaitAnswer(
            code=found.code,
            text=found.text or await self._others(found.code, row, facts),
            engine=facts.reason,
            hidden_by=hidden,
            problem=problem,
            evidence=found.evidence,
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
                facts = await engine.explain(row.engine_id, fleet)
        except FairwayError as error:
            return None, error.message
        except TimeoutError:
            return None, f"{row.cluster} did not respond within {ENGINE_SECONDS:g} s"
        if facts is not None and facts.other:
            (name,) = await self._names(row, [facts.other])
            findings = (replace(f, text=f.text.replace("{job}", name)) for f in facts.findings)
            facts = replace(facts, findings=tuple(findings))
        return facts, ""

    async def _helps(
        self,
        job: wire.JobDetail,
        found: JobDetail,
        person: Person | None,
        fleet: Fleet,
        applied: Fleet,
        answer: WaitAnswer,
        facts: WaitFacts | None,
        wait: Wait,
    ) -> tuple[list[wire.Alternative], bool]:
        """Return what would help, and whether it is still being verified.

        Of a job that Fairway cannot change, it is what could start now if it were submitted again.
        """
        row, spec = found.row, found.spec
        if self._remedies is None or row.native or row.array is not None or spec is None:
            return await self._alternatives(job, found, fleet, applied, answer, facts, wait), False
        if person is None or job.spec is None or unknown_start(answer.code):
            return [], False
        return await self._remedies.find(person, job, row, spec)

    async def _alternatives(
        self,
        job: wire.JobDetail,
        found: JobDetail,
        fleet: Fleet,
        applied: Fleet,
        answer: WaitAnswer,
        facts: WaitFacts | None,
        wait: Wait,
    ) -> list[wire.Alternative]:
        """Return what could start now instead: a smaller request, or another pool."""
        row = found.row
        if row.pool is None or answer.code not in _CAN_CHANGE:
            return []
        options: list[wire.Alternative] = []
        pool = next((p for p in fleet.pools if p.name == row.pool), None)
        if pool is not None and row.array is None and not (facts and facts.other):
            request, tree = wait.request, TeamTree(applied.teams)

            def allowed(devices: int) -> bool:
                return request is None or not any(exceeded_limits(replace(request, devices=devices), tree))

            smaller = smaller_requests(row.gpus, row.nodes, wait.free, allowed)
            in_place = _in_place(row, fleet)
            options += [smaller_option(job, gpus, nodes, in_place=in_place) for gpus, nodes in smaller]
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
            if fits(row.gpus, row.nodes, await self._ledger.pools.free(pool.cluster, option.supply)):
                change = option.price - price
                options.append(
                    pool_option(job, option.supply, change, fleet.currency, in_place=_in_place(row, fleet))
                )
        return options[:_MAX_POOLS]

    async def _others(self, code: str, row: JobRow, facts: WaitFacts) -> str:
        """Name the jobs that this one waits for, by Fairway's id and name."""
        if code == TURN and facts.ahead:
            first = facts.ahead[:MAX_ORDERED]
            names = ", ".join(await self._names(row, first))
            more = (facts.ahead_count or 0) - len(first)
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


def _remaining(
    row: JobRow, fleet: Fleet, facts: WaitFacts | None, wait: Wait, queue: wire.JobQueue | None
) -> list[Finding]:
    """Return everything else that keeps a job from starting now: limits, jobs ahead, room."""
    found = list(wait.limits)
    known = [f for f in facts.findings if f.code not in _DETAILS] if facts else []
    found += [f for f in known if f.code not in {limit.code for limit in wait.limits}]
    pool = next((p for p in fleet.pools if p.name == row.pool), None)
    if pool is None:
        return found
    supply = Supply(pool.name, row.slice)
    if queue is not None:
        found += turn_left(queue.position - 1, queue.devices_ahead, supply)
    # Of nodes that take no work the ledger counts no GPU as free; the engine knows what they would hold.
    if not any(f.code in (ROOM, "NodesUnavailable") for f in known):
        found += room_left(row.gpus, row.nodes, wait.free, supply)
    return found


def _expected(job: wire.JobDetail, why: wire.Why, wait: Wait, now: datetime) -> wire.ForecastStart:
    """Return when a job is expected to start, or why nobody can know."""
    known = None if wait.forecast is None else convert.forecast_start(wait.forecast, now)
    reasons = [text for reason in why.reasons if (text := unknown_start(reason.code))]
    unknown = why_unknown(job, reasons, wait.away, known)
    if known is None or unknown:
        return wire.ForecastStart(earliest=None, expected=None, latest=None, unknown=unknown)
    return known


def _counted(found: Finding, row: JobRow, fleet: Fleet, wait: Wait) -> Finding:
    """Add the free GPUs to Kueue's message that nodes have too few of them: it has no numbers."""
    pool = next((p for p in fleet.pools if p.name == row.pool), None)
    engine = next((c.engine for c in fleet.clusters if c.name == row.cluster), None)
    if found.code != ROOM or pool is None or engine is not EngineKind.KUBERNETES:
        return found
    room = next(room_left(row.gpus, row.nodes, wait.free, Supply(pool.name, row.slice)), None)
    if room is None:
        return found
    return replace(found, text=room.text, evidence=(*found.evidence, *filter(None, (found.text,))))


def _in_place(row: JobRow, fleet: Fleet) -> bool:
    """Return whether the job can be changed where it is: Kubernetes lets nobody change another's Job."""
    kinds = {c.name: c.engine for c in fleet.clusters}
    return not (row.native and kinds.get(row.cluster) is EngineKind.KUBERNETES)


def _refine(found: Finding, row: JobRow, fleet: Fleet) -> Finding:
    """Tell a team that is closed, and limits of the site, from what Fairway itself wrote."""
    team = next((t for t in fleet.teams if t.name == row.team), None)
    if found.code in _STOPS and team is not None and team.draining:
        return replace(found, code="TeamDraining")
    if found.code == "TeamHeld" and (team is None or team.hold is None):
        return replace(found, code="AccountLimit")
    if found.code == "TeamAtCeiling" and not found.text and not _is_limited(row, fleet):
        return replace(found, code="AccountLimit")
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
