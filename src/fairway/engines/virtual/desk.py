"""Who starts next on one supply: the guaranteed first, then by fair share, last what runs on idle devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from fairway.engines.virtual import reclaim
from fairway.engines.virtual.jobs import FOREVER, Ending, Job, JobState
from fairway.engines.virtual.lines import Line
from fairway.engines.virtual.nodes import Stock
from fairway.engines.virtual.quota import BOUNDLESS, Branch
from fairway.engines.virtual.reservation import Reservation, reserve
from fairway.engines.virtual.terms import Terms
from fairway.model.names import TeamName


class Hands(Protocol):
    """Whoever carries out what a desk decides."""

    def start(self, job: Job, places: tuple[int, ...]) -> None: ...

    def take(self, job: Job, ending: Ending, by: Job) -> None:
        """End the running attempt; the job waits again."""
        ...


class Desk:
    """Decides for one supply. A pass costs O(teams and shapes that wait), whatever the number of jobs.

    Passes happen only when something was freed or the policy changed; a job that arrives alone is looked at
    alone, for nobody who waited already can start because of it.
    """

    __slots__ = (
        "_hands",
        "_now",
        "_pass",
        "half_life",
        "low_held",
        "low_running",
        "lowest_firm",
        "outranking",
        "patience",
        "reservation",
        "root",
        "stock",
        "urgent_above",
    )

    def __init__(self, stock: Stock, hands: Hands, patience: float) -> None:
        self.stock: Final = stock
        self.root = Branch(None, None)
        self.half_life = 1.0
        self.urgent_above = 0
        """Ranks above it are urgent."""
        self.low_running: Final[dict[Job, None]] = {}
        """What is preemptible always, in the order of its start."""
        self.low_held = 0
        self.patience: Final = patience
        self.lowest_firm = 0
        self.outranking = 0
        """Waiting jobs that are not of the lowest firm rank: they may outrank what their team runs."""
        self.reservation: Reservation | None = None
        self._hands: Final = hands
        self._pass = 0
        self._now = 0.0

    def reset(
        self, terms: Terms, before: Mapping[TeamName, Branch], now: float, half_life: float
    ) -> dict[TeamName, Branch]:
        """Fresh branches for these terms, with the memory of those before; jobs are booked on them anew."""
        self.root = Branch(None, None)
        self.half_life = float(max(1, terms.fairness.half_life_seconds))
        self.urgent_above = terms.default_rank
        self.lowest_firm = min((p.rank for p in terms.priorities if not p.preemptible), default=0)
        self.low_running.clear()
        self.low_held = self.outranking = 0
        branches: dict[TeamName, Branch] = {}
        for team in terms.teams:
            parent = self.root if team.parent is None else branches[team.parent]
            branch = branches[team.name] = Branch(team, parent)
            branch.set_terms(team, self.stock.supply)
            parent.children.append(branch)
            branch.average_at = now
            if team.name in before:
                branch.average = before[team.name].averaged(now, half_life)
        return branches

    # the books

    def book(self, job: Job, sign: int, now: float) -> None:
        """Count the job's devices: 1 when it starts, -1 when it leaves."""
        branch, devices = job.branch, sign * job.devices
        branch.hold(devices, 0 if job.low else devices, now, self.half_life)
        if sign > 0:
            branch.add_running(job)
        else:
            branch.remove_running(job)
        if job.low:
            self.low_held += devices
            if sign > 0:
                self.low_running[job] = None
            else:
                del self.low_running[job]

    def join(self, job: Job) -> None:
        """The job waits from now on."""
        job.state = JobState.WAITING
        job.branch.lines.join(job)
        self._count_waiting(job, 1)

    def leave(self, job: Job) -> None:
        """The job waits no more."""
        if job.line is None:  # it sits on the bench
            job.branch.lines.benched[job.request.user].remove(job)
        job.line = None
        self._count_waiting(job, -1)

    def _count_waiting(self, job: Job, by: int) -> None:
        if job.low:
            for branch in job.branch.path:
                branch.waiting_low += by
            return
        for branch in job.branch.path:
            branch.waiting += by
        if job.rank > self.lowest_firm:
            self.outranking += by

    # the whole queue

    def serve(self, now: float) -> None:
        """Start everything that can start now."""
        self._now = now
        self._pass += 1
        while self._reserved() or self._guaranteed() or self._lent() or self._idle():
            pass

    def serve_one(self, job: Job, now: float) -> None:
        """Start the job that just arrived, if it can; everybody else that waits is known to be unable to."""
        self._now = now
        self._pass += 1
        line = job.line
        if line is None or (len(line.jobs) > 1 and self.reservation is None and line.first() is not job):
            return
        before = self._pass
        if job.low:
            self._try_idle(job)
        else:
            self._try(job, guaranteed=job.branch.entitled(job.devices))
        if self._pass != before:  # it took somebody's place: who had to leave may fit elsewhere
            self.serve(now)

    def _guaranteed(self) -> bool:
        return any(
            self._try_lines(branch, guaranteed=True) for branch in self._below_guarantee(self.root, False)
        )

    def _below_guarantee(self, branch: Branch, above: bool) -> Iterator[Branch]:
        """Branches that wait and are within some guarantee, those first that had least beyond it."""
        waiting = [c for c in branch.children if c.waiting and (above or c.guarantee)]
        if len(waiting) > 1:
            waiting.sort(key=lambda c: (c.firm >= c.guarantee, c.due(self._now, self.half_life), c.name))
        for child in waiting:
            below = above or child.firm < child.guarantee
            yield from self._below_guarantee(child, below)
            if below and child.lines.firm:
                yield child

    def _lent(self) -> bool:
        if not self.stock.free_total and not self.low_running and not self.outranking:
            return False
        return any(
            self._try_lines(branch, guaranteed=False) for branch in self._by_share(self.root, low=False)
        )

    def _idle(self) -> bool:
        if not self.stock.free_total:
            return False
        for branch in self._by_share(self.root, low=True):
            for line, job in branch.lines.in_order(low=True):
                if line.passed != self._pass:
                    if self._try_idle(job):
                        return True
                    line.passed = self._pass
        return False

    def _by_share(self, branch: Branch, low: bool) -> Iterator[Branch]:
        """Branches that wait: by what they had beyond their guarantees for their share, level by level."""
        waiting = [c for c in branch.children if (c.waiting_low if low else c.waiting)]
        if len(waiting) > 1:
            waiting.sort(key=lambda c: (c.due(self._now, self.half_life), c.name))
        if branch.lines.low if low else branch.lines.firm:
            yield branch
        for child in waiting:
            yield from self._by_share(child, low)

    # one line, one job

    def _try_lines(self, branch: Branch, *, guaranteed: bool) -> bool:
        free = self.stock.free_total
        room = branch.room()
        for line, job in branch.lines.in_order(low=False):
            if line.passed == self._pass:
                continue
            if guaranteed:
                if not branch.entitled(line.devices):
                    continue
            elif (line.devices > free or line.devices > room) and not self._may_take(line, branch):
                if line.devices <= room:
                    self._keep_place(job)
                else:
                    self._save_quota(job)
                line.passed = self._pass
                continue
            started = self._try(job, guaranteed=guaranteed)
            if started:
                return True
            if started is None:  # somebody else of the line may
                return self._try_lines(branch, guaranteed=guaranteed)
            line.passed = self._pass
        return False

    def _may_take(self, line: Line, branch: Branch) -> bool:
        """Whether there is anything at all that a job of the line could take without a guarantee."""
        return bool(self.low_running) or any(r < line.rank and jobs for r, jobs in branch.running.items())

    def _try(self, job: Job, *, guaranteed: bool, keep: bool = True) -> bool | None:
        """Start the job if it can, taking what it may. None: it left its line, its user has enough."""
        branch = job.branch
        if self._stopped(branch) or self._behind(job):
            return False
        if branch.user_held.get(job.request.user, 0) + job.devices > branch.user_most:
            self._bench(job)
            return None
        short = branch.room() < job.devices
        if not short:
            places = self._find(job, guaranteed=guaranteed)
            if places is not None:
                self._hands.start(job, places)
                return True
        if self._take_for(job):
            return True
        if short:
            self._save_quota(job)
        elif keep:
            self._keep_place(job)
        return False

    def _find(self, job: Job, *, guaranteed: bool) -> tuple[int, ...] | None:
        stock = self.stock
        find = stock.find_together if job.together else stock.find
        places = find(job.nodes, job.per_node)
        kept = self.reservation
        if places is not None or kept is None:
            return places
        if guaranteed and not kept.job.branch.entitled(kept.job.devices):
            self.drop_reservation()  # a guarantee comes before what waits for lent devices
            return find(job.nodes, job.per_node)
        if self._now + job.limit <= kept.until < FOREVER:
            return self._among_kept(job)  # gone before anybody could start there
        return None

    def _among_kept(self, job: Job) -> tuple[int, ...] | None:
        if self.reservation is None or job.nodes > 1:
            return None
        free = self.stock.free
        return next(((p,) for p in self.reservation.places if free[p] >= job.per_node), None)

    def _try_idle(self, job: Job) -> bool | None:
        """Start a job that is preemptible always on what is free; it takes nothing from anybody."""
        branch = job.branch
        if self._stopped(branch) or branch.room() < job.devices:
            return False
        if branch.user_held.get(job.request.user, 0) + job.devices > branch.user_most:
            self._bench(job)
            return None
        stock = self.stock
        places = (stock.find_together if job.together else stock.find)(job.nodes, job.per_node)
        if places is None:
            places = self._among_kept(job)  # whoever they are kept for may take them back at once
        if places is None:
            return False
        self._hands.start(job, places)
        return True

    def _take_for(self, job: Job) -> bool:
        leaving = reclaim.choose(job, self.stock, [*reversed(self.low_running)], self.urgent_above, self._now)
        if leaving is None:
            return False
        for other in leaving:
            own = other.low or other.branch is job.branch
            self._hands.take(other, Ending.OUTRANKED if own else Ending.RECLAIMED, job)
        places = (self.stock.find_together if job.together else self.stock.find)(job.nodes, job.per_node)
        if places is None:
            raise AssertionError(f"job {job.id} does not fit where room was made for it")
        self._hands.start(job, places)
        self._pass += 1  # whoever could not start before may now: something was freed
        return True

    @staticmethod
    def _stopped(branch: Branch) -> bool:
        return any(b.draining for b in branch.path)

    @staticmethod
    def _bench(job: Job) -> None:
        job.line = None
        job.branch.lines.benched.setdefault(job.request.user, []).append(job)

    def unbench(self, job: Job) -> None:
        """Something of the job's user ended: whoever waits for that stands in line again."""
        branch = job.branch
        if branch.lines.benched and branch.user_most < BOUNDLESS:
            for other in branch.lines.benched.pop(job.request.user, ()):
                branch.lines.join(other)

    # reservations

    def _save_quota(self, job: Job) -> None:
        """Its team's own jobs leave it no room, and it waited long: the team's later ones let it go first."""
        branch = job.branch
        if branch.saving is None and self._now - job.submitted >= self.patience:
            own = sum(other.devices for other in branch.weakest_first(BOUNDLESS))
            if all(b.held - own + job.devices <= b.ceiling for b in branch.path):
                branch.saving = job

    @staticmethod
    def _behind(job: Job) -> bool:
        """Whether its team saves for an earlier job."""
        first = job.branch.saving
        if first is None or first is job:
            return False
        if first.line is None:
            job.branch.saving = None
            return False
        return job.id > first.id and job.rank <= first.rank

    def _keep_place(self, job: Job) -> None:
        """The first in order that lacks only places gets the soonest ones kept for it."""
        if self.reservation is not None or self._stopped(job.branch):
            return
        kept = reserve(job, self.stock, self._now)
        # Without time limits nobody knows how long kept places stay idle: only for who waited long already.
        if kept is not None and (kept.until < FOREVER or self._now - job.submitted >= self.patience):
            self._keep(kept)

    def _keep(self, kept: Reservation) -> None:
        self.reservation = kept
        for place in kept.places:
            self.stock.set_listed(place, False)

    def drop_reservation(self) -> None:
        """The kept places are anybody's again."""
        kept, self.reservation = self.reservation, None
        if kept is not None:
            for place in kept.places:
                self.stock.set_listed(place, self.stock.open[place])

    def _reserved(self) -> bool:
        """Whether the job that places are kept for starts, or needs them no more."""
        kept = self.reservation
        if kept is None:
            return False
        job, stock = kept.job, self.stock
        if job.line is None or self._stopped(job.branch) or job.branch.room() < job.devices:
            self.drop_reservation()
            self._pass += 1
            return True
        here = sum(max(0, stock.free[p]) for p in kept.places)
        if here + stock.free_total + self.low_held < job.devices:
            return False
        self.drop_reservation()
        started = self._try(job, guaranteed=job.branch.entitled(job.devices), keep=False)
        if started is False:
            self._keep(kept)
            return False
        self._pass += 1
        return True
