"""What a client can do with jobs, and a handle on one that was submitted."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Unpack

from fairway.api import job_wire as wire
from fairway.api.wire import Item, Page
from fairway.client import job_calls as calls
from fairway.client.calls import Answer, Call
from fairway.client.following import Follower, Pauses, give_up, over
from fairway.client.job_calls import Filters, SpecFields, spec_of
from fairway.model.errors import TemporaryError


class JobVerbs(ABC):
    """Submit jobs, look at them, end them. `Client` has these; `AsyncClient` has the same to await."""

    def run(self, command: Sequence[str] | str, **fields: Unpack[SpecFields]) -> JobHandle:
        """Submit one job and give a handle on it: `run(["python", "train.py"], gpus="H100:8")`.

        A single text is a shell script. The fields are those of `JobSpec`; `gpus` may be text, `time` too.
        """
        (kept,) = self.submit(spec_of(command, fields))
        return JobHandle(self, kept)

    def submit(
        self,
        jobs: wire.JobSpec | Sequence[wire.JobSpec],
        *,
        key: str | None = None,
        as_user: str | None = None,
        hold: bool = False,
    ) -> list[wire.SubmittedJob]:
        """Keep jobs, at most 10,000 at once; they run when they can. The same `key` makes none twice."""
        return self._send(calls.submit(jobs, key=key, as_user=as_user, hold=hold)).jobs

    def dry_run(self, job: wire.JobSpec, *, as_user: str | None = None) -> wire.DryRun:
        """What would become of a job: where it would go, and whether it could ever run. Nothing is kept."""
        return self._send(calls.dry_run(job, as_user=as_user))

    def jobs(self, *, most: int | None = None, **filters: Unpack[Filters]) -> Iterator[wire.Job]:
        """Jobs that fit, the newest first, page by page; at most so many."""
        return itertools.islice(self._every(calls.jobs(most, **filters)), most)

    def job(self, id: str) -> wire.JobDetail:  # noqa: A002
        """One job with its attempts and events."""
        return self._send(calls.job(id))

    def why(self, id: str) -> wire.Why:  # noqa: A002
        """Why a job waits, with a remedy for each reason; of one that runs or is over, how it stands."""
        return self._send(calls.why(id))

    def task_counts(self, id: str) -> wire.TaskCounts:  # noqa: A002
        """The tasks of an array by state."""
        return self._send(calls.task_counts(id))

    def log(
        self,
        id: str,  # noqa: A002
        *,
        attempt: int | None = None,
        node: int = 0,
        offset: int = 0,
        limit: int | None = None,
    ) -> wire.LogPart:
        """A piece of what a job printed; without `attempt` the last one's."""
        return self._send(calls.log(id, attempt=attempt, node=node, offset=offset, limit=limit))

    def follow_log(
        self,
        id: str,  # noqa: A002
        *,
        attempt: int | None = None,
        node: int = 0,
        follow: bool = True,
    ) -> Iterator[wire.LogPart]:
        """What a job printed, piece by piece, and what it goes on to print until it is over.

        Without `follow` only what is there. A later attempt's output follows the one before it.
        """
        follower = Follower(id, attempt, node, follow=follow)
        while (call := follower.next_call()) is not None:
            try:
                part = self._send(call)
                if follower.take(part):
                    yield part
                elif follower.waits:
                    time.sleep(follower.job_is(self.job(id)))
            except TemporaryError as error:
                time.sleep(follower.lost(error))

    def cancel(self, ids: str | Sequence[str]) -> wire.Changed:
        """End jobs: all of them, or none if one of them is not yours to end."""
        return self._send(calls.change("cancel", ids))

    def hold(self, ids: str | Sequence[str]) -> wire.Changed:
        """Keep jobs from starting; what runs goes on."""
        return self._send(calls.change("hold", ids))

    def release(self, ids: str | Sequence[str]) -> wire.Changed:
        """Let held jobs start."""
        return self._send(calls.change("release", ids))

    def job_counts(self, cluster: str | None = None) -> list[wire.JobCount]:
        """Open jobs by cluster, team, pool and state."""
        return self._send(calls.job_counts(cluster)).counts

    @abstractmethod
    def _send(self, call: Call[Answer]) -> Answer: ...

    @abstractmethod
    def _every(self, call: Call[Page[Item]]) -> Iterator[Item]: ...


class JobHandle:
    """A job that was submitted."""

    def __init__(self, client: JobVerbs, kept: wire.SubmittedJob) -> None:
        self._client = client
        self.id = kept.id
        self.placement = kept.placement

    def __repr__(self) -> str:
        return f"<job {self.id} on {self.placement.pool}>"

    def now(self) -> wire.JobDetail:
        """How it is."""
        return self._client.job(self.id)

    def why(self) -> wire.Why:
        """Why it waits."""
        return self._client.why(self.id)

    def wait(self, timeout_seconds: float | None = None) -> wire.JobDetail:
        """The job when it is over. Raises JobNotOver after `timeout_seconds`; None: as long as it takes."""
        began, pauses = time.monotonic(), Pauses()
        while not over(seen := self.now()):
            give_up(seen, time.monotonic() - began, timeout_seconds)
            time.sleep(pauses.next())
        return seen

    def log(self, *, follow: bool = False) -> Iterator[str]:
        """What it printed, piece by piece; with `follow` until it is over."""
        return (part.text for part in self._client.follow_log(self.id, follow=follow))

    def cancel(self) -> wire.Changed:
        """End it."""
        return self._client.cancel(self.id)
