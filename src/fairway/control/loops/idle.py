"""The step of the idle loop: warn about, lower, requeue or cancel jobs whose GPUs do nothing.

It decides once for each window of GPU use that was read. A step is recorded before the engine is asked, and
its outcome after: so after a crash the next holder of the lease finishes it, and nobody takes it twice. One
that nobody finished in time is not taken any more, as the job may work again by then: it is decided anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

import structlog

from fairway.engines.port import NOT_RESUMABLE, Demotes, RequeueRequest, Runs, Unreachable
from fairway.ledger import Lease, Ledger
from fairway.ledger.records.jobs import DesiredState
from fairway.ledger.telemetry.idle import IdleCandidate, StoredStep, past_steps
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet
from fairway.model.idle import DONE_WORDS, IdleAction, IdleOutcome
from fairway.model.job import OPEN_JOBS, EngineId, Tolerates, format_job_id
from fairway.model.names import ClusterName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.model.team import TeamTree
from fairway.model.text import count, duration_text, span
from fairway.policy.idle import MAX_AGE_SECONDS, NextStep, RuleSet, next_step
from fairway.services.engine_cache import LazyEngine
from fairway.services.fleets import LastApplied

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

MAX_ACTIONS: Final = 50
"""Steps in one round; the rest is left to the next one."""
MAX_FAILURES: Final = 3
"""Steps in one round for which the engine does not answer, before the round ends."""
BATCH: Final = 200
"""Jobs whose windows are read at a time: a day of a job has 288."""

Ended = tuple[IdleOutcome, str]
"""How a step ended, and what is to be said about it."""
_GONE: Final[Ended] = (
    IdleOutcome.SKIPPED,
    "the job no longer ran, or was requeued before this was recorded",
)


class ApplyIdleRules:
    """Applies the idle rules of the applied fleet to the jobs of one cluster."""

    def __init__(
        self,
        cluster: ClusterName,
        build: Callable[[], Runs],
        ledger: Ledger,
        applied: LastApplied,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._engine = LazyEngine(build)
        self._ledger = ledger
        self._applied = applied
        self._clock = clock
        self._decided_at: tuple[int, int] | None = None
        """The apply and the end of the last window for which every step was taken."""

    async def __call__(self, lease: Lease) -> None:
        """Finish what was begun, then take the steps that are due; does nothing before the first apply."""
        applied = await self._applied.get()
        if applied is None:
            return
        await self._finish(lease, applied.fleet)
        mark = await self._ledger.gpu_use.mark(self._cluster) if applied.fleet.idle.rules else None
        if mark is None or self._clock() - mark.read_to > MAX_AGE_SECONDS:
            return
        if self._decided_at == (applied.apply, mark.read_to):
            return
        due = await self._due(applied.fleet, mark.read_to)
        await self._record(lease, applied.fleet, due[:MAX_ACTIONS])
        await self._finish(lease, applied.fleet)
        if len(due) <= MAX_ACTIONS:
            self._decided_at = (applied.apply, mark.read_to)

    async def close(self) -> None:
        """Close the engine; the next round builds a new one."""
        self._decided_at = None
        await self._engine.close()

    async def _due(self, fleet: Fleet, read_to: int) -> list[tuple[IdleCandidate, NextStep]]:
        """Return the steps that are due, the one that has waited longest first."""
        rules = RuleSet(fleet.idle.rules, TeamTree(fleet.teams))
        below = max(float(rule.below) for rule in fleet.idle.rules)
        found = await self._ledger.idle.candidates(self._cluster, read_to, below, fleet.diagnosis)
        governed = [(one, rule) for one in found if (rule := rules.rule_of(one.job)) is not None]
        now, due = self._clock(), []
        for part in (governed[i : i + BATCH] for i in range(0, len(governed), BATCH)):
            ids = [one.job.id for one, _ in part]
            windows = await self._ledger.idle.windows(ids)
            steps, keeps = await self._ledger.idle.steps(ids), await self._ledger.idle.keeps(ids)
            for one, rule in part:
                job = one.job
                keep = keeps.get(job.id)
                step = next_step(
                    job,
                    rule,
                    windows.get(job.id, ()),
                    read_to,
                    past_steps(steps.get(job.id, ())),
                    None if keep is None else keep.until.timestamp(),
                )
                if step is not None and step.due_at <= now:
                    due.append((one, step))
        return sorted(due, key=lambda pair: (pair[1].due_at, pair[0].job.id))

    async def _record(
        self, lease: Lease, fleet: Fleet, due: Sequence[tuple[IdleCandidate, NextStep]]
    ) -> None:
        if not due:
            return
        now = self._clock()
        async with self._ledger.writing(lease) as tx:
            for one, step in due:
                warns = step.step.action is IdleAction.WARN
                outcome = IdleOutcome.DRY_RUN if step.rule.dry_run else IdleOutcome.DONE if warns else None
                number = await tx.idle.record(one.job.id, step, now, outcome)
                if number is None:
                    continue
                log.info(
                    "idle rule",
                    cluster=self._cluster,
                    rule=step.rule.name,
                    action=step.step.action,
                    job=format_job_id(one.job.id),
                    dry_run=step.rule.dry_run,
                    why=step.evidence,
                )
                if outcome is IdleOutcome.DONE:
                    await tx.notices.add([warning(number, one, step, fleet)])

    async def _finish(self, lease: Lease, fleet: Fleet) -> None:
        """Take the steps that are recorded and not finished. Raises Unreachable if some of them stay open."""
        failures: list[Unreachable] = []
        for step in await self._ledger.idle.open_steps(self._cluster, MAX_ACTIONS):
            one = await self._ledger.idle.candidate(step.job, fleet.diagnosis)
            try:
                outcome, detail = await self._take(step, one, fleet)
            except Unreachable as error:
                failures.append(error)
                if len(failures) == MAX_FAILURES:
                    break
                continue
            async with self._ledger.writing(lease) as tx:
                await tx.idle.finish(step.id, outcome, detail)
                if outcome is IdleOutcome.DONE and one is not None:
                    await tx.notices.add([_report(step, one)])
        if failures:
            raise failures[0]

    async def _take(self, step: StoredStep, one: IdleCandidate | None, fleet: Fleet) -> Ended:
        """Take a step. Raises Unreachable if the engine does not answer: the step stays open."""
        obsolete = await self._obsolete(step, one)
        if one is None or obsolete is not None:
            if step.action is IdleAction.REQUEUE:
                await self._complete_requeue(step, fleet)
            return obsolete or _GONE
        match step.action:
            case IdleAction.CANCEL:
                by = f"idle rule {step.rule}"
                await self._ledger.jobs.set_desired_state([step.job], DesiredState.CANCEL, by=by)
                return IdleOutcome.DONE, ""
            case IdleAction.LOWER:
                return await self._lower(one, fleet)
            case IdleAction.REQUEUE:
                return await self._requeue(one, step.at, fleet)
            case IdleAction.WARN:
                return IdleOutcome.DONE, ""

    async def _obsolete(self, step: StoredStep, one: IdleCandidate | None) -> Ended | None:
        """Return why a step that was recorded is not taken any more. Returns None if it is."""
        at, now = step.at.timestamp(), self._clock()
        if now - at > MAX_AGE_SECONDS:
            return IdleOutcome.EXPIRED, "it was not done in time, and is decided anew"
        if one is None or one.job.started_at >= at:
            return _GONE
        keep = (await self._ledger.idle.keeps([step.job])).get(step.job)
        if keep is not None and keep.until.timestamp() > now:
            return IdleOutcome.SKIPPED, f"{keep.by} postponed it"
        return None

    async def _complete_requeue(self, step: StoredStep, fleet: Fleet) -> None:
        """Complete a requeue that was begun, lest the job stay out of the queue; begin none."""
        (row,) = await self._ledger.jobs.rows([step.job])
        engine = self._engine.get()
        if row.engine_id is not None and row.state in OPEN_JOBS and isinstance(engine, Demotes):
            request = RequeueRequest(row.engine_id, step.at, resumes=True, begin=False)
            await engine.requeue([request], fleet)

    async def _lower(self, one: IdleCandidate, fleet: Fleet) -> Ended:
        lowest = min(fleet.priorities, key=lambda p: p.rank)
        if one.job.priority == lowest.name:
            return IdleOutcome.SKIPPED, f"its priority is {lowest.name} already"
        engine = self._engine.get()
        if not isinstance(engine, Demotes):
            return IdleOutcome.SKIPPED, "this cluster's engine cannot lower a running job"
        return _ended(one, await engine.lower([one.engine_id], fleet))

    async def _requeue(self, one: IdleCandidate, at: datetime, fleet: Fleet) -> Ended:
        detail = await self._ledger.jobs.one(one.job.id)
        spec = None if detail is None else detail.spec
        if spec is not None and Tolerates.PREEMPTION not in spec.tolerates:
            return IdleOutcome.SKIPPED, "it does not say that it can resume (tolerates: [preemption])"
        engine = self._engine.get()
        if not isinstance(engine, Demotes):
            return IdleOutcome.SKIPPED, "this cluster's engine cannot requeue a running job"
        request = RequeueRequest(one.engine_id, at, resumes=spec is not None)
        return _ended(one, await engine.requeue([request], fleet))


def _ended(one: IdleCandidate, refusals: Mapping[EngineId, Refused]) -> Ended:
    refusal = refusals.get(one.engine_id)
    if refusal is None:
        return IdleOutcome.DONE, ""
    skipped = refusal.code == NOT_RESUMABLE
    return (IdleOutcome.SKIPPED if skipped else IdleOutcome.REFUSED), refusal.message


def warning(number: int, one: IdleCandidate, step: NextStep, fleet: Fleet) -> Notice:
    """Build the notice that warns the owner of an idle job."""
    word = format_job_id(one.job.id)
    after = step.rule.step_after(step.step.action)
    then = (
        f"In {span(after.after_seconds)} it is {DONE_WORDS[after.action]} unless it works again, or you run:"
        if after is not None
        else "If it is to stay as it is, run:"
    )
    longest = duration_text(min(4 * 3600, fleet.idle.longest_keep_seconds))
    return Notice(
        NoticeKind.IDLE,
        key=f"idle:{number}",
        subject=f"Job {word} ({one.job.name}) holds {count(one.job.devices, 'idle GPU')}",
        text=f"{word} of {one.job.user or 'unknown'} on {one.cluster}: {step.evidence} "
        f"(idle rule {step.rule.name}).\n{then}\n  fairway keep {word} --for {longest}\n"
        f"If it is not needed any more:\n  fairway cancel {word}",
        team=one.job.team,
        user=one.job.user or None,
        job=one.job.id,
    )


def _report(step: StoredStep, one: IdleCandidate) -> Notice:
    word = format_job_id(step.job)
    return Notice(
        NoticeKind.IDLE,
        key=f"idle:{step.id}",
        subject=f"Job {word} ({one.job.name}) was {DONE_WORDS[step.action]}: its GPUs were idle",
        text=f"{word} of {one.job.user or 'unknown'} on {one.cluster}: {step.evidence} "
        f"(idle rule {step.rule}).\n  fairway describe job {word}",
        team=one.job.team,
        user=one.job.user or None,
        job=step.job,
    )
