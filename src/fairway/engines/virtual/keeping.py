"""What a supply keeps for those who wait long: places for a job that does not fit yet, and a team's quota."""

from __future__ import annotations

from typing import Final

from fairway.engines.virtual.books import Books
from fairway.engines.virtual.jobs import FOREVER, Job
from fairway.engines.virtual.lines import in_order
from fairway.engines.virtual.nodes import Stock
from fairway.engines.virtual.quota import BOUNDLESS, by_share
from fairway.engines.virtual.reservation import Reservation, reserve


class Keeping(Books):
    """The books, with what is kept by them: at most one job has places kept for it."""

    __slots__ = ("_kept_loose", "_kept_seen", "_most_kept", "_now", "_vain_until", "patience", "reservation")

    def __init__(self, stock: Stock, patience: float) -> None:
        super().__init__(stock)
        self.patience: Final = patience
        self.reservation: Reservation | None = None
        self._now = 0.0
        self._vain_until = -1.0
        """No reservation was possible; until then it is not tried again."""
        self._kept_seen = -1
        self._most_kept = 0
        self._kept_loose = 0

    # places

    def _look_at_kept(self) -> None:
        """Count what the kept places have, if anything changed there. O(1) mostly, O(kept places) else."""
        stock = self.stock
        if self._kept_seen == stock.unlisted_moves:
            return
        self._kept_seen = stock.unlisted_moves
        kept = self.reservation
        if kept is None:
            self._most_kept = self._kept_loose = 0
        else:
            free, loose_at, need = stock.free, stock.loose_at, kept.job.per_node
            self._most_kept = max([free[p] for p in kept.places])
            self._kept_loose = sum([loose_at[p] >= need for p in kept.places])

    def most_kept(self) -> int:
        """The most devices that are free on a place that is kept for somebody."""
        self._look_at_kept()
        return self._most_kept

    def _has_room_with_kept(self, kept: Reservation) -> bool:
        """Whether kept and free places together are enough, once what is preemptible always is gone."""
        self._look_at_kept()
        job = kept.job
        return self._kept_loose + self.stock.loose_at_least[job.per_node] >= job.nodes

    def _among_kept(self, job: Job) -> tuple[int, ...] | None:
        if self.reservation is None or job.nodes > 1 or self.most_kept() < job.per_node:
            return None
        free = self.stock.free
        return next(((p,) for p in self.reservation.places if free[p] >= job.per_node), None)

    def _keep_for_first(self) -> None:
        """The first in order that lacks only places."""
        for _, branch in sorted(by_share([b for b in self.queued if not b.stopped])):
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
        self._kept_seen = -1
        for place in kept.places:
            self.stock.set_listed(place, False)

    def drop_reservation(self) -> None:
        """The kept places are anybody's again."""
        kept, self.reservation = self.reservation, None
        self._kept_seen = -1
        if kept is not None:
            for place in kept.places:
                self.stock.set_listed(place, self.stock.open[place])

    # quota

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
