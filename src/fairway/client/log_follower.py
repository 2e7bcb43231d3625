"""Decide what to request next of a job's log, and how long to wait before. Pure: both clients use it."""

from __future__ import annotations

from typing import Final

from fairway.client import requests
from fairway.client.http import ApiRequest
from fairway.model.backoff import Backoff
from fairway.model.errors import TemporaryError
from fairway.model.job import OPEN_JOBS
from fairway.wire import jobs as wire

POLL: Final = Backoff(first_seconds=0.25, longest_seconds=2.0, factor=1.5)
"""Short at first, so that short jobs end promptly; then long enough for a busy server."""
_MAX_OUTAGE_SECONDS: Final = 300.0
"""How long the server may be unreachable (a restart, a failover) before following is abandoned."""


class JobNotOver(TemporaryError):
    """Raised if a job is still open after the timeout of a wait."""


def is_over(job: wire.Job) -> bool:
    """Return whether the job has ended for good."""
    return job.state not in OPEN_JOBS


def check_timeout(job: wire.Job, waited: float, timeout_seconds: float | None) -> None:
    """Raise JobNotOver if the timeout has elapsed."""
    if timeout_seconds is not None and waited >= timeout_seconds:
        raise JobNotOver(
            "JobNotOver",
            f"{job.name} ({job.id}) is {job.state} after {timeout_seconds:g} s",
            f"fairway describe job {job.id}",
        )


class LogFollower:
    """A position in a job's log. After each response it decides whether to read on, to wait or to end."""

    def __init__(self, job: str, attempt: int | None, node: int, *, follow: bool) -> None:
        self._job = job
        self._only_attempt = attempt
        self._node = node
        self._follow = follow
        self._attempt = attempt
        self._offset = 0
        self._job_over = False
        self._done = False
        self._delays = POLL.delays()
        self._outage_seconds = 0.0
        self.needs_job = False
        """Whether the last response had nothing new but more may come: pass the job to `delay_for`."""

    def next_request(self) -> ApiRequest[wire.LogPart] | None:
        """Return the request for the next part. Returns None at the end of the log."""
        if self._done:
            return None
        return requests.log(self._job, attempt=self._attempt, node=self._node, offset=self._offset)

    def advance(self, part: wire.LogPart) -> bool:
        """Move past `part`. Returns whether it has new output."""
        self._outage_seconds = 0.0
        if part.attempt:
            self._attempt = part.attempt
        moved = part.next_offset > self._offset
        self._offset = part.next_offset
        if moved:
            self._delays = POLL.delays()
        elif not self._follow or self._job_over or (part.ended and self._only_attempt is not None):
            self._done = True
        self.needs_job = not moved and not self._done
        return moved

    def retry_delay(self, error: TemporaryError) -> float:
        """Return the seconds to wait after a failed request. Raises `error` if it should not be retried."""
        if not self._follow or self._outage_seconds >= _MAX_OUTAGE_SECONDS:
            raise error
        delay = next(self._delays)
        self._outage_seconds += delay
        return delay

    def delay_for(self, job: wire.Job) -> float:
        """Return the seconds to wait, given the job's state after a response with nothing new."""
        if self._only_attempt is None and self._attempt is not None and job.attempt_count > self._attempt:
            self._attempt, self._offset = self._attempt + 1, 0
            return 0
        if is_over(job):
            self._job_over = True  # its last output may have arrived since: read once more
            return 0
        return next(self._delays)
