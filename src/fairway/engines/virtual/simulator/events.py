"""The event loop of the simulator: a queue of events by time, and what each of them does to jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Final

from fairway.engines.virtual.simulator.jobs import FOREVER, JobChange, SimAttempt, SimEnding, SimJob, SimState
from fairway.engines.virtual.simulator.nodes import DeviceIndex
from fairway.engines.virtual.simulator.scheduler import SupplyScheduler


class SimEventKind(IntEnum):
    """What an event is about. Of one moment, ends come before arrivals: what they free can be had at once."""

    END = 0
    ARRIVE = 1
    LOOK_AGAIN = 2
    """A job that was taken back started elsewhere at once, and could not be taken back twice in a moment."""


SimEvent = tuple[float, int, SimEventKind, SimJob, int]
"""When, its turn among those of the same moment, what, whose, and of which attempt."""

_APART: Final = 1 << 56
"""More events than any run has: kinds come one after the other, each in the order of asking."""


class EventQueue:
    """Timed events, soonest first. Adding and taking one costs O(log of those pending)."""

    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        self._heap: Final[list[SimEvent]] = []
        self._number = 0

    def add(self, at: float, kind: SimEventKind, job: SimJob) -> None:
        self._number += 1
        heappush(self._heap, (at, kind * _APART + self._number, kind, job, job.attempt))

    def next_at(self) -> float | None:
        """When the soonest is due. What attempts that are over already asked for is dropped."""
        heap = self._heap
        while heap:
            at, _, kind, job, attempt = heap[0]
            if kind is not SimEventKind.ARRIVE and (job.attempt != attempt or not job.places):
                heappop(heap)
                continue
            return at
        return None

    def pop(self, until: float) -> SimEvent | None:
        """Take the soonest that is due by then."""
        heap = self._heap
        if heap and heap[0][0] <= until:
            return heappop(heap)
        return None

    def __len__(self) -> int:
        return len(self._heap)


_OVER: Final = {
    SimEnding.DONE: SimState.DONE,
    SimEnding.FAILED: SimState.FAILED,
    SimEnding.TIMEOUT: SimState.TIMEOUT,
    SimEnding.CANCELLED: SimState.CANCELLED,
}


class EventLoop:
    """Moves jobs from arrival to end. Who may submit, and what is shown, is not its business."""

    __slots__ = (
        "_accounting",
        "_arrived",
        "_dirty",
        "_events",
        "_remember",
        "_remembered",
        "change_count",
        "ended",
        "events",
        "jobs",
        "journal",
        "now",
        "schedulers",
    )

    def __init__(
        self, indexes: Iterable[DeviceIndex], start: float, *, remember: int, patience_seconds: float
    ) -> None:
        self.now = start
        self.events = 0
        """Arrivals and ends so far: what the cost of a run is counted in."""
        self.ended = 0
        self.jobs: Final[dict[int, SimJob]] = {}
        """Every job that is not over, or is remembered."""
        self.journal: Final[deque[JobChange]] = deque(maxlen=remember)
        self.change_count = 0
        """Changes so far, whether or not they are still remembered."""
        self.schedulers: Final = tuple(SupplyScheduler(index, self, patience_seconds) for index in indexes)
        """By the number of their supply."""
        self._accounting: Final = tuple(scheduler.accounting for scheduler in self.schedulers)
        self._remember: Final = remember
        self._remembered: Final[deque[int]] = deque()
        self._events: Final = EventQueue()
        self._dirty: Final[dict[SupplyScheduler, None]] = {}
        """Schedulers of supplies where something was freed."""
        self._arrived: Final[list[SimJob]] = []

    def next_at(self) -> float | None:
        """When the next thing happens by itself; None: nothing will."""
        return self._events.next_at()

    def advance(self, until: float) -> None:
        """Let time pass. O(log pending) an event, and for an end what its supply's scheduler needs."""
        pop = self._events.pop
        event = pop(until)
        while event is not None:
            now = self.now = event[0]
            while event is not None:
                _, _, kind, job, attempt = event
                if kind is SimEventKind.ARRIVE:
                    if job.state is SimState.EXPECTED:
                        self.arrive(job)
                elif job.attempt != attempt or not job.places:
                    pass  # of an attempt that is over
                elif kind is SimEventKind.LOOK_AGAIN:
                    self._dirty[self.schedulers[job.supply_number]] = None
                else:
                    self._stop(job, _end_of(job))
                event = pop(now)
            self.schedule()
            event = pop(until)
        self.now = max(self.now, until)

    # what schedulers ask for

    def start(self, job: SimJob, places: tuple[int, ...]) -> None:
        """Start a job where a scheduler decided."""
        now = self.now
        job.places = places
        job.attempt += 1
        job.state = SimState.RUNNING
        job.started = now
        job.ends = now + job.limit
        self._accounting[job.supply_number].start(job, places, now)
        lasts = job.asked if job.asked < job.limit else job.limit
        if lasts != FOREVER:
            self._events.add(now + lasts, SimEventKind.END, job)
        if job.barred_at == now:
            self._events.add(now + 1.0, SimEventKind.LOOK_AGAIN, job)
        if self._remember:
            names = self.schedulers[job.supply_number].index.nodes
            nodes = tuple(names[p] for p in places)
            job.history.append(SimAttempt(job.attempt, now, nodes))
            self._record(job)

    def requeue(self, job: SimJob, ending: SimEnding, by: SimJob | None) -> None:
        """End its attempt, as a scheduler decided or a node died; the job waits again."""
        self._end_attempt(job, ending, by)
        job.barred_at = self.now
        job.kept = False
        self._accounting[job.supply_number].join(job)
        if self._remember:
            self._record(job, ending, by)

    # what people ask for; `schedule` is to follow

    def arrive(self, job: SimJob) -> None:
        """Let a job wait from now on."""
        self.events += 1
        self._accounting[job.supply_number].join(job)
        self._arrived.append(job)
        if self._remember:
            self._record(job)

    def arrive_later(self, job: SimJob, at: float) -> None:
        """Let a job wait from a moment that has not come."""
        self._events.add(at, SimEventKind.ARRIVE, job)

    def cancel(self, job: SimJob) -> None:
        """End a job, running or not, unless it is over."""
        if job.places:
            self._stop(job, SimEnding.CANCELLED)
        elif job.state in (SimState.WAITING, SimState.HELD, SimState.EXPECTED):
            if job.state is SimState.WAITING:
                self._accounting[job.supply_number].leave(job)
            self._finish(job, SimState.CANCELLED)

    def hold(self, job: SimJob) -> None:
        """Keep a job that waits, or has not arrived, from starting until it is released."""
        if job.state is SimState.WAITING:
            scheduler = self.schedulers[job.supply_number]
            scheduler.accounting.leave(job)
            self._dirty[scheduler] = None
        job.state = SimState.HELD
        if self._remember:
            self._record(job)

    def release(self, job: SimJob) -> None:
        """Let a held job start again when it can."""
        scheduler = self.schedulers[job.supply_number]
        scheduler.accounting.join(job)
        if self._remember:
            self._record(job)
        self._dirty[scheduler] = None

    def schedule(self) -> None:
        """Let the schedulers decide where something changed."""
        arrived, dirty, now = self._arrived, self._dirty, self.now
        if arrived:
            if len(arrived) == 1 and not dirty:
                job = arrived.pop()
                self.schedulers[job.supply_number].schedule_one(job, now)
                return
            for job in arrived:
                dirty[self.schedulers[job.supply_number]] = None
            arrived.clear()
        for scheduler in list(dirty):
            scheduler.schedule(now)
        dirty.clear()

    def schedule_all(self) -> None:
        """Let every scheduler decide: nodes or the policy changed."""
        self._dirty.update(dict.fromkeys(self.schedulers))
        self.schedule()

    # the records

    def _stop(self, job: SimJob, ending: SimEnding) -> None:
        self.events += 1
        self._end_attempt(job, ending, None)
        self._dirty[self.schedulers[job.supply_number]] = None
        self._finish(job, _OVER[ending], ending)

    def _end_attempt(self, job: SimJob, ending: SimEnding, by: SimJob | None) -> None:
        now = self.now
        self._accounting[job.supply_number].stop(job, now)
        if self._remember:
            last = job.history[-1]
            job.history[-1] = SimAttempt(
                last.number, last.started, last.nodes, now, ending, None if by is None else by.id
            )

    def _finish(self, job: SimJob, state: SimState, ending: SimEnding | None = None) -> None:
        job.state = state
        job.ended = self.now
        self.ended += 1
        if not self._remember:
            del self.jobs[job.id]
            return
        self._record(job, ending)
        self._remembered.append(job.id)
        if len(self._remembered) > self._remember:
            del self.jobs[self._remembered.popleft()]

    def _record(self, job: SimJob, ending: SimEnding | None = None, by: SimJob | None = None) -> None:
        """Write down a change of a job; only where something is remembered."""
        names = self.schedulers[job.supply_number].index.nodes
        nodes = tuple(names[p] for p in job.places)
        devices = job.devices if nodes else 0
        number = None if by is None else by.id
        self.change_count += 1
        self.journal.append(
            JobChange(self.now, job.id, job.state, job.attempt, nodes, devices, ending, number)
        )


def _end_of(job: SimJob) -> SimEnding:
    """How an attempt that nobody disturbs ends."""
    if job.asked > job.limit:
        return SimEnding.TIMEOUT
    return SimEnding.FAILED if job.request.exit_code else SimEnding.DONE
