"""Ask slurmctld which GPUs running jobs were given: once for each attempt, some at a time.

squeue does not print it. A job that is asked for by its own number costs slurmctld about as much as a line of
squeue; what is not answered in time is asked again later, and nothing else waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from fairway.engines.slurm.jobs.squeue import NO_INDICES, GpuIndices, SqueueRow, parse_int
from fairway.engines.slurm.nodes.devices import MIG_PROFILE, parse_gres
from fairway.engines.slurm.nodes.hostlist import expand
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.engines.slurm.rest.wire import Reply
from fairway.model.backoff import Backoff
from fairway.model.errors import FairwayError
from fairway.model.job import JobState
from fairway.model.names import NodeName

JOBS_A_STEP: Final = 50
STEP_SECONDS: Final = 0.5
"""The mirror waits for a step, so this is how much later it may know of a job."""
_BACKOFF: Final = Backoff(first_seconds=2, longest_seconds=60)


class GresJob(msgspec.Struct, frozen=True, gc=False):
    job_id: int = 0
    restart_cnt: int = 0
    nodes: str = ""
    gres_detail: tuple[str, ...] = ()
    """For each node, in the order of `nodes`: `gpu:a100:2(IDX:6-7)`."""


class GresJobReply(Reply, frozen=True, gc=False):
    jobs: tuple[GresJob, ...] = ()


@dataclass(frozen=True, slots=True)
class _Attempt:
    raw_id: int
    restarts: int


class GpuIndexReader:
    """Knows the GPUs of jobs that squeue shows as running."""

    def __init__(
        self, rest: SlurmRest, *, needed: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`needed`: whether anybody reads what the GPUs do."""
        self._rest = rest
        self._needed = needed
        self._clock = clock
        self._known: dict[_Attempt, GpuIndices] = {}
        self._wanted: dict[_Attempt, str] = {}
        """Those to ask for, with the jobs' ids as squeue shows them."""
        self._next = 0.0
        self._failures = 0

    def of(self, row: SqueueRow) -> GpuIndices:
        """Return the GPUs of a job by node, as far as they are known."""
        return self._known.get(_attempt(row), NO_INDICES)

    def want(self, row: SqueueRow) -> None:
        """Ask for a job's GPUs with the next step, if they are not known."""
        if not self._needed:
            return
        attempt = _attempt(row)
        if row.job_state is JobState.RUNNING and "gres/gpu" in row.tres_alloc and attempt not in self._known:
            self._wanted[attempt] = row.jobarrayid

    def forget(self, row: SqueueRow) -> None:
        """Forget a job that ended."""
        attempt = _attempt(row)
        self._known.pop(attempt, None)
        self._wanted.pop(attempt, None)

    async def step(self) -> Collection[str]:
        """Ask for some of the wanted. Returns the ids of jobs whose GPUs are known now."""
        if not self._wanted or self._clock() < self._next:
            return ()
        found: list[str] = []
        try:
            async with self._rest.time_limit(STEP_SECONDS):
                for attempt, job_id in list(self._wanted.items())[:JOBS_A_STEP]:
                    reply = await self._rest.get_typed(f"job/{attempt.raw_id}", GresJobReply)
                    del self._wanted[attempt]
                    for job in reply.jobs:  # the last task of an array answers for all of them
                        if (job.job_id, job.restart_cnt) == (attempt.raw_id, attempt.restarts):
                            self._known[attempt] = indices_of(job)
                            found.append(job_id)
        except FairwayError:
            if not found:
                self._failures += 1
                self._next = self._clock() + _BACKOFF.seconds(self._failures)
                first = next(iter(self._wanted))  # one that is refused does not hold up the others
                self._wanted[first] = self._wanted.pop(first)
                return found
        self._failures = 0
        return found


def indices_of(job: GresJob) -> GpuIndices:
    """Return the indices of whole GPUs by node. Those of MIG instances are Slurm's own, and left out."""
    found: dict[NodeName, tuple[int, ...]] = {}
    for node, detail in zip(expand(job.nodes), job.gres_detail, strict=False):
        numbers = [
            number
            for gres in parse_gres(detail)
            if gres.name == "gpu" and not MIG_PROFILE.fullmatch(gres.type or "")
            for number in _numbers(gres.detail)
        ]
        if numbers:
            found[node] = tuple(sorted(set(numbers)))
    return found


def _numbers(detail: str) -> list[int]:
    """Parse `IDX:0-2,5`."""
    key, _, listed = detail.partition(":")
    numbers: list[int] = []
    for part in listed.split(",") if key == "IDX" else ():
        first, _, last = part.partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def _attempt(row: SqueueRow) -> _Attempt:
    return _Attempt(parse_int(row.jobid), row.restarts)
