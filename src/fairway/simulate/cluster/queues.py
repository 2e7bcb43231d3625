"""Queue waiting jobs: one queue for each team, rank and shape, so that only its first job must be tried.

A job refers to its team's quota, which has the queues, so only a part of it is defined here.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from fairway.model.names import UserName

QueueKey = tuple[int, bool, int, int, bool]
"""Rank, whether preemptible, nodes, devices on each, whether in one rack."""
ShapeKey = tuple[int, int, bool]
"""The last part of a QueueKey: nodes, devices on each, whether in one rack."""


class QueuedJob:
    """The attributes of a job that queues and quotas use. SimJob adds those that refer to quotas."""

    __slots__ = ("devices", "id", "preemptible", "queue_key", "queued", "rank", "user")

    def __init__(
        self,
        number: int,
        user: UserName,
        rank: int,
        preemptible: bool,
        nodes: int,
        per_node: int,
        together: bool,
    ) -> None:
        self.id = number
        self.user = user
        self.rank = rank
        self.preemptible = preemptible
        self.devices = nodes * per_node
        self.queue_key: QueueKey = (rank, preemptible, nodes, per_node, together)
        self.queued = False
        """Whether it is in a queue; not while its user is at the team's limit per user."""


J = TypeVar("J", bound=QueuedJob)


class JobQueue(Generic[J]):
    """The waiting jobs of one team, rank and shape, by job number, whether or not they ran in between."""

    __slots__ = (
        "count",
        "devices",
        "failed_pass",
        "jobs",
        "newest",
        "nodes",
        "per_node",
        "preemptible",
        "rank",
        "requeued",
        "shape_key",
    )

    def __init__(self, key: QueueKey) -> None:
        self.shape_key: Final[ShapeKey] = key[2:]
        self.rank, self.preemptible, self.nodes, self.per_node, _ = key
        self.devices: Final = self.nodes * self.per_node
        self.jobs: Final[deque[J]] = deque()
        """New jobs: each has a higher number than those before it."""
        self.requeued: Final[list[tuple[int, J]]] = []
        """Jobs that waited before, as a heap by number."""
        self.newest = 0
        self.count = 0
        self.failed_pass = -1
        """The last pass of the scheduler in which the first job could not start."""

    def add(self, job: J) -> None:
        """Add a job. O(1) for a new job, O(log requeued jobs) for one that waited before."""
        if job.id > self.newest:
            self.newest = job.id
            self.jobs.append(job)
        else:
            heappush(self.requeued, (job.id, job))
        self.count += 1
        job.queued = True

    def first(self) -> J:
        """Return the next job, and drop jobs that left; the queue must not be empty.

        A job waits in one queue at a time and does not change queues while it waits, so `queued` tells
        whether it waits here.
        """
        jobs, requeued = self.jobs, self.requeued
        while jobs and not jobs[0].queued:
            jobs.popleft()
        if not requeued:
            return jobs[0]
        while requeued and not requeued[0][1].queued:
            heappop(requeued)
        if jobs and not (requeued and requeued[0][0] < jobs[0].id):
            return jobs[0]
        return requeued[0][1]


class JobQueues(Generic[J]):
    """The non-empty queues of one team for one supply."""

    __slots__ = ("at_user_limit", "firm", "preemptible")

    def __init__(self) -> None:
        self.firm: Final[dict[QueueKey, JobQueue[J]]] = {}
        self.preemptible: Final[dict[QueueKey, JobQueue[J]]] = {}
        self.at_user_limit: Final[dict[UserName, list[J]]] = {}
        """Jobs whose user is at the team's limit per user, until a job of the user ends."""

    def queue_of(self, job: J) -> JobQueue[J]:
        """Return the queue in which the job waits."""
        return (self.preemptible if job.preemptible else self.firm)[job.queue_key]

    def join(self, job: J) -> JobQueue[J] | None:
        """Add a job to its queue; return the queue if it is new. O(log jobs of the queue)."""
        key = job.queue_key
        queues = self.preemptible if job.preemptible else self.firm
        queue = queues.get(key)
        if queue is not None:
            queue.add(job)
            return None
        queue = queues[key] = JobQueue(key)
        queue.add(job)
        return queue

    def leave(self, job: J) -> JobQueue[J] | None:
        """Remove a job from its queue; return the queue if it is empty now, and thus removed."""
        if not job.queued:
            raise AssertionError(f"job {job.id} waits in no queue")
        job.queued = False
        key = job.queue_key
        queues = self.preemptible if job.preemptible else self.firm
        queue = queues[key]
        queue.count -= 1
        if queue.count:
            return None
        del queues[key]
        return queue


def sort_queues(queues: list[JobQueue[J]]) -> list[JobQueue[J]]:
    """Sort queues by rank, highest first, then by the number of their first job."""
    if len(queues) > 1:
        queues.sort(key=lambda queue: (-queue.rank, queue.first().id))
    return queues
