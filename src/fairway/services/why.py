"""Explain why a job waits, from its engine, the ledger and the policy together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from fairway.cost.budget_text import SPENT_CODE
from fairway.engines.port import Explains
from fairway.explain.findings import NO_FACTS, TURN, Finding, WaitFacts, decide
from fairway.explain.limits import WaitingRequest, exceeded_limits
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobDetail, JobFilter, JobRow
from fairway.model.apply import Lifted
from fairway.model.errors import FairwayError
from fairway.model.fleet import EngineKind, Fleet
from fairway.model.job import JobState, format_job_id
from fairway.model.names import TeamName
from fairway.model.team import Supply, TeamTree
from fairway.services.convert import jobs as convert
from fairway.services.engine_cache import EngineCache
from fairway.services.jobs import FleetSource
from fairway.views.conditions import with_conditions
from fairway.views.jobs import STATE_WORDS
from fairway.views.why import WaitAnswer, build_why
from fairway.wire import jobs as wire

ENGINE_SECONDS: Final = 15.0
"""How long an engine may take to report on one job."""
_MAX_JOBS: Final = 2000
_AFTER: Final = frozenset({"AfterAnother", "DependencyNeverMet"})
_STOPS: Final = frozenset({"TeamHeld", "QueueInactive"})
_NOT_STARTED: Final = (JobState.QUEUED, JobState.WAITING, JobState.HELD)


class JobExplainer:
    """Explains jobs of every cluster. Safe for concurrent use."""

    def __init__(self, ledger: Ledger, fleets: FleetSource, engines: EngineCache) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._engines = engines

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
        answer = None
        if row.state is JobState.WAITING and job.code != SPENT_CODE:
            answer = await self._answer(row, fleet, plain=plain)
        now = datetime.now(UTC)
        why = build_why(job, dependencies, unreachable, now, left_by=left_by, plain=plain, answer=answer)
        conditions = [c.condition for c in await self._ledger.conditions.all() if c.cluster == row.cluster]
        return with_conditions(why, conditions)

    async def waiting_task(self, row: JobRow) -> JobRow | None:
        """Return a waiting task of the array that a job is the first task of, if the job itself started."""
        if row.array != row.id or row.state in _NOT_STARTED:
            return None
        which = JobFilter(array=row.id, states=_NOT_STARTED)
        return next(iter(await self._ledger.jobs.page(which, limit=1)), None)

    async def _answer(self, row: JobRow, fleet: Fleet, *, plain: bool) -> WaitAnswer | None:
        """Ask the engine. Returns None if its stored reason is all there is, and is readable as it is."""
        facts, problem = await self._facts(row, fleet)
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
        engine = await self._engines.get(cluster, fleet.pools_of(cluster.name))
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
        tree = TeamTree(fleet.teams)
        if row.pool is None or row.team is None or row.team not in tree:
            return ()
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
        request = WaitingRequest(
            team=tree[row.team],
            user=row.user,
            supply=supply,
            devices=row.devices,
            seconds=row.time_seconds,
            held=held,
            held_by_user=sum(r.devices for r in running if r.slice == supply.slice),
        )
        return tuple(exceeded_limits(request, tree))

    async def _others(self, code: str, row: JobRow, facts: WaitFacts) -> str:
        """Name the jobs that this one waits for, by Fairway's id and name."""
        if code == TURN and facts.ahead:
            names = ", ".join(await self._names(row, facts.ahead))
            more = facts.ahead_count - len(facts.ahead)
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
