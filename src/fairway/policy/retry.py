"""Decide whether an ended job is submitted again, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fairway.model.job import Ending, JobSpec, JobState, Tolerates

MAX_SUBMISSIONS: Final = 1000
"""Maximum submissions of one job: a job that crashes every node must not do so forever."""

_NOT_ITS_FAULT: Final = frozenset({Ending.PREEMPTED, Ending.NODE_LOST})
_FAILURES: Final = frozenset({JobState.FAILED, JobState.TIMED_OUT})
"""A job that timed out may continue from its checkpoint, so it is retried like a failed one."""


@dataclass(frozen=True, slots=True)
class Resubmission:
    """The decision to submit a job again."""

    after_seconds: int
    failures: int
    """Failures so far, including this one if it counts."""


def decide_resubmission(
    spec: JobSpec, state: JobState, last: Ending | None, *, failures: int, submission: int
) -> Resubmission | None:
    """Decide whether to submit a job again after its engine job ended. Returns None if it stays ended.

    `state` and `last` are how the engine job and its last attempt ended. Most engines requeue the jobs that
    they preempt, and then the engine job has not ended. Do not call this for a job that a user cancelled.
    """
    if submission >= MAX_SUBMISSIONS or state not in {*_FAILURES, JobState.CANCELLED}:
        return None
    if last in _NOT_ITS_FAULT:
        may_retry = spec.retries.count > 0 or (
            last is Ending.PREEMPTED and Tolerates.PREEMPTION in spec.tolerates
        )
        return Resubmission(0, failures) if may_retry else None
    if state in _FAILURES and failures < spec.retries.count:
        return Resubmission(spec.retries.backoff(failures + 1), failures + 1)
    return None
