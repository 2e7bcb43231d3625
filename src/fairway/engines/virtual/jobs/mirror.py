"""Mirror the jobs of a virtual cluster from the journal of its simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairway.engines.port import MirrorBatch
from fairway.engines.virtual.cluster import ClusterInstance
from fairway.engines.virtual.simulator import jobs
from fairway.model.fleet import Fleet
from fairway.model.job import Attempt, Ending, EngineId, JobState, SeenJob

WAIT_SECONDS: Final = 1.0
"""How long `changes` waits for a change."""
POLL_SECONDS: Final = 0.1
"""How often it checks the journal, because submit and cancel do not notify it."""

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
    jobs.SimEnding.RECLAIMED: "what was lent went back to a team entitled to it",
    jobs.SimEnding.OUTRANKED: "a job that goes first took its place",
    jobs.SimEnding.NODE_LOST: "a node it ran on died",
    jobs.SimEnding.EVICTED: "a changed policy was applied with the word to evict",
    jobs.SimEnding.TIMEOUT: "its time limit was reached",
}
EXITS: Final = frozenset((jobs.SimEnding.DONE, jobs.SimEnding.FAILED))


class VirtualMirror:
    """The part of the virtual engine that mirrors all jobs, Fairway's and native ones."""

    _instance: ClusterInstance

    async def changes(self, mark: str | None, fleet: Fleet) -> MirrorBatch:
        """Return the jobs that changed after `mark`; a snapshot of all jobs if the mark is unknown."""
        instance = self._instance
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_SECONDS
        while True:
            instance.sync()
            batch = self._changes_since(mark)
            left = until - loop.time()
            if batch.jobs or batch.snapshot or left <= 0:
                return batch
            due = instance.simulator.next_at()
            soon = POLL_SECONDS if due is None else max(0.001, instance.seconds_until(due))
            await asyncio.sleep(min(left, POLL_SECONDS, soon))

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        instance = self._instance
        instance.sync()
        numbers = {engine_id: instance.job_number(engine_id) for engine_id in ids}
        return {key: self._seen_job(number) for key, number in numbers.items() if number is not None}

    def _changes_since(self, mark: str | None) -> MirrorBatch:
        instance, simulator = self._instance, self._instance.simulator
        now = f"{instance.id}/{simulator.change_count}"
        before, _, count = (mark or "").partition("/")
        after = int(count) if before == instance.id and count.isdecimal() else None
        changed = () if after is None else simulator.changes(after)
        if after is None or len(changed) < simulator.change_count - after:
            return MirrorBatch(self._seen_jobs(view.id for view in simulator.jobs()), now, snapshot=True)
        return MirrorBatch(self._seen_jobs({change.job: None for change in changed}), now)

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
            reason_code=view.wait.code if view.wait else "",
            attempts=attempts,
            ended_at=None if view.ended is None else instance.wall_time(view.ended),
            exit_code=last.exit_code if last and ended else None,
        )

    def _attempt(self, request: jobs.JobRequest, run: jobs.SimAttempt) -> Attempt:
        instance = self._instance
        reason = REASONS.get(run.ending, "") if run.ending else ""
        if run.by is not None:
            reason += f": job {instance.engine_id(run.by)}"
        return Attempt(
            started_at=instance.wall_time(run.started),
            nodes=run.nodes,
            devices=request.gpus * request.nodes,
            ended_at=None if run.ended is None else instance.wall_time(run.ended),
            ending=None if run.ending is None else ENDINGS[run.ending],
            exit_code=request.exit_code if run.ending in EXITS else None,
            reason=reason,
        )
