"""Decide whether an ended job is submitted again, when, and whether broken hardware is to blame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fairway.model.gpu_health import ends_jobs, event_words
from fairway.model.job import Ending, JobId, JobSpec, JobState, Tolerates
from fairway.model.names import NodeName

MAX_SUBMISSIONS: Final = 1000
"""Maximum submissions of one job: a job that crashes every node must not do so forever."""

MAX_SPARED: Final = 3
"""Failures of one job that broken hardware excuses: a job that breaks GPUs must not do so forever."""
BLAMED_FOR: Final = timedelta(minutes=10)
"""How long after its own GPU failed a job's end is blamed on it: collectives wait this long for a peer."""
BLAMED_NEARBY: Final = timedelta(minutes=1)
"""The same, of a GPU of its node that may or may not have been its own."""
MAX_WAIT: Final = timedelta(minutes=2)
"""How long a decision waits for what GPUs' exporters say about the time of the end."""
SEEN_LATE: Final = timedelta(seconds=60)
"""How long after the job's end its GPU may be seen to fail: exporters are asked now and then."""

_NOT_ITS_FAULT: Final = frozenset({Ending.PREEMPTED, Ending.NODE_LOST})
_FAILURES: Final = frozenset({JobState.FAILED, JobState.TIMED_OUT})
"""A job that timed out may continue from its checkpoint, so it is retried like a failed one."""


@dataclass(frozen=True, slots=True)
class Resubmission:
    """The decision to submit a job again."""

    after_seconds: int
    failures: int
    """Failures so far, including this one if it counts."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An attempt that failed, and may have done so because of broken hardware."""

    job: JobId
    attempt: int
    nodes: tuple[NodeName, ...]
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class HardwareFault:
    """Something that broke on a node of a job, on a GPU that the job held or may have held."""

    node: NodeName
    gpu: str
    code: str
    at: datetime
    last_seen: datetime
    holder: JobId | None
    """Who held the GPU, where that is known."""

    def text(self, ended_at: datetime) -> str:
        """Return what happened, and when, seen from a job's end."""
        seconds = round((ended_at - self.at).total_seconds())
        when = f"{seconds} s before" if seconds > 0 else "when"
        return f"GPU {self.gpu} of {self.node} {event_words(self.code)} {when} it ended"


def may_be_hardware(spec: JobSpec, state: JobState, last: Ending | None) -> bool:
    """Return whether it matters for the decision if broken hardware explains the end."""
    return spec.retries.count > 0 and state in _FAILURES and last not in _NOT_ITS_FAULT


def must_wait(settled_to: datetime | None, ended_at: datetime, now: datetime) -> bool:
    """Return whether events of GPUs may still become known that explain an end.

    `settled_to` is up to when they are known; None: nobody reads them, and there is nothing to wait for.
    """
    return settled_to is not None and settled_to < ended_at and now < ended_at + MAX_WAIT


def blame(suspect: Suspect, faults: Iterable[HardwareFault]) -> HardwareFault | None:
    """Return the fault that explains the end of an attempt. Returns None if there is none.

    What was broken before the attempt began is blamed if the attempt failed soon after its start.
    """
    for fault in faults:
        others = fault.holder not in {None, suspect.job}
        # A GPU that another job held before may still be broken.
        if not ends_jobs(fault.code) or (others and fault.at >= suspect.started_at):
            continue
        began = max(fault.at, suspect.started_at)
        within = BLAMED_FOR if fault.holder == suspect.job else BLAMED_NEARBY
        overlaps = fault.at <= suspect.ended_at + SEEN_LATE and fault.last_seen >= suspect.started_at
        if overlaps and suspect.ended_at - began <= within:
            return fault
    return None


def decide_resubmission(
    spec: JobSpec,
    state: JobState,
    last: Ending | None,
    *,
    failures: int,
    submission: int,
    hardware: bool = False,
    spared: int = 0,
) -> Resubmission | None:
    """Decide whether to submit a job again after its engine job ended. Returns None if it stays ended.

    `state` and `last` are how the engine job and its last attempt ended. Most engines requeue the jobs that
    they preempt, and then the engine job has not ended. Do not call this for a job that a user cancelled.
    `hardware` says that broken hardware explains the end, and `spared` how many ends it explained before.
    """
    if submission >= MAX_SUBMISSIONS or state not in {*_FAILURES, JobState.CANCELLED}:
        return None
    if last in _NOT_ITS_FAULT:
        may_retry = spec.retries.count > 0 or (
            last is Ending.PREEMPTED and Tolerates.PREEMPTION in spec.tolerates
        )
        return Resubmission(0, failures) if may_retry else None
    if hardware and state in _FAILURES and spec.retries.count > 0 and spared < MAX_SPARED:
        return Resubmission(0, failures)
    if state in _FAILURES and failures < spec.retries.count:
        return Resubmission(spec.retries.backoff(failures + 1), failures + 1)
    return None
