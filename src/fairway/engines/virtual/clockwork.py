"""What makes a cluster go: events in their order, the desks that decide, and their decisions carried out."""

from __future__ import annotations

from collections import deque
from typing import Final

from fairway.engines.virtual.clock import Agenda, Kind
from fairway.engines.virtual.desk import Desk
from fairway.engines.virtual.jobs import FOREVER, Attempt, Ending, Happening, Job, JobState

_OVER: Final = {
    Ending.DONE: JobState.DONE,
    Ending.FAILED: JobState.FAILED,
    Ending.TIMEOUT: JobState.TIMEOUT,
    Ending.CANCELLED: JobState.CANCELLED,
}


class Clockwork:
    """Jobs on their way from arrival to end. Who may submit, and what is shown, is not its business."""

    def __init__(self, start: float, remember: int) -> None:
        self.now = start
        self.events = 0
        """Arrivals and ends so far: what the cost of a run is counted in."""
        self.ended = 0
        self._remember: Final = remember
        self._remembered: Final[deque[int]] = deque()
        self._agenda: Final = Agenda()
        self._jobs: Final[dict[int, Job]] = {}
        self._journal: Final[deque[Happening]] = deque(maxlen=remember)
        self.noted = 0
        """Happenings so far, whether or not they are still remembered."""
        self._dirty: Final[dict[Desk, None]] = {}
        """Desks where something was freed."""
        self._arrived: Final[list[Job]] = []

    def next_at(self) -> float | None:
        """When the next thing happens by itself; None: nothing will."""
        return self._agenda.next_at()

    def advance(self, until: float) -> None:
        """Let time pass. O(log pending) an event, and for an end what its supply's desk needs."""
        pop = self._agenda.pop
        event = pop(until)
        while event is not None:
            now = self.now = event[0]
            while event is not None:
                _, _, kind, job, attempt = event
                if kind is Kind.ARRIVE:
                    if job.state is JobState.EXPECTED:
                        self._arrive(job)
                elif job.attempt != attempt or not job.places:
                    pass  # of an attempt that is over
                elif kind is Kind.LOOK_AGAIN:
                    self._dirty[job.desk] = None
                else:
                    self._stop(job, _end_of(job))
                event = pop(now)
            self._serve()
            event = pop(until)
        self.now = max(self.now, until)

    # what desks ask for

    def start(self, job: Job, places: tuple[int, ...]) -> None:
        """As a desk decided."""
        now = self.now
        job.places = places
        job.attempt += 1
        job.state = JobState.RUNNING
        job.started = now
        job.ends = now + job.limit
        job.desk.begin(job, places, now)
        lasts = job.asked if job.asked < job.limit else job.limit
        if lasts != FOREVER:
            self._agenda.add(now + lasts, Kind.END, job)
        if job.barred_at == now:
            self._agenda.add(now + 1.0, Kind.LOOK_AGAIN, job)
        if self._remember:
            nodes = tuple(job.stock.nodes[p] for p in places)
            job.history.append(Attempt(job.attempt, now, nodes))
            self._note(job)

    def take(self, job: Job, ending: Ending, by: Job | None) -> None:
        """End its attempt, as a desk decided or a node died; the job waits again."""
        self._vacate(job, ending, by)
        job.barred_at = self.now
        job.kept = False
        job.desk.join(job)
        if self._remember:
            self._note(job, ending, by)

    # the records

    def _arrive(self, job: Job) -> None:
        self.events += 1
        job.desk.join(job)
        self._arrived.append(job)
        if self._remember:
            self._note(job)

    def _stop(self, job: Job, ending: Ending) -> None:
        self.events += 1
        self._vacate(job, ending, None)
        self._dirty[job.desk] = None
        self._over(job, _OVER[ending], ending)

    def _vacate(self, job: Job, ending: Ending, by: Job | None) -> None:
        desk, now = job.desk, self.now
        job.stock.remove(job, job.places)
        desk.book(job, -1, now)
        job.places = ()
        if job.branch.lines.benched:
            desk.unbench(job)
        if self._remember:
            last = job.history[-1]
            job.history[-1] = Attempt(
                last.number, last.started, last.nodes, now, ending, None if by is None else by.id
            )

    def _over(self, job: Job, state: JobState, ending: Ending | None = None) -> None:
        job.state = state
        job.ended = self.now
        self.ended += 1
        if not self._remember:
            del self._jobs[job.id]
            return
        self._note(job, ending)
        self._remembered.append(job.id)
        if len(self._remembered) > self._remember:
            del self._jobs[self._remembered.popleft()]

    def _serve(self) -> None:
        """Let the desks decide where something changed."""
        arrived, dirty, now = self._arrived, self._dirty, self.now
        if arrived:
            if len(arrived) == 1 and not dirty:
                job = arrived.pop()
                job.desk.serve_one(job, now)
                return
            for job in arrived:
                dirty[job.desk] = None
            arrived.clear()
        for desk in list(dirty):
            desk.serve(now)
        dirty.clear()

    def _note(self, job: Job, ending: Ending | None = None, by: Job | None = None) -> None:
        """Write down what happened to it; only where something is remembered."""
        nodes = tuple(job.stock.nodes[p] for p in job.places)
        devices = job.devices if nodes else 0
        number = None if by is None else by.id
        self.noted += 1
        self._journal.append(
            Happening(self.now, job.id, job.state, job.attempt, nodes, devices, ending, number)
        )


def _end_of(job: Job) -> Ending:
    """How an attempt that nobody disturbs ends."""
    if job.asked > job.limit:
        return Ending.TIMEOUT
    return Ending.FAILED if job.request.exit_code else Ending.DONE
