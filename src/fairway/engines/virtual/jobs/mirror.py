"""Mirror the jobs of a virtual cluster from the journal of its simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from fairway.engines.port import MirrorBatch
from fairway.engines.virtual.cluster import ClusterInstance
from fairway.explain.findings import Finding, WaitFacts
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet
from fairway.model.job import Attempt, Ending, EngineId, JobState, Order, SeenJob
from fairway.model.labels import kept_labels
from fairway.simulate.cluster import jobs

WAIT_SECONDS: Final = 1.0
"""How long `changes` waits for a change."""
POLL_SECONDS: Final = 0.1
"""How often it checks the journal, because submit and cancel do not notify it."""

REASON_SECONDS: Final = 10.0
"""How often the reasons of waiting jobs are reported again, because they change while the jobs do not."""
MAX_REASONS: Final = 2_000
"""Waiting jobs whose reasons are reported again; of a longer queue, the oldest."""

STATES: Final = {
    jobs.SimState.EXPECTED: JobState.WAITING,
    jobs.SimState.WAITING: JobState.WAITING,
    jobs.SimState.HELD: JobState.HELD,
    jobs.SimState.RUNNING: JobState.RUNNING,
    jobs.SimState.DONE: JobState.DONE,
    jobs.SimState.FAILED: JobState.FAILED,
    jobs.SimState.CANCELLED: JobState.CANCELLED,
    jobs.SimState.TIMEOUT: JobState.TIMED_OUT,
}
ENDINGS: Final = {
    jobs.SimEnding.DONE: Ending.DONE,
    jobs.SimEnding.FAILED: Ending.FAILED,
    jobs.SimEnding.CANCELLED: Ending.CANCELLED,
    jobs.SimEnding.TIMEOUT: Ending.TIMED_OUT,
    jobs.SimEnding.RECLAIMED: Ending.PREEMPTED,
    jobs.SimEnding.OUTRANKED: Ending.PREEMPTED,
    jobs.SimEnding.NODE_LOST: Ending.NODE_LOST,
    jobs.SimEnding.EVICTED: Ending.REQUEUED,
}
REASONS: Final = {
    jobs.SimEnding.RECLAIMED: "Preempted: another team reclaimed its guaranteed GPUs",
    jobs.SimEnding.OUTRANKED: "Preempted by a job with a higher priority",
    jobs.SimEnding.NODE_LOST: "A node of the job failed",
    jobs.SimEnding.EVICTED: "Evicted by a policy change",
    jobs.SimEnding.TIMEOUT: "The time limit was reached",
}
EXITS: Final = frozenset((jobs.SimEnding.DONE, jobs.SimEnding.FAILED))


class VirtualMirror:
    """The part of the virtual engine that mirrors all jobs, Fairway's and native ones."""

    _instance: ClusterInstance
    _waits: Mapping[int, jobs.Wait] = MappingProxyType({})
    """Why jobs waited when reasons were last reported."""
    _waits_due: float = 0.0
    _label_keys: tuple[str, ...] = ()
    """The keys of labels that the fleet keeps for cost."""

    async def changes(self, mark: str | None, fleet: Fleet) -> MirrorBatch:
        """Return the jobs that changed after `mark`; a snapshot of all jobs if the mark is unknown."""
        instance = self._instance
        self._label_keys = fleet.cost.labels
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_SECONDS
        while True:
            instance.sync()
            batch = self._changes_since(mark)
            if not batch.snapshot and loop.time() >= self._waits_due:
                batch = replace(batch, jobs=(*batch.jobs, *self._changed_reasons(batch.jobs)))
                self._waits_due = loop.time() + REASON_SECONDS
            left = until - loop.time()
            if batch.jobs or batch.snapshot or left <= 0:
                return batch
            due = instance.simulator.next_at()
            soon = POLL_SECONDS if due is None else max(0.001, instance.seconds_until(due))
            await asyncio.sleep(min(left, POLL_SECONDS, soon))

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        instance = self._instance
        self._label_keys = fleet.cost.labels
        instance.sync()
        numbers = {engine_id: instance.job_number(engine_id) for engine_id in ids}
        return {key: self._seen_job(number) for key, number in numbers.items() if number is not None}

    async def explain(self, engine_id: EngineId, fleet: Fleet) -> WaitFacts | None:
        """Return why a job waits, as of now."""
        instance = self._instance
        instance.sync()
        number = instance.job_number(engine_id)
        wait = None if number is None else instance.simulator.job(number).wait
        if number is None or wait is None:
            return None
        ahead = tuple(map(instance.engine_id, instance.simulator.ahead(number)))
        return WaitFacts(
            code=wait.code,
            findings=(Finding(wait.code, wait.message),),
            ahead=ahead,
            ahead_count=len(ahead),
            other="" if wait.job is None else instance.engine_id(wait.job),
        )

    async def never_fits(self, order: Order, fleet: Fleet) -> Refused | None:
        """Return None: `preview` refuses what no node could hold."""
        return None

    def _changes_since(self, mark: str | None) -> MirrorBatch:
        instance, simulator = self._instance, self._instance.simulator
        now = f"{instance.id}/{simulator.change_count}"
        before, _, count = (mark or "").partition("/")
        after = int(count) if before == instance.id and count.isdecimal() else None
        changed = () if after is None else simulator.changes(after)
        if after is None or len(changed) < simulator.change_count - after:
            return MirrorBatch(self._seen_jobs(view.id for view in simulator.jobs()), now, snapshot=True)
        return MirrorBatch(self._seen_jobs({change.job: None for change in changed}), now)

    def _changed_reasons(self, reported: Iterable[SeenJob]) -> tuple[SeenJob, ...]:
        """Return waiting jobs that wait for another reason than before, without those that are reported."""
        before, self._waits = self._waits, self._instance.simulator.waits(MAX_REASONS)
        known = {job.engine_id for job in reported}
        changed = (number for number, wait in self._waits.items() if before.get(number) != wait)
        return self._seen_jobs(n for n in changed if self._instance.engine_id(n) not in known)

    def _seen_jobs(self, numbers: Iterable[int]) -> tuple[SeenJob, ...]:
        has_job = self._instance.simulator.has_job
        return tuple(self._seen_job(number) for number in numbers if has_job(number))

    def _seen_job(self, number: int) -> SeenJob:
        instance = self._instance
        view = instance.simulator.job(number)
        request = view.request
        attempts = tuple(self._attempt(request, run) for run in instance.simulator.attempts(number))
        last = attempts[-1] if attempts else None
        ended = view.ended is not None
        return SeenJob(
            engine_id=instance.engine_id(number),
            name=request.name or "job",
            user=request.user,
            team=view.team,
            state=STATES[view.state],
            submitted_at=instance.wall_time(view.submitted),
            supply=request.supply,
            gpus=request.gpus,
            nodes=request.nodes,
            priority=view.priority,
            time_seconds=None if request.limit_seconds is None else int(request.limit_seconds),
            reason=view.wait.message if view.wait else last.reason if last and ended else "",
            reason_job=self._reason_job(view, last if ended else None),
            reason_code=view.wait.code if view.wait else "",
            attempts=attempts,
            ended_at=None if view.ended is None else instance.wall_time(view.ended),
            exit_code=last.exit_code if last and ended else None,
            project=request.project,
            labels=kept_labels(dict(request.labels), self._label_keys),
        )

    def _reason_job(self, view: jobs.JobView, last: Attempt | None) -> EngineId | None:
        if view.wait is not None and view.wait.job is not None:
            return self._instance.engine_id(view.wait.job)
        return last.by if last else None

    def _attempt(self, request: jobs.JobRequest, run: jobs.SimAttempt) -> Attempt:
        instance = self._instance
        reason = REASONS.get(run.ending, "") if run.ending else ""
        if run.by is not None:
            reason += ": {job}"
        return Attempt(
            started_at=instance.wall_time(run.started),
            nodes=run.nodes,
            devices=request.gpus * request.nodes,
            ended_at=None if run.ended is None else instance.wall_time(run.ended),
            ending=None if run.ending is None else ENDINGS[run.ending],
            exit_code=request.exit_code if run.ending in EXITS else None,
            reason=reason,
            by=None if run.by is None else instance.engine_id(run.by),
        )
