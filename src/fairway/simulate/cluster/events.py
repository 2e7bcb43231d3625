"""Run the event loop of the simulator: a queue of timed events, and their effects on jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import IntEnum
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Final, Protocol

from fairway.model.names import PoolName
from fairway.simulate.cluster.jobs import FOREVER, JobChange, SimAttempt, SimEnding, SimJob, SimState
from fairway.simulate.cluster.nodes import DeviceIndex
from fairway.simulate.cluster.scheduler import SupplyScheduler

NO_DELAYS: Final[Mapping[PoolName, float]] = MappingProxyType({})


class SimEventKind(IntEnum):
    """The kind of an event. At the same time, ends come before arrivals, which can use what they free."""

    END = 0
    ARRIVE = 1
    RESCHEDULE = 2
    """Schedule again: a preempted job started elsewhere at once, and is not preempted twice at one time."""


SimEvent = tuple[float, int, SimEventKind, SimJob, int]
"""Time, order among events of the same time, kind, job, and number of its attempt."""

_KIND_STRIDE: Final = 1 << 56
"""More than the events of any run: so events of the same time are ordered by kind, then by creation."""


class EventQueue:
    """Timed events, soonest first. Adding and removing one costs O(log pending events)."""

    def __init__(self) -> None:
        self._heap: Final[list[SimEvent]] = []
        self._number = 0

    def add(self, at: float, kind: SimEventKind, job: SimJob) -> None:
        self._number += 1
        heappush(self._heap, (at, kind * _KIND_STRIDE + self._number, kind, job, job.attempt))

    def next_at(self) -> float | None:
        """Return the time of the soonest event, and drop events of attempts that have ended."""
        heap = self._heap
        while heap:
            at, _, kind, job, attempt = heap[0]
            if kind is not SimEventKind.ARRIVE and (job.attempt != attempt or not job.places):
                heappop(heap)
                continue
            return at
        return None

    def pop(self, until: float) -> SimEvent | None:
        """Remove and return the soonest event that is due by `until`."""
        heap = self._heap
        if heap and heap[0][0] <= until:
            return heappop(heap)
        return None


_FINAL_STATES: Final = {
    SimEnding.DONE: SimState.DONE,
    SimEnding.FAILED: SimState.FAILED,
    SimEnding.TIMEOUT: SimState.TIMEOUT,
    SimEnding.CANCELLED: SimState.CANCELLED,
}


class ObservesAttempts(Protocol):
    """Is told of each start and end of a job's attempt, so that a long run needs no history."""

    def started(self, number: int, at: float) -> None: ...

    def stopped(self, number: int, at: float, ending: SimEnding) -> None: ...


