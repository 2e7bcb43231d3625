"""The virtual clock: what is going to happen, in order, and nothing in between."""

from __future__ import annotations

from enum import IntEnum
from heapq import heappop, heappush
from typing import Final

from fairway.engines.virtual.jobs import Job


class Kind(IntEnum):
    """What an event is about. Of one moment, ends come before arrivals: what they free can be had at once."""

    END = 0
    ARRIVE = 1
    LOOK_AGAIN = 2
    """A job that was taken back started elsewhere at once, and could not be taken back twice in a moment."""


Event = tuple[float, int, Kind, Job, int]
"""When, its turn among those of the same moment, what, whose, and of which attempt."""
_APART: Final = 1 << 56
"""More events than any run has: kinds come one after the other, each in the order of asking."""


class Agenda:
    """Timed events, soonest first. Adding and taking one costs O(log of those pending)."""

    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        self._heap: Final[list[Event]] = []
        self._number = 0

    def add(self, at: float, kind: Kind, job: Job) -> None:
        self._number += 1
        heappush(self._heap, (at, kind * _APART + self._number, kind, job, job.attempt))

    def next_at(self) -> float | None:
        """When the soonest is due. What attempts that are over already asked for is dropped."""
        heap = self._heap
        while heap:
            at, _, kind, job, attempt = heap[0]
            if kind is not Kind.ARRIVE and (job.attempt != attempt or not job.places):
                heappop(heap)
                continue
            return at
        return None

    def pop(self, until: float) -> Event | None:
        """Take the soonest that is due by then."""
        heap = self._heap
        if heap and heap[0][0] <= until:
            return heappop(heap)
        return None

    def __len__(self) -> int:
        return len(self._heap)
