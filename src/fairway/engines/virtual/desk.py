"""Who starts next on one supply: the guaranteed first, then by fair share, last what runs on idle devices."""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

from fairway.engines.virtual import reclaim
from fairway.engines.virtual.jobs import FOREVER, Ending, Job
from fairway.engines.virtual.keeping import Keeping
from fairway.engines.virtual.lines import Line, in_order
from fairway.engines.virtual.nodes import Stock
from fairway.engines.virtual.quota import BOUNDLESS, Branch, by_share


class Hands(Protocol):
    """Whoever carries out what a desk decides."""

    def start(self, job: Job, places: tuple[int, ...]) -> None: ...

    def take(self, job: Job, ending: Ending, by: Job) -> None:
        """End the running attempt; the job waits again."""
        ...


class Desk(Keeping):
    """Decides for one supply. A pass costs O(lines that wait), whatever the number of jobs in them.

    Passes happen only when something was freed or the policy changed; a job that arrives alone is looked at
    alone, for nobody who waited already can start because of it.
    """

    __slots__ = ("_hands", "_lends", "_outranked_in", "_pass")

    def __init__(self, stock: Stock, hands: Hands, patience: float) -> None:
        super().__init__(stock, patience)
        self._hands: Final = hands
        self._lends = False
        """Some team passed its guarantee since the last look: what it holds can be taken back now."""
        self._pass = 0
        self._outranked_in = -1

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
            for branch in job.branch.path:
                if branch.firm > branch.guarantee >= branch.firm - job.devices:
                    self._lends = True

    # the three tiers, each starts at most one job

    def _guaranteed(self) -> bool:
        """Somebody within a guarantee, by taking back what is lent if need be."""
        below = [b for b in self.below if b.waiting]
        if len(below) > 1:
            below.sort(key=_first_below)
        for entitled in below:
            inside = [b for b in entitled.inside if b.lines.firm and not b.stopped]
            for _, branch in sorted(by_share(inside)):
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
        hopeful = by_share(self._find_hopeful())
        if hopeful:
            first = min(hopeful)  # mostly it starts, and who comes after it need not be known
            if self._try_branch(first[1]):
                return True
            hopeful.sort()
            for _, branch in islice(hopeful, 1, None):
                if self._try_branch(branch):
                    return True
        if self.reservation is None and self._now >= self._vain_until:
            self._keep_for_first()
        return False

    def _try_branch(self, branch: Branch) -> bool:
        if branch.stopped:
            return False
        lines = self._hopeful_lines(branch)
        return bool(lines) and self._try_lines(lines, guaranteed=False)

    def _idle(self) -> bool:
        """Somebody that is preemptible always, on what is free."""
        if not self.queued_low or not (self.stock.free_total or self.most_kept()):
            return False
        at_least, most_kept, done = self.stock.at_least, self.most_kept(), self._pass
        hopeful: dict[Branch, int] = {}
        for shape in self.shapes.values():
            nodes = shape.nodes
            if shape.branches_low and (
                at_least[shape.per_node] >= nodes or (nodes == 1 and shape.per_node <= most_kept)
            ):
                hopeful.update(shape.branches_low)
        for _, branch in sorted(by_share(hopeful)):
            lines = [
                line
                for line in branch.lines.low.values()
                if line.passed != done
                and (
                    at_least[line.per_node] >= line.nodes or (line.nodes == 1 and line.per_node <= most_kept)
                )
            ]
            for line in in_order(lines):
                if self._try_idle(line.first()) is not False:
                    return True
                line.passed = done
        return False

    def _find_hopeful(self) -> dict[Branch, int]:
        """Who waits for a shape that has room, or could take somebody's place. O(shapes + those who do)."""
        at_least, most_kept = self.stock.at_least, self.most_kept()
        # Where nothing is preemptible always, what is loose is what is free.
        loose_at_least = self.stock.loose_at_least if self.low_held else at_least
        hopeful: dict[Branch, int] = {}
        for shape in self.shapes.values():
            need, nodes = shape.per_node, shape.nodes
            if (
                at_least[need] >= nodes or loose_at_least[need] >= nodes or (need <= most_kept and nodes == 1)
            ) and shape.branches:
                hopeful.update(shape.branches)
        if self._outranked_in != self._pass:  # once a pass: what they could take does not grow by starts
            self._outranked_in = self._pass
            hopeful.update(self.outranking)
        return hopeful

    def _hopeful_lines(self, branch: Branch) -> list[Line]:
        """The lines that it could come to something to try."""
        done, room, lowest, saving = self._pass, branch.room(), self.lowest_firm, branch.saving
        at_least, most_kept = self.stock.at_least, self.most_kept()
        loose_at_least = self.stock.loose_at_least if self.low_held else at_least
        found: list[Line] = []
        for line in branch.lines.firm.values():
            if line.passed == done or (saving is not None and self._behind(line.first())):
                continue
            if line.devices <= room:
                need, nodes = line.per_node, line.nodes
                hopeful = (
                    at_least[need] >= nodes
                    or loose_at_least[need] >= nodes
                    or (nodes == 1 and need <= most_kept and self._gone_in_time(line.first()))
                )
            else:
                hopeful = branch.held > branch.firm  # what is preemptible always may go below its ceiling
                if not hopeful:
                    self._save_quota(line.first())
                    saving = branch.saving
            if hopeful or (line.rank > lowest and branch.runs_between(lowest, line.rank)):
                found.append(line)
        return found

    def _gone_in_time(self, job: Job) -> bool:
        """Whether it is gone before anybody could start on the places that are kept."""
        kept = self.reservation
        return kept is not None and self._now + job.limit <= kept.until

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
        return self.low_held > 0 and self.stock.loose_at_least[job.per_node] >= job.nodes

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


def _size(job: Job) -> tuple[int, int]:
    return (job.devices, job.id)


def _first_below(branch: Branch) -> tuple[int, float, int]:
    """A guarantee of one's own comes before what the family has to give."""
    return (-len(branch.path), branch.due, branch.number)
