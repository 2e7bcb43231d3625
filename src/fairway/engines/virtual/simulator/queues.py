"""Queues of waiting jobs: one for each team, rank and shape, so that only the first of each must be tried.

Jobs name their team's quota, and that has the queues: what is needed of a job here is a protocol of its own.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Any, Final, Generic, Protocol, TypeVar

from fairway.model.names import UserName

QueueKey = tuple[int, bool, int, int, bool]
"""Rank, whether preemptible always, nodes, devices on each, whether in one rack."""
ShapeKey = tuple[int, int, bool]
"""The part of it that all teams share: nodes, devices on each, whether in one rack."""


class QueuedJob(Protocol):
    """What a queue needs of a job."""

    id: int
    user: UserName
    low: bool
    queue_key: QueueKey
    queued: bool

    def __lt__(self, other: Any, /) -> bool: ...


J = TypeVar("J", bound=QueuedJob)


class JobQueue(Generic[J]):
    """Jobs of one team, rank and shape, by their number: who came first, whether or not it ran in between."""

    __slots__ = (
        "back",
        "count",
        "devices",
        "jobs",
        "low",
        "newest",
        "nodes",
        "passed",
        "per_node",
        "rank",
        "shape_key",
    )

    def __init__(self, key: QueueKey) -> None:
        self.shape_key: Final[ShapeKey] = key[2:]
        self.rank, self.low, self.nodes, self.per_node, _ = key
        self.devices: Final = self.nodes * self.per_node
        self.jobs: Final[deque[J]] = deque()
        """Mostly a job has a higher number than all that wait: it goes to the end."""
        self.back: Final[list[tuple[int, J]]] = []
        """Those that waited before, as a heap by number."""
        self.newest = 0
        self.count = 0
        self.passed = -1
        """The pass of the scheduler that found its first job unable to start."""

    def add(self, job: J) -> None:
        """O(1) for a new job, O(log of those that came back) for one that waited before."""
        if job.id > self.newest:
            self.newest = job.id
            self.jobs.append(job)
        else:
            heappush(self.back, (job.id, job))
        self.count += 1
        job.queued = True

    def first(self) -> J:
        """Return the job that is next; the queue must not be empty. Those that left are dropped on the way.

        A job waits in one queue at a time and never changes to another while it waits: whether it waits at
        all says whether it waits here.
        """
        jobs, back = self.jobs, self.back
        while jobs and not jobs[0].queued:
            jobs.popleft()
        if not back:
            return jobs[0]
        while back and not back[0][1].queued:
            heappop(back)
        if jobs and not (back and back[0][0] < jobs[0].id):
            return jobs[0]
        return back[0][1]


class JobQueues(Generic[J]):
    """The queues of one team for one supply that are not empty."""

    __slots__ = ("at_user_limit", "firm", "low")

    def __init__(self) -> None:
        self.firm: Final[dict[QueueKey, JobQueue[J]]] = {}
        self.low: Final[dict[QueueKey, JobQueue[J]]] = {}
        """Those of jobs that are preemptible always."""
        self.at_user_limit: Final[dict[UserName, list[J]]] = {}
        """Jobs whose user is at the team's limit for one user, until something of the user ends."""

    def of(self, job: J) -> JobQueue[J]:
        """Return the queue in which the job waits."""
        return (self.low if job.low else self.firm)[job.queue_key]

    def join(self, job: J) -> JobQueue[J] | None:
        """Add a job to its queue; return the queue if it is new. O(log of the queue)."""
        key = job.queue_key
        queues = self.low if job.low else self.firm
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = JobQueue(key)
            queue.add(job)
            return queue
        queue.add(job)
        return None

    def leave(self, job: J) -> JobQueue[J] | None:
        """Take a job out of its queue; return the queue if it is empty now, and gone with that."""
        if not job.queued:
            raise AssertionError(f"job {job.id} waits in no queue")
        job.queued = False
        key = job.queue_key
        queues = self.low if job.low else self.firm
        queue = queues[key]
        queue.count -= 1
        if queue.count:
            return None
        del queues[key]
        return queue


def in_order(queues: list[JobQueue[J]]) -> list[JobQueue[J]]:
    """Sort queues: the highest rank first, then whose first job came first."""
    if len(queues) > 1:
        queues.sort(key=lambda queue: (-queue.rank, queue.first().id))
    return queues
