"""Whether a job that ended comes back, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fairway.model.job import Ending, JobSpec, JobState, Tolerates

MOST_SUBMISSIONS: Final = 1000
"""Of one job: one that brings down every node it meets does not do so for ever."""

_NOT_ITS_FAULT: Final = frozenset({Ending.PREEMPTED, Ending.NODE_LOST})
_FAILURES: Final = frozenset({JobState.FAILED, JobState.TIMED_OUT})
"""A job that ran out of time may go on from its checkpoint: it comes back as a failed one does."""


@dataclass(frozen=True, slots=True)
class Return:
    """It comes back."""

    after_seconds: int
    failures: int
    """So far, this one included if it counts."""


def comes_back(
    spec: JobSpec, state: JobState, last: Ending | None, *, failures: int, submission: int
) -> Return | None:
    """What becomes of a job whose engine job is over; None: it stays as it ended.

    `state` and `last`: how the engine job and its last attempt ended. Most engines bring back what they
    preempt themselves, and then the engine job is not over. Whoever asked for its end must not call this.
    """
    if submission >= MOST_SUBMISSIONS or state not in {*_FAILURES, JobState.CANCELLED}:
        return None
    if last in _NOT_ITS_FAULT:
        willing = spec.retries.count > 0 or (
            last is Ending.PREEMPTED and Tolerates.PREEMPTION in spec.tolerates
        )
        return Return(0, failures) if willing else None
    if state in _FAILURES and failures < spec.retries.count:
        return Return(spec.retries.backoff(failures + 1), failures + 1)
    return None