class EventLoop:
    """Moves jobs from arrival to end. Admission and views are elsewhere."""

    def __init__(
        self,
        indexes: Iterable[DeviceIndex],
        start: float,
        *,
        history_size: int,
        reserve_after_seconds: float,
        start_seconds: float = 0.0,
        requeue_seconds: Mapping[PoolName, float] = NO_DELAYS,
        observer: ObservesAttempts | None = None,
    ) -> None:
        self.now = start
        self.events = 0
        """Arrivals and ends so far, the unit of a run's cost."""
        self.ended = 0
        self.jobs: Final[dict[int, SimJob]] = {}
        """All unfinished jobs, and the last `history_size` finished ones."""
        self.journal: Final[deque[JobChange]] = deque(maxlen=history_size)
        self.change_count = 0
        """Changes so far, including those no longer in the journal."""
        self.schedulers: Final = tuple(
            SupplyScheduler(index, self, reserve_after_seconds) for index in indexes
        )
        """By supply number."""
        self._accounting: Final = tuple(scheduler.accounting for scheduler in self.schedulers)
        self._history_size: Final = history_size
        self._start_seconds: Final = start_seconds
        self._requeue_seconds: Final = tuple(
            requeue_seconds.get(scheduler.index.supply.pool, 0.0) for scheduler in self.schedulers
        )
        """By supply number."""
        self._observer: Final = observer
        self._ended_jobs: Final[deque[int]] = deque()
        self._events: Final = EventQueue()
        self._dirty: Final[dict[SupplyScheduler, None]] = {}
        """Schedulers of supplies on which devices were freed."""
        self._arrived: Final[list[SimJob]] = []

    def next_at(self) -> float | None:
        """Return the time of the next event, None if there is none."""
        return self._events.next_at()

    def advance(self, until: float) -> None:
        """Process all events until a time. Each costs O(log pending), an end also a pass of its scheduler."""
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
                    pass  # of an attempt that has ended
                elif kind is SimEventKind.RESCHEDULE:
                    self._dirty[self.schedulers[job.supply_number]] = None
                else:
                    self._stop(job, _end_of(job))
                event = pop(now)
            self.schedule()
            event = pop(until)
        self.now = max(self.now, until)

    # called by schedulers

    def start(self, job: SimJob, places: tuple[int, ...]) -> None:
        """Start a job on the places that a scheduler selected."""
        now = self.now
        runs_from = now + self._start_seconds
        job.places = places
        job.attempt += 1
        job.state = SimState.RUNNING
        job.started = runs_from
        job.latest_end = runs_from + job.time_limit
        self._accounting[job.supply_number].start(job, places, now)
        run_seconds = job.duration if job.duration < job.time_limit else job.time_limit
        if run_seconds != FOREVER:
            self._events.add(runs_from + run_seconds, SimEventKind.END, job)
        if job.requeued_at == now:
            self._events.add(now + 1.0, SimEventKind.RESCHEDULE, job)
        if self._history_size:
            names = self.schedulers[job.supply_number].index.nodes
            nodes = tuple(names[p] for p in places)
            job.history.append(SimAttempt(job.attempt, runs_from, nodes))
            self._record(job)
        if self._observer is not None:
            self._observer.started(job.id, runs_from)

    def requeue(self, job: SimJob, ending: SimEnding, by: SimJob | None) -> None:
        """End an attempt because of preemption, eviction or a lost node; the job waits again."""
        self._end_attempt(job, ending, by)
        job.protected = False
        delay = self._requeue_seconds[job.supply_number]
        if delay:
            job.state = SimState.EXPECTED
            self.arrive_later(job, self.now + delay)
        else:
            job.requeued_at = self.now
            self._accounting[job.supply_number].join(job)
        self._record(job, ending, by)

    # called for users, who must call `schedule` afterwards

    def arrive(self, job: SimJob) -> None:
        """Add a job to its queue."""
        self.events += 1
        self._accounting[job.supply_number].join(job)
        self._arrived.append(job)
        self._record(job)

    def arrive_later(self, job: SimJob, at: float) -> None:
        """Add a job to its queue at a later time."""
        self._events.add(at, SimEventKind.ARRIVE, job)

    def cancel(self, job: SimJob) -> None:
        """Cancel a job, running or not, unless it has ended."""
        if job.places:
            self._stop(job, SimEnding.CANCELLED)
        elif job.state in (SimState.WAITING, SimState.HELD, SimState.EXPECTED):
            if job.state is SimState.WAITING:
                self._accounting[job.supply_number].leave(job)
            self._finish(job, SimState.CANCELLED)

    def hold(self, job: SimJob) -> None:
        """Hold a job that waits or has not arrived."""
        if job.state is SimState.WAITING:
            scheduler = self.schedulers[job.supply_number]
            scheduler.accounting.leave(job)
            self._dirty[scheduler] = None
        job.state = SimState.HELD
        self._record(job)

    def change(self, job: SimJob, changed: SimJob) -> None:
        """Replace the record of a job that has not started, or waits again, by a changed one."""
        changed.state, changed.attempt, changed.history = job.state, job.attempt, job.history
        changed.started, changed.requeued_at = job.started, job.requeued_at
        self.jobs[job.id] = changed
        if job.state is SimState.WAITING:
            old, new = self.schedulers[job.supply_number], self.schedulers[changed.supply_number]
            old.accounting.leave(job)
            new.accounting.join(changed)
            self._dirty[old] = self._dirty[new] = None
        elif job.state is SimState.EXPECTED:
            job.state = SimState.CANCELLED  # its arrival is not that of the job any more
            self.arrive_later(changed, changed.submitted)
        self._record(changed)

    def release(self, job: SimJob) -> None:
        """Release a held job."""
        scheduler = self.schedulers[job.supply_number]
        scheduler.accounting.join(job)
        self._record(job)
        self._dirty[scheduler] = None

    def schedule(self) -> None:
        """Run the schedulers of supplies on which something changed."""
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
        """Run every scheduler, after nodes or the policy changed."""
        self._dirty.update(dict.fromkeys(self.schedulers))
        self.schedule()

    def restore(self, job: SimJob, places: tuple[int, ...], started: float) -> None:
        """Let a job run that started before: it was in no queue. Nothing else is scheduled meanwhile."""
        job.places, job.attempt, job.state, job.started = places, 1, SimState.RUNNING, started
        job.latest_end = started + job.time_limit
        accounting = self._accounting[job.supply_number]
        accounting.index.allocate(job, places)
        accounting.count_held(job, 1, self.now)
        run_seconds = min(job.duration, job.time_limit)
        if run_seconds != FOREVER:
            self._events.add(max(self.now, started + run_seconds), SimEventKind.END, job)
        if self._history_size:
            names = accounting.index.nodes
            job.history.append(SimAttempt(1, started, tuple(names[p] for p in places)))
        if self._observer is not None:
            self._observer.started(job.id, started)

    # ends and the journal

    def _stop(self, job: SimJob, ending: SimEnding) -> None:
        self.events += 1
        self._end_attempt(job, ending, None)
        self._dirty[self.schedulers[job.supply_number]] = None
        self._finish(job, _FINAL_STATES[ending], ending)

    def _end_attempt(self, job: SimJob, ending: SimEnding, by: SimJob | None) -> None:
        now = self.now
        self._accounting[job.supply_number].stop(job, now)
        if self._history_size:
            preemptor = None if by is None else by.id
            job.history[-1] = replace(job.history[-1], ended=now, ending=ending, by=preemptor)
        if self._observer is not None:
            self._observer.stopped(job.id, now, ending)

    def _finish(self, job: SimJob, state: SimState, ending: SimEnding | None = None) -> None:
        job.state = state
        job.ended = self.now
        self.ended += 1
        if not self._history_size:
            del self.jobs[job.id]
            return
        self._record(job, ending)
        self._ended_jobs.append(job.id)
        if len(self._ended_jobs) > self._history_size:
            del self.jobs[self._ended_jobs.popleft()]

    def _record(self, job: SimJob, ending: SimEnding | None = None, by: SimJob | None = None) -> None:
        """Add a change of a job to the journal, unless no history is kept."""
        if not self._history_size:
            return
        names = self.schedulers[job.supply_number].index.nodes
        nodes = tuple(names[p] for p in job.places)
        devices = job.devices if nodes else 0
        number = None if by is None else by.id
        self.change_count += 1
        self.journal.append(
            JobChange(self.now, job.id, job.state, job.attempt, nodes, devices, ending, number)
        )


def _end_of(job: SimJob) -> SimEnding:
    """Return the ending of an attempt that nothing interferes with."""
    if job.duration > job.time_limit:
        return SimEnding.TIMEOUT
    return SimEnding.FAILED if job.request.exit_code else SimEnding.DONE
