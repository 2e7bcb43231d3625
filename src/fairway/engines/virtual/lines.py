"""Waiting jobs of one team for one supply, a line a shape: if its first cannot start, none of it can."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from fairway.engines.virtual.jobs import Job
from fairway.model.names import UserName

Shape = tuple[int, int, int, bool]
"""Rank, nodes, devices a node, in one rack."""


class Line:
    """Jobs of one shape, by their number: who came first, whether or not it ran in between."""

    __slots__ = ("devices", "jobs", "nodes", "passed", "per_node", "rank", "shape", "together")

    def __init__(self, shape: Shape) -> None:
        self.shape: Final = shape
        self.rank, self.nodes, self.per_node, self.together = shape
        self.devices: Final = self.nodes * self.per_node
        self.jobs: Final[list[Job]] = []
        self.passed = -1
        """The pass of the scheduler that found its first job unable to start."""

    def first(self) -> Job | None:
        """Who is next. Those that left the line meanwhile are dropped on the way."""
        jobs = self.jobs
        while jobs:
            if jobs[0].line is self:
                return jobs[0]
            heappop(jobs)
        return None


class Lines:
    """Every line of one team for one supply; those of jobs preemptible always apart."""

    __slots__ = ("benched", "firm", "low")

    def __init__(self) -> None:
        self.firm: Final[dict[Shape, Line]] = {}
        self.low: Final[dict[Shape, Line]] = {}
        self.benched: Final[dict[UserName, list[Job]]] = {}
        """Jobs whose user is at the team's limit for one user, until something of the user ends."""

    def join(self, job: Job) -> Line:
        """The job waits. O(log of its line)."""
        shape = (job.rank, job.nodes, job.per_node, job.together)
        lines = self.low if job.low else self.firm
        line = lines.get(shape)
        if line is None:
            line = lines[shape] = Line(shape)
        heappush(line.jobs, job)
        job.line = line
        return line

    def in_order(self, low: bool) -> Iterator[tuple[Line, Job]]:
        """Each line with its first job: the highest rank first, then who came first. Empty lines go."""
        lines = self.low if low else self.firm
        firsts: list[tuple[int, int, Line, Job]] = []
        for shape, line in list(lines.items()):
            job = line.first()
            if job is None:
                del lines[shape]
            else:
                firsts.append((-line.rank, job.id, line, job))
        if len(firsts) > 1:
            firsts.sort()
        return ((line, job) for _, _, line, job in firsts)

    def all_waiting(self) -> Iterator[Job]:
        """Everybody that waits, in no order."""
        for lines in (self.firm, self.low):
            for line in lines.values():
                yield from (job for job in line.jobs if job.line is line)
        for benched in self.benched.values():
            yield from benched
