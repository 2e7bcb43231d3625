"""Decide what to request next of a job's log, and how long to wait before. Pure: both clients use it."""

from __future__ import annotations

from fairway.client import requests
from fairway.client.http import ApiRequest
from fairway.client.waiting import POLL, Outage, is_finished
from fairway.model.errors import TemporaryError
from fairway.wire import jobs as wire


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
        self._outage = Outage()
        self.needs_job = False
        """Whether the last response had nothing new but more may come: pass the job to `delay_for`."""

    def next_request(self) -> ApiRequest[wire.LogPart] | None:
        """Return the request for the next part. Returns None at the end of the log."""
        if self._done:
            return None
        return requests.log(self._job, attempt=self._attempt, node=self._node, offset=self._offset)

    def advance(self, part: wire.LogPart) -> bool:
        """Move past `part`. Returns whether it has new output."""
        self._outage.end()
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
        if not self._follow:
            raise error
        return self._outage.delay(error, self._delays)

    def delay_for(self, job: wire.Job) -> float:
        """Return the seconds to wait, given the job's state after a response with nothing new."""
        if self._only_attempt is None and self._attempt is not None and job.attempt_count > self._attempt:
            self._attempt, self._offset = self._attempt + 1, 0
            return 0
        if is_finished(job):
            self._job_over = True  # its last output may have arrived since: read once more
            return 0
        return next(self._delays)
