"""When to ask again while a job goes on, and what to ask of its log next. Pure: both clients use it."""

from __future__ import annotations

from typing import Final

from fairway.client import requests_jobs as calls
from fairway.client.http import Call
from fairway.model.backoff import Backoff
from fairway.model.errors import TemporaryError
from fairway.model.job import OPEN_JOBS
from fairway.wire import jobs as wire

POLL: Final = Backoff(first_seconds=0.25, longest_seconds=2.0, factor=1.5)
"""Short at first, so that short jobs feel short; then as long as a busy server likes."""
_PATIENCE_SECONDS: Final = 300.0
"""How long a server may be away (a restart, a failover) before following it is given up."""


class JobNotOver(TemporaryError):
    """It is still open after the time that somebody wanted to wait."""


def over(job: wire.Job) -> bool:
    """Whether nothing more comes of it."""
    return job.state not in OPEN_JOBS


def give_up(job: wire.Job, waited: float, timeout_seconds: float | None) -> None:
    """Raise if that was long enough."""
    if timeout_seconds is not None and waited >= timeout_seconds:
        raise JobNotOver(
            "JobNotOver",
            f"{job.name} ({job.id}) is {job.state} after {timeout_seconds:g} s",
            f"fairway describe job {job.id}",
        )


class Follower:
    """Where somebody is in a job's log. Each answer says whether to read on, to wait, or that it is over."""

    def __init__(self, job: str, attempt: int | None, node: int, *, follow: bool) -> None:
        self._job = job
        self._chosen = attempt
        self._node = node
        self._follow = follow
        self._attempt = attempt
        self._offset = 0
        self._over = False
        self._done = False
        self._delays = POLL.delays()
        self._lost_for = 0.0
        self.waits = False
        """Nothing new was there; more may come: tell `job_is` how the job is."""

    def next_call(self) -> Call[wire.LogPart] | None:
        """The piece to ask for; None: that was all."""
        if self._done:
            return None
        return calls.log(self._job, attempt=self._attempt, node=self._node, offset=self._offset)

    def take(self, part: wire.LogPart) -> bool:
        """Whether an answer holds something new."""
        self._lost_for = 0.0
        if part.attempt:
            self._attempt = part.attempt
        moved = part.next_offset > self._offset
        self._offset = part.next_offset
        if moved:
            self._delays = POLL.delays()
        elif not self._follow or self._over or (part.ended and self._chosen is not None):
            self._done = True
        self.waits = not moved and not self._done
        return moved

    def lost(self, error: TemporaryError) -> float:
        """Seconds to wait after no answer; raises it where waiting makes no sense, or did not help."""
        if not self._follow or self._lost_for >= _PATIENCE_SECONDS:
            raise error
        pause = next(self._delays)
        self._lost_for += pause
        return pause

    def job_is(self, job: wire.Job) -> float:
        """Seconds to wait, by how the job is after an answer that held nothing new."""
        if self._chosen is None and self._attempt is not None and job.attempt_count > self._attempt:
            self._attempt, self._offset = self._attempt + 1, 0
            return 0
        if over(job):
            self._over = True  # what it printed last may have come meanwhile: one more look
            return 0
        return next(self._delays)
