"""Jobs of a virtual cluster as a mirror sees them: from the simulator's journal, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairway.engines.port import Batch
from fairway.engines.virtual.cluster import Life
from fairway.engines.virtual.simulator import jobs
from fairway.model.fleet import Fleet
from fairway.model.job import Attempt, Ending, EngineId, JobState, SeenJob

WAIT_SECONDS: Final = 1.0
"""How long a look waits for something to happen."""
LOOK_SECONDS: Final = 0.1
"""How often it looks: others submit and cancel without telling."""

_STATES: Final = {
    jobs.SimState.EXPECTED: JobState.WAITING,
    jobs.SimState.WAITING: JobState.WAITING,
    jobs.SimState.HELD: JobState.HELD,
    jobs.SimState.RUNNING: JobState.RUNNING,
    jobs.SimState.DONE: JobState.DONE,
    jobs.SimState.FAILED: JobState.FAILED,
    jobs.SimState.CANCELLED: JobState.CANCELLED,
    jobs.SimState.TIMEOUT: JobState.TIMED_OUT,
}
_ENDINGS: Final = {
    jobs.SimEnding.DONE: Ending.DONE,
    jobs.SimEnding.FAILED: Ending.FAILED,
    jobs.SimEnding.CANCELLED: Ending.CANCELLED,
    jobs.SimEnding.TIMEOUT: Ending.TIMED_OUT,
    jobs.SimEnding.RECLAIMED: Ending.PREEMPTED,
    jobs.SimEnding.OUTRANKED: Ending.PREEMPTED,
    jobs.SimEnding.NODE_LOST: Ending.NODE_LOST,
    jobs.SimEnding.EVICTED: Ending.REQUEUED,
}
_WORDS: Final = {
    jobs.SimEnding.RECLAIMED: "what was lent went back to a team entitled to it",
    jobs.SimEnding.OUTRANKED: "a job that goes first took its place",
    jobs.SimEnding.NODE_LOST: "a node it ran on died",
    jobs.SimEnding.EVICTED: "a changed policy was applied with the word to evict",
    jobs.SimEnding.TIMEOUT: "its time limit was reached",
}
_EXITS: Final = frozenset((jobs.SimEnding.DONE, jobs.SimEnding.FAILED))


class Mirroring:
    """Tells of every job, Fairway's and native ones."""

    _life: Life

    async def changes(self, mark: str | None, fleet: Fleet) -> Batch:
        """From the journal, after what `mark` names; if that is unknown, everything remembered."""
        life = self._life
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_SECONDS
        while True:
            life.follow()
            seen = self._since(mark)
            left = until - loop.time()
            if seen.jobs or seen.whole or left <= 0:
                return seen
            due = life.simulator.next_at()
            soon = LOOK_SECONDS if due is None else max(0.001, life.seconds_until(due))
            await asyncio.sleep(min(left, LOOK_SECONDS, soon))

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        life = self._life
        life.follow()
        numbers = {engine_id: life.number(engine_id) for engine_id in ids}
        return {
            engine_id: self._seen(number)
            for engine_id, number in numbers.items()
            if number is not None and life.simulator.remembers(number)
        }

    def _since(self, mark: str | None) -> Batch:
        life, simulator = self._life, self._life.simulator
        now = f"{life.mark}/{simulator.change_count}"
        before, _, count = (mark or "").partition("/")
        after = int(count) if before == life.mark and count.isdecimal() else None
        changed = () if after is None else simulator.changes(after)
        if after is None or len(changed) < simulator.change_count - after:
            return Batch(self._all(view.id for view in simulator.jobs()), now, whole=True)
        return Batch(self._all({change.job: None for change in changed}), now)

    def _all(self, numbers: Iterable[int]) -> tuple[SeenJob, ...]:
        remembers = self._life.simulator.remembers
        return tuple(self._seen(number) for number in numbers if remembers(number))

    def _seen(self, number: int) -> SeenJob:
        life = self._life
        view = life.simulator.job(number)
        request = view.request
        attempts = tuple(self._attempt(request, run) for run in life.simulator.attempts(number))
        last = attempts[-1] if attempts else None
        over = view.ended is not None
        return SeenJob(
            engine_id=life.engine_id(number),
            name=request.name or "job",
            user=request.user,
            team=view.team,
            state=_STATES[view.state],
            submitted_at=life.moment(view.submitted),
            supply=request.supply,
            gpus=request.gpus,
            nodes=request.nodes,
            priority=view.priority,
            time_seconds=None if request.limit_seconds is None else int(request.limit_seconds),
            reason=view.wait.message if view.wait else last.reason if last and over else "",
            reason_code=view.wait.code if view.wait else "",
            attempts=attempts,
            ended_at=None if view.ended is None else life.moment(view.ended),
            exit_code=last.exit_code if last and over else None,
        )

    def _attempt(self, request: jobs.JobRequest, run: jobs.SimAttempt) -> Attempt:
        life = self._life
        words = _WORDS.get(run.ending, "") if run.ending else ""
        if run.by is not None:
            words += f": job {life.engine_id(run.by)}"
        return Attempt(
            started_at=life.moment(run.started),
            nodes=run.nodes,
            devices=request.gpus * request.nodes,
            ended_at=None if run.ended is None else life.moment(run.ended),
            ending=None if run.ending is None else _ENDINGS[run.ending],
            exit_code=request.exit_code if run.ending in _EXITS else None,
            reason=words,
        )
