"""Who starts next on one supply: the guaranteed first, then by fair share, last what runs on idle devices."""

from __future__ import annotations

from itertools import accumulate
from typing import Final, Protocol

from fairway.engines.virtual import reclaim
from fairway.engines.virtual.books import Books
from fairway.engines.virtual.jobs import FOREVER, Ending, Job
from fairway.engines.virtual.lines import Line, in_order
from fairway.engines.virtual.nodes import Stock
from fairway.engines.virtual.quota import BOUNDLESS, Branch
from fairway.engines.virtual.reservation import Reservation, reserve


class Hands(Protocol):
    """Whoever carries out what a desk decides."""

    def start(self, job: Job, places: tuple[int, ...]) -> None: ...

    def take(self, job: Job, ending: Ending, by: Job) -> None:
        """End the running attempt; the job waits again."""
        ...


class Desk(Books):
    """Decides for one supply. A pass costs O(lines that wait), whatever the number of jobs in them.

    Passes happen only when something was freed or the policy changed; a job that arrives alone is looked at
    alone, for nobody who waited already can start because of it.
    """

    __slots__ = (
        "_hands",
        "_lends",
        "_now",
        "_outranked_in",
        "_pass",
        "_shapes_found",
        "_vain_until",
        "patience",
        "reservation",
    )

    def __init__(self, stock: Stock, hands: Hands, patience: float) -> None:
        super().__init__(stock)
        self.patience: Final = patience
        self.reservation: Reservation | None = None
        self._hands: Final = hands
        self._lends = False
        """Some team passed its guarantee since the last look: what it holds can be taken back now."""
        self._pass = 0
        self._outranked_in = -1
        self._shapes_found = -1
        self._now = 0.0
        self._vain_until = -1.0

    def serve(self, now: float) -> None:
        """Start everything that can start now."""
        self._now = now
        self._pass += 1
        self.remember(now)
        again = True
        while again:
            while self._reserved() or self._guaranteed():
                pass
            before = self._pass
            while self._pass == before and self._lent():
                pass
            if self._entitled_may_hope():
                self._pass += 1
            again = self._pass != before  # somebody's place was taken: who could not start before may now
        while self._idle():
            pass

    def serve_one(self, job: Job, now: float) -> None:
        """Start the job that just arrived, if it can; everybody else that waits is known to be unable to."""
        line = job.line
        if line is None or (line.count > 1 and self.reservation is None):
            return  # those before it in its line ask for just the same
        self._now = now
        self._pass += 1
        before = self._pass
        if job.low:
            self._try_idle(job)
        else:
            self._try(job, guaranteed=job.branch.entitled(job.devices))
        # It took somebody's place: who had to leave may fit elsewhere. Or what its team holds is lent now.
        if self._pass != before or self._entitled_may_hope():
            self.serve(now)

    def _entitled_may_hope(self) -> bool:
        """Whether a team passed its guarantee just now while somebody waits who is below theirs."""
        lends, self._lends = self._lends, False
        return lends and any(branch.waiting for branch in self.below)

    def _start(self, job: Job, places: tuple[int, ...]) -> None:
        self._hands.start(job, places)
        if not job.low:
            self._lends |= any(b.firm > b.guarantee >= b.firm - job.devices for b in job.branch.path)

    # the three tiers, each starts at most one job

    def _guaranteed(self) -> bool:
        """Somebody within a guarantee, by taking back what is lent if need be."""
        for below in sorted([b for b in self.below if b.waiting], key=_first_below):
            inside = [b for b in below.all_inside() if b.lines.firm and not b.stopped]
            for branch in self._by_share(inside):
                slack, done = branch.slack(), self._pass
                mine = branch.lines.firm.values()
                lines = [line for line in mine if line.devices <= slack and line.passed != done]
                if lines and self._try_lines(lines, guaranteed=True):
                    return True
        return False

    def _lent(self) -> bool:
        """Somebody by fair share, on what is free or held by jobs that are preemptible always."""
        if not self.queued:
            return False
        hopeful = self._find_hopeful()
        if hopeful:
            first = min(hopeful, key=_share_order) if len(hopeful) > 1 else next(iter(hopeful))
            if self._try_branch(first):
                return True
            del hopeful[first]
            if any(self._try_branch(branch) for branch in self._by_share(list(hopeful))):
                return True
        if self.reservation is None and self._now >= self._vain_until:
            self._keep_for_first()
        return False

    def _try_branch(self, branch: Branch) -> bool:
        if branch.stopped:
            return False
        room = branch.room()
        lines = [line for line in branch.lines.firm.values() if self._line_hopeful(line, branch, room)]
        return bool(lines) and self._try_lines(lines, guaranteed=False)

    def _idle(self) -> bool:
        """Somebody that is preemptible always, on what is free."""
        if not self.queued_low or not (self.stock.free_total or self.reservation):
            return False
        hopeful: dict[Branch, int] = {}
        self._find_fitting()
        for shape in self.shapes.values():
            if shape.branches_low and (shape.fits or shape.fits_kept):
                hopeful.update(shape.branches_low)
        for branch in self._by_share(list(hopeful)):
            fitting = [n for n in branch.lines.low.values() if n.shape.fits or n.shape.fits_kept]
            for line in in_order(fitting):
                if line.passed != self._pass:
                    started = self._try_idle(line.first())
                    if started is not False:
                        return True
                    line.passed = self._pass
        return False

    def _find_fitting(self) -> None:
        """Find which shapes have room now. O(shapes + devices of a node), once for each change."""
        if not self.stock.changed and len(self.shapes) == self._shapes_found:
            return
        self.stock.changed, self._shapes_found = False, len(self.shapes)
        stock, kept, low = self.stock, self.reservation, self.low_held > 0
        most_kept = 0 if kept is None else max([stock.free[p] for p in kept.places])
        # How many places have at least so many devices free, or loose.
        free, loose = (
            list(accumulate(map(len, reversed(stock.buckets)))),
            list(accumulate(reversed(stock.loose))),
        )
        most = stock.most
        for shape in self.shapes.values():
            at = most - shape.per_node
            shape.fits = free[at] >= shape.nodes
            shape.fits_kept = shape.nodes == 1 and shape.per_node <= most_kept
            shape.fits_loosely = low and loose[at] >= shape.nodes

    def _find_hopeful(self) -> dict[Branch, int]:
        """Who waits for a shape that has room, or could take somebody's place."""
        self._find_fitting()
        hopeful: dict[Branch, int] = {}
        for shape in self.shapes.values():
            if shape.branches and (shape.fits or shape.fits_kept or shape.fits_loosely):
                hopeful.update(shape.branches)
        if self._outranked_in != self._pass:  # once a pass: what they could take does not grow by starts
            self._outranked_in = self._pass
            hopeful.update(self.outranking)
        return hopeful

    def _line_hopeful(self, line: Line, branch: Branch, room: int) -> bool:
        """Whether trying the line could come to something."""
        if line.passed == self._pass:
            return False
        if branch.saving is not None and self._behind(line.first()):
            return False
        shape = line.shape
        if line.devices <= room:
            if shape.fits or shape.fits_loosely:
                return True
            kept = self.reservation
            if shape.fits_kept and kept is not None and self._now + line.first().limit <= kept.until:
                return True
        elif branch.held > branch.firm:
            return True  # what is preemptible always may make room below its ceiling
        else:
            self._save_quota(line.first())
        return line.rank > self.lowest_firm and branch.runs_between(self.lowest_firm, line.rank)

    @staticmethod
    def _by_share(branches: list[Branch]) -> list[Branch]:
        """By what they, and the teams they are inside of, had beyond their guarantees for their share."""
        if len(branches) > 1:
            branches.sort(key=_share_order)
        return branches

    # one line, one job

    def _try_lines(self, lines: list[Line], *, guaranteed: bool) -> bool:
        kept_for = None if self.reservation is None else self.reservation.job
        for line in in_order(lines):
            if line.first() is kept_for:
                continue  # it was tried first of all, with the places that are kept for it
            started = self._try(line.first(), guaranteed=guaranteed)
            if started is not False:
                return True
            line.passed = self._pass
        return False

    def _try(self, job: Job, *, guaranteed: bool, keep: bool = True) -> bool | None:
        """Start the job if it can, taking what it may. None: it left its line, its user has enough."""
        branch = job.branch
        if branch.stopped or (branch.saving is not None and self._behind(job)):
            return False
        if self._benched(job):
            return None
        short = branch.room() < job.devices
        if not short:
            places = self._find(job, guaranteed=guaranteed)
            if places is not None:
                self._start(job, places)
                return True
        if self._may_take(job, short, guaranteed) and self._take_for(job):
            return True
        if short:
            self._save_quota(job)
        elif keep and self.reservation is None and self._now >= self._vain_until:
            self._keep_place(job)
        return False

    def _may_take(self, job: Job, short: bool, guaranteed: bool) -> bool:
        """Whether looking for somebody who gives way could come to something."""
        if guaranteed or job.branch.runs_between(self.lowest_firm, job.rank):
            return True
        if short:
            return any(b.held > b.firm for b in job.branch.path)
        return self.low_held > 0 and sum(self.stock.loose[job.per_node :]) >= job.nodes

    def _benched(self, job: Job) -> bool:
        branch = job.branch
        if branch.user_most < BOUNDLESS:
            held = branch.user_held.get(job.request.user, 0)
            if held + job.devices > branch.user_most:
                self.bench(job)
                return True
        return False

    def _find(self, job: Job, *, guaranteed: bool) -> tuple[int, ...] | None:
        places = self.stock.find_for(job)
        kept = self.reservation
        if places is not None or kept is None:
            return places
        if guaranteed and not kept.job.branch.entitled(kept.job.devices):
            self.drop_reservation()  # a guarantee comes before what waits for lent devices
            return self.stock.find_for(job)
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
        if branch.stopped_low or branch.room() < job.devices:
            return False
        if self._benched(job):
            return None
        # Whoever places are kept for may take them back at once.
        places = self.stock.find_for(job) or self._among_kept(job)
        if places is None:
            return False
        self._hands.start(job, places)
        return True

    def _take_for(self, job: Job) -> bool:
        leaving = reclaim.choose(job, self, self._now)
        if leaving is None:
            return False
        for other in sorted(leaving, key=_size):  # the largest last: each leaves a team above its guarantee
            own = other.low or other.branch is job.branch
            self._hands.take(other, Ending.OUTRANKED if own else Ending.RECLAIMED, job)
        places = self.stock.find_for(job)
        if places is None:
            raise AssertionError(f"job {job.id} does not fit where room was made for it")
        self._start(job, places)
        self._pass += 1  # whoever could not start before may now: something was freed
        return True

    # reservations

    def _keep_for_first(self) -> None:
        """The first in order that lacks only places."""
        for branch in self._by_share([b for b in self.queued if not b.stopped]):
            room = branch.room()
            for line in in_order([line for line in branch.lines.firm.values() if line.devices <= room]):
                if not self._behind(line.first()):
                    self._keep_place(line.first())
                    return

    def _keep_place(self, job: Job) -> None:
        """Keep the places for it that are free soonest."""
        kept = reserve(job, self.stock, self._now)
        # Without time limits nobody knows how long kept places stay idle: only for who waited long already.
        if kept is not None and (kept.until < FOREVER or self._now - job.submitted >= self.patience):
            self._keep(kept)
        else:
            self._vain_until = self._now + self.patience / 8

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
        job = kept.job
        if job.line is None or job.branch.stopped or job.branch.room() < job.devices:
            self.drop_reservation()
            self._pass += 1
            return True
        guaranteed = job.branch.entitled(job.devices)
        if not guaranteed and not self._has_room_with_kept(kept):
            return False
        self.drop_reservation()
        started = self._try(job, guaranteed=guaranteed, keep=False)
        if started is False:
            self._keep(kept)
            return False
        self._pass += 1
        return True

    def _has_room_with_kept(self, kept: Reservation) -> bool:
        """Whether kept and free places together are enough, once what is preemptible always is gone."""
        need, loose_at = kept.job.per_node, self.stock.loose_at
        ready = sum([loose_at[p] >= need for p in kept.places])
        return ready + sum(self.stock.loose[need:]) >= kept.job.nodes

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


def _share_order(branch: Branch) -> tuple[float, ...]:
    path = branch.path
    if len(path) == 1:
        return (branch.due, branch.number)
    if len(path) == 2:
        top = path[1]
        return (top.due, top.number, branch.due, branch.number)
    return tuple([n for above in reversed(path) for n in (above.due, above.number)])


def _size(job: Job) -> tuple[int, int]:
    return (job.devices, job.id)


def _first_below(branch: Branch) -> tuple[int, float, int]:
    """A guarantee of one's own comes before what the family has to give."""
    return (-len(branch.path), branch.due, branch.number)
