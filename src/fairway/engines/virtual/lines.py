"""Waiting jobs of one team for one supply, a line a shape: if its first cannot start, none of it can."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from fairway.engines.virtual.jobs import Job
from fairway.model.names import UserName

if TYPE_CHECKING:
    from fairway.engines.virtual.quota import Branch


class Shape:
    """What jobs of all teams ask for alike: if one of them has no room, none has."""

    __slots__ = (
        "branches",
        "branches_low",
        "devices",
        "nodes",
        "per_node",
        "together",
    )

    def __init__(self, nodes: int, per_node: int, together: bool) -> None:
        self.nodes: Final = nodes
        self.per_node: Final = per_node
        self.together: Final = together
        self.devices: Final = nodes * per_node
        self.branches: Final[dict[Branch, int]] = {}
        """Who waits for such devices, and in how many lines; with what is preemptible always apart."""
        self.branches_low: Final[dict[Branch, int]] = {}


class Line:
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
        "shape",
    )

    def __init__(self, rank: int, low: bool, shape: Shape) -> None:
        self.rank: Final = rank
        self.low: Final = low
        self.shape: Final = shape
        self.nodes: Final = shape.nodes
        self.per_node: Final = shape.per_node
        self.devices: Final = shape.devices
        self.jobs: Final[deque[Job]] = deque()
        """Mostly a job has a higher number than all that wait: it goes to the end."""
        self.back: Final[list[tuple[int, Job]]] = []
        """Those that waited before, as a heap by number."""
        self.newest = 0
        self.count = 0
        self.passed = -1
        """The pass of the desk that found its first job unable to start."""

    def add(self, job: Job) -> None:
        """O(1) for a new job, O(log of those that came back) for one that waited before."""
        if job.id > self.newest:
            self.newest = job.id
            self.jobs.append(job)
        else:
            heappush(self.back, (job.id, job))
        self.count += 1
        job.line = self

    def first(self) -> Job:
        """Who is next; the line must not be empty. Those that left meanwhile are dropped on the way."""
        jobs, back = self.jobs, self.back
        while jobs and jobs[0].line is not self:
            jobs.popleft()
        if not back:
            return jobs[0]
        while back and back[0][1].line is not self:
            heappop(back)
        if jobs and not (back and back[0][0] < jobs[0].id):
            return jobs[0]
        return back[0][1]


LineKey = tuple[int, bool, int, int, bool]


class Lines:
    """Every line of one team for one supply that is not empty."""

    __slots__ = ("benched", "firm", "low")

    def __init__(self) -> None:
        self.firm: Final[dict[LineKey, Line]] = {}
        self.low: Final[dict[LineKey, Line]] = {}
        """Those of jobs that are preemptible always."""
        self.benched: Final[dict[UserName, list[Job]]] = {}
        """Jobs whose user is at the team's limit for one user, until something of the user ends."""

    def join(self, job: Job, shapes: dict[tuple[int, int, bool], Shape]) -> bool:
        """The job waits. O(log of its line). Whether it is the first of its kind to do so."""
        low = job.low
        key = (job.rank, low, job.nodes, job.per_node, job.together)
        lines = self.low if low else self.firm
        line = lines.get(key)
        fresh = False
        if line is None:
            fresh = not lines
            shape = shapes.get(key[2:])
            if shape is None:
                shape = shapes[key[2:]] = Shape(*key[2:])
            line = lines[key] = Line(job.rank, low, shape)
            branches = shape.branches_low if low else shape.branches
            branches[job.branch] = branches.get(job.branch, 0) + 1
        line.add(job)
        return fresh

    def left(self, job: Job) -> bool:
        """The job stands in its line no more. Whether that was the last of its kind."""
        line = job.line
        if line is None:
            raise AssertionError(f"job {job.id} stands in no line")
        job.line = None
        line.count -= 1
        if line.count:
            return False
        lines = self.low if line.low else self.firm
        shape = line.shape
        del lines[line.rank, line.low, shape.nodes, shape.per_node, shape.together]
        branches = shape.branches_low if line.low else shape.branches
        branches[job.branch] -= 1
        if not branches[job.branch]:
            del branches[job.branch]
        return not lines


def in_order(lines: list[Line]) -> list[Line]:
    """The highest rank first, then whose first job came first."""
    if len(lines) > 1:
        lines.sort(key=lambda line: (-line.rank, line.first().id))
    return lines
