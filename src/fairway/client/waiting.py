"""Decide what to request while jobs are waited for, and how long to pause. Pure: both clients use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from fairway.client import requests
from fairway.client.http import ApiRequest
from fairway.model.backoff import Backoff
from fairway.model.errors import TemporaryError
from fairway.model.job import OPEN_JOBS, JobState
from fairway.model.text import first_few
from fairway.wire import jobs as wire

POLL: Final = Backoff(first_seconds=0.25, longest_seconds=2.0, factor=1.5)
"""Short at first, so that short jobs end promptly; then long enough for a busy server."""
_MAX_OUTAGE_SECONDS: Final = 300.0
"""How long the server may be unreachable (a restart, a failover) before waiting is abandoned."""
_MAX_NAMED: Final = 5


class JobNotFinished(TemporaryError):
    """Raised if a job is still open after the timeout of a wait."""


class HasTasks(Protocol):
    """A submitted job, or a handle on one."""

    @property
    def ids(self) -> Sequence[str]:
        """Return the ids of all its tasks."""


def task_ids(jobs: Iterable[HasTasks | str]) -> list[str]:
    """Return the ids of jobs, and of all tasks of arrays."""
    return [job_id for job in jobs for job_id in ([job] if isinstance(job, str) else job.ids)]


def is_finished(job: wire.Job) -> bool:
    """Return whether the job has ended for good."""
    return job.state not in OPEN_JOBS


class Outage:
    """How long a server has not answered."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def end(self) -> None:
        """Record that the server has answered."""
        self._seconds = 0.0

    def delay(self, error: TemporaryError, delays: Iterator[float]) -> float:
        """Return the seconds to wait after a failed request. Raises `error` if it has lasted too long."""
        if self._seconds >= _MAX_OUTAGE_SECONDS:
            raise error
        delay = next(delays)
        self._seconds += delay
        return delay


class JobsWait:
    """A wait for jobs to finish: the states that were read last, and what to do next."""

    def __init__(self, ids: Iterable[str], timeout_seconds: float | None) -> None:
        self._states: dict[str, JobState | None] = dict.fromkeys(ids)
        self._timeout = timeout_seconds
        self._delays = POLL.delays()
        self._outage = Outage()

    @property
    def open(self) -> list[str]:
        """Return the jobs that have not finished, as far as is known."""
        return [job for job, state in self._states.items() if state is None or state in OPEN_JOBS]

    def requests(self) -> list[ApiRequest[wire.JobStates]]:
        """Return the requests for the states of all open jobs."""
        ids = self.open
        return [
            requests.job_states(ids[start : start + wire.MAX_STATES])
            for start in range(0, len(ids), wire.MAX_STATES)
        ]

    def advance(self, states: Mapping[str, JobState]) -> None:
        """Record states."""
        self._outage.end()
        self._states.update(states)

    def delay(self, waited: float) -> float:
        """Return the seconds until the next requests. Raises JobNotFinished if the timeout has elapsed."""
        left = None if self._timeout is None else self._timeout - waited
        if left is None:
            return next(self._delays)
        if left > 0:
            return min(left, next(self._delays))
        named = [f"{job} ({self._states[job] or 'unknown'})" for job in self.open]
        raise JobNotFinished(
            "JobNotFinished",
            f"not finished after {self._timeout:g} s: {first_few(named, _MAX_NAMED)}",
            f"wait longer, or see what keeps it:  fairway why {self.open[0]}",
        )

    def retry_delay(self, error: TemporaryError) -> float:
        """Return the seconds to wait after a failed request. Raises `error` if the server stays away."""
        return self._outage.delay(error, self._delays)

    def counts(self) -> Counter[JobState]:
        """Return the number of jobs in each state."""
        return Counter(state for state in self._states.values() if state is not None)
