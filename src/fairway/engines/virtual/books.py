"""The books of one supply: who holds, who waits, in which shapes; kept in step event by event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairway.engines.virtual.jobs import Job, JobState
from fairway.engines.virtual.lines import Shape
from fairway.engines.virtual.nodes import Stock
from fairway.engines.virtual.quota import BOUNDLESS, Branch
from fairway.engines.virtual.terms import Terms
from fairway.model.names import TeamName


class Books:
    """What a desk decides by."""

    __slots__ = (
        "_remembered_at",
        "below",
        "half_life",
        "low_held",
        "low_running",
        "lowest_firm",
        "outranking",
        "queued",
        "queued_low",
        "root",
        "shapes",
        "starts",
        "stock",
        "urgent_above",
    )

    def __init__(self, stock: Stock) -> None:
        self.stock: Final = stock
        self.below: Final[dict[Branch, None]] = {}
        """Branches that hold less than they are guaranteed."""
        self.root = Branch(None, None, self.below)
        self.half_life = 1.0
        self.urgent_above = 0
        """Ranks above it are urgent."""
        self.lowest_firm = 0
        """The lowest rank that is not preemptible always: nobody outranks anything lower."""
        self.low_running: Final[dict[Job, None]] = {}
        """What is preemptible always, in the order of its start."""
        self.low_held = 0
        self.starts = 0
        self._remembered_at = 0.0
        self.outranking: Final[dict[Branch, int]] = {}
        """How many jobs wait above the lowest firm rank: they may outrank what their team runs."""
        self.shapes: Final[dict[tuple[int, int, bool], Shape]] = {}
        self.queued: Final[dict[Branch, None]] = {}
        """Branches with lines of their own; those that are preemptible always apart."""
        self.queued_low: Final[dict[Branch, None]] = {}

    def reset(
        self, terms: Terms, before: Mapping[TeamName, Branch], now: float, half_life: float
    ) -> dict[TeamName, Branch]:
        """Fresh branches for these terms, with the memory of those before; jobs are booked on them anew."""
        self.below.clear()
        self.root = Branch(None, None, self.below)
        self.half_life = float(max(1, terms.fairness.half_life_seconds))
        self.urgent_above = terms.default_rank
        self.lowest_firm = min((p.rank for p in terms.priorities if not p.preemptible), default=0)
        for counted in (self.low_running, self.queued, self.queued_low, self.shapes, self.outranking):
            counted.clear()
        self.low_held = 0
        branches: dict[TeamName, Branch] = {}
        for number, team in enumerate(terms.teams):
            parent = self.root if team.parent is None else branches[team.parent]
            branch = branches[team.name] = Branch(team, parent, self.below, number)
            branch.set_terms(team, self.stock.supply)
            parent.children.append(branch)
            branch.average_at = now
            if team.name in before:
                branch.average = before[team.name].averaged(now, half_life)
            branch.remember(now, self.half_life)
        for branch in branches.values():
            branch.inside = tuple(branch.all_inside())
        return branches

    def remember(self, now: float) -> None:
        """Let past use fade. A thousandth of a half-life is too short to matter: so often it is done."""
        if now - self._remembered_at > self.half_life / 1000:
            self._remembered_at = now
            for branch in self.root.all_inside():
                branch.remember(now, self.half_life)

    def book(self, job: Job, sign: int, now: float, waiting: int = 0) -> None:
        """Count the job's devices: 1 when it starts, -1 when it leaves."""
        branch, devices, low = job.branch, sign * job.devices, job.low
        branch.hold(devices, 0 if low else devices, now, self.half_life, waiting)
        if sign > 0:
            self.starts += 1
            job.turn = self.starts
            branch.add_running(job)
        else:
            branch.remove_running(job)
        if low:
            self.low_held += devices
            if sign > 0:
                self.low_running[job] = None
            else:
                del self.low_running[job]

    def begin(self, job: Job, places: tuple[int, ...], now: float) -> None:
        """The job waits no more: it runs there."""
        self._step_out(job)
        if not job.low and job.rank > self.lowest_firm:
            self._count_outranking(job, -1)
        self.stock.put(job, places)
        self.book(job, 1, now, -1)

    def join(self, job: Job) -> None:
        """The job waits from now on."""
        job.state = JobState.WAITING
        branch = job.branch
        if branch.lines.join(job, self.shapes):
            (self.queued_low if job.low else self.queued)[branch] = None
        self._count_waiting(job, 1)

    def leave(self, job: Job) -> None:
        """The job waits no more."""
        self._step_out(job)
        self._count_waiting(job, -1)

    def _step_out(self, job: Job) -> None:
        lines = job.branch.lines
        if job.line is None:  # it sits on the bench
            lines.benched[job.request.user].remove(job)
        elif lines.left(job):
            del (self.queued_low if job.low else self.queued)[job.branch]

    def bench(self, job: Job) -> None:
        """The job steps out of its line until something of its user ends."""
        lines = job.branch.lines
        if lines.left(job):
            del (self.queued_low if job.low else self.queued)[job.branch]
        lines.benched.setdefault(job.request.user, []).append(job)

    def unbench(self, job: Job) -> None:
        """Something of the job's user ended: whoever waits for that stands in line again."""
        branch = job.branch
        if branch.lines.benched and branch.user_most < BOUNDLESS:
            for other in branch.lines.benched.pop(job.request.user, ()):
                if branch.lines.join(other, self.shapes):
                    (self.queued_low if other.low else self.queued)[branch] = None

    def _count_waiting(self, job: Job, by: int) -> None:
        for branch in job.branch.path:
            branch.waiting += by
        if not job.low and job.rank > self.lowest_firm:
            self._count_outranking(job, by)

    def _count_outranking(self, job: Job, by: int) -> None:
        count = self.outranking.get(job.branch, 0) + by
        if count:
            self.outranking[job.branch] = count
        else:
            del self.outranking[job.branch]
