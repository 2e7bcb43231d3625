"""Decide what starts next on one supply: guaranteed jobs first, then by fair share, last on idle devices."""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

from fairway.engines.virtual.simulator.accounting import Accounting
from fairway.engines.virtual.simulator.jobs import FOREVER, SimEnding, SimJob, TeamQuota
from fairway.engines.virtual.simulator.nodes import DeviceIndex
from fairway.engines.virtual.simulator.preemption import select_victims
from fairway.engines.virtual.simulator.queues import JobQueue, in_order
from fairway.engines.virtual.simulator.quota import BOUNDLESS, by_share
from fairway.engines.virtual.simulator.reservation import Reservation, reserve


class JobControl(Protocol):
    """Whoever carries out what a scheduler decides."""

    def start(self, job: SimJob, places: tuple[int, ...]) -> None: ...

    def requeue(self, job: SimJob, ending: SimEnding, by: SimJob) -> None:
        """End the running attempt; the job waits again."""
        ...


class SupplyScheduler:
    """Decides for one supply. A pass costs O(queues that wait), whatever the number of jobs in them.

    Passes happen only when something was freed or the policy changed; a job that arrives alone is looked at
    alone, for nobody who waited already can start because of it. At most one job has places kept for it.
    """

    __slots__ = (
        "_control",
        "_kept_loose",
        "_kept_seen",
        "_lends",
        "_most_kept",
        "_now",
        "_outranked_in",
        "_pass",
        "_vain_until",
        "accounting",
        "index",
        "patience",
        "reservation",
    )

    def __init__(self, index: DeviceIndex, control: JobControl, patience: float) -> None:
        self.index: Final = index
        self.accounting: Final = Accounting(index)
        self.patience: Final = patience
        self.reservation: Reservation | None = None
        self._control: Final = control
        self._now = 0.0
        self._pass = 0
        self._outranked_in = -1
        self._lends = False
        """Some team passed its guarantee since the last look: what it holds can be taken back now."""
        self._vain_until = -1.0
        """No reservation was possible; until then it is not tried again."""
        self._kept_seen = -1
        self._most_kept = 0
        self._kept_loose = 0

    def schedule(self, now: float) -> None:
        """Start everything that can start now."""
        self._now = now
        self._pass += 1
        self.accounting.remember(now)
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

    def schedule_one(self, job: SimJob, now: float) -> None:
        """Start the job that just arrived, if it can; everybody else that waits is known to be unable to."""
        if not job.queued or (self.reservation is None and job.quota.queues.of(job).count > 1):
            return  # those before it in its queue ask for just the same
        self._now = now
        self._pass += 1
        before = self._pass
        if job.low:
            self._try_idle(job)
        else:
            self._try(job, guaranteed=job.quota.entitled(job.devices))
        # It took somebody's place: who had to leave may fit elsewhere. Or what its team holds is lent now.
        if self._pass != before or self._entitled_may_hope():
            self.schedule(now)

    def _entitled_may_hope(self) -> bool:
        """Whether a team passed its guarantee just now while somebody waits who is below theirs."""
        lends, self._lends = self._lends, False
        return lends and any(quota.waiting for quota in self.accounting.below)

    def _start(self, job: SimJob, places: tuple[int, ...]) -> None:
        self._control.start(job, places)
        if not job.low:
            for quota in job.quota.path:
                if quota.firm > quota.guarantee >= quota.firm - job.devices:
                    self._lends = True

    # the three tiers, each starts at most one job

    def _guaranteed(self) -> bool:
        """Somebody within a guarantee, by taking back what is lent if need be."""
        below = [b for b in self.accounting.below if b.waiting]
        if len(below) > 1:
            below.sort(key=_first_below)
        for entitled in below:
            inside = [b for b in entitled.inside if b.queues.firm and not b.stopped]
            for _, quota in sorted(by_share(inside)):
                slack, done = quota.slack(), self._pass
                mine = quota.queues.firm.values()
                queues = [queue for queue in mine if queue.devices <= slack and queue.passed != done]
                if queues and self._try_queues(queues, guaranteed=True):
                    return True
        return False

    def _lent(self) -> bool:
        """Somebody by fair share, on what is free or held by jobs that are preemptible always."""
        if not self.accounting.queued:
            return False
        hopeful = by_share(self._find_hopeful())
        if hopeful:
            first = min(hopeful)  # mostly it starts, and who comes after it need not be known
            if self._try_team(first[1]):
                return True
            hopeful.sort()
            for _, quota in islice(hopeful, 1, None):
                if self._try_team(quota):
                    return True
        if self.reservation is None and self._now >= self._vain_until:
            self._keep_for_first()
        return False

    def _try_team(self, quota: TeamQuota) -> bool:
        if quota.stopped:
            return False
        queues = self._hopeful_queues(quota)
        return bool(queues) and self._try_queues(queues, guaranteed=False)

    def _idle(self) -> bool:
        """Somebody that is preemptible always, on what is free."""
        if not self.accounting.queued_low or not (self.index.free_total or self.most_kept()):
            return False
        at_least, most_kept, done = self.index.at_least, self.most_kept(), self._pass
        hopeful: dict[TeamQuota, int] = {}
        for shape in self.accounting.shapes.values():
            nodes = shape.nodes
            if shape.quotas_low and (
                at_least[shape.per_node] >= nodes or (nodes == 1 and shape.per_node <= most_kept)
            ):
                hopeful.update(shape.quotas_low)
        for _, quota in sorted(by_share(hopeful)):
            queues = [
                queue
                for queue in quota.queues.low.values()
                if queue.passed != done
                and (
                    at_least[queue.per_node] >= queue.nodes
                    or (queue.nodes == 1 and queue.per_node <= most_kept)
                )
            ]
            for queue in in_order(queues):
                if self._try_idle(queue.first()) is not False:
                    return True
                queue.passed = done
        return False

    def _find_hopeful(self) -> dict[TeamQuota, int]:
        """Who waits for a shape that has room, or could take somebody's place. O(shapes + those who do)."""
        accounting, index = self.accounting, self.index
        at_least, most_kept = index.at_least, self.most_kept()
        # Where nothing is preemptible always, what is loose is what is free.
        loose_at_least = index.loose_at_least if accounting.low_held else at_least
        hopeful: dict[TeamQuota, int] = {}
        for shape in accounting.shapes.values():
            need, nodes = shape.per_node, shape.nodes
            if (
                at_least[need] >= nodes or loose_at_least[need] >= nodes or (need <= most_kept and nodes == 1)
            ) and shape.quotas:
                hopeful.update(shape.quotas)
        if self._outranked_in != self._pass:  # once a pass: what they could take does not grow by starts
            self._outranked_in = self._pass
            hopeful.update(accounting.outranking)
        return hopeful

    def _hopeful_queues(self, quota: TeamQuota) -> list[JobQueue[SimJob]]:
        """The queues that it could come to something to try."""
        done, room, lowest, saving = self._pass, quota.room(), self.accounting.lowest_firm, quota.saving
        at_least, most_kept = self.index.at_least, self.most_kept()
        loose_at_least = self.index.loose_at_least if self.accounting.low_held else at_least
        found: list[JobQueue[SimJob]] = []
        for queue in quota.queues.firm.values():
            if queue.passed == done or (saving is not None and self._behind(queue.first())):
                continue
            if queue.devices <= room:
                need, nodes = queue.per_node, queue.nodes
                hopeful = (
                    at_least[need] >= nodes
                    or loose_at_least[need] >= nodes
                    or (nodes == 1 and need <= most_kept and self._gone_in_time(queue.first()))
                )
            else:
                hopeful = quota.held > quota.firm  # what is preemptible always may go below its ceiling
                if not hopeful:
                    self._save_quota(queue.first())
                    saving = quota.saving
            if hopeful or (queue.rank > lowest and quota.runs_between(lowest, queue.rank)):
                found.append(queue)
        return found

    def _gone_in_time(self, job: SimJob) -> bool:
        """Whether it is gone before anybody could start on the places that are kept."""
        kept = self.reservation
        return kept is not None and self._now + job.limit <= kept.until

    # one queue, one job

    def _try_queues(self, queues: list[JobQueue[SimJob]], *, guaranteed: bool) -> bool:
        kept_for = None if self.reservation is None else self.reservation.job
        for queue in in_order(queues):
            if queue.first() is kept_for:
                continue  # it was tried first of all, with the places that are kept for it
            started = self._try(queue.first(), guaranteed=guaranteed)
            if started is not False:
                return True
            queue.passed = self._pass
        return False

    def _try(self, job: SimJob, *, guaranteed: bool, keep: bool = True) -> bool | None:
        """Start the job if it can, taking what it may. None: it left its queue, its user has enough."""
        quota = job.quota
        if quota.stopped or (quota.saving is not None and self._behind(job)):
            return False
        if self._is_user_at_limit(job):
            return None
        short = quota.room() < job.devices
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

    def _may_take(self, job: SimJob, short: bool, guaranteed: bool) -> bool:
        """Whether looking for somebody who gives way could come to something."""
        if guaranteed or job.quota.runs_between(self.accounting.lowest_firm, job.rank):
            return True
        if short:
            return any(b.held > b.firm for b in job.quota.path)
        return self.accounting.low_held > 0 and self.index.loose_at_least[job.per_node] >= job.nodes

    def _is_user_at_limit(self, job: SimJob) -> bool:
        quota = job.quota
        if quota.user_most < BOUNDLESS:
            held = quota.user_held.get(job.user, 0)
            if held + job.devices > quota.user_most:
                self.accounting.set_aside(job)
                return True
        return False

    def _find(self, job: SimJob, *, guaranteed: bool) -> tuple[int, ...] | None:
        places = self.index.find_for(job)
        kept = self.reservation
        if places is not None or kept is None:
            return places
        if guaranteed and not kept.job.quota.entitled(kept.job.devices):
            self.drop_reservation()  # a guarantee comes before what waits for lent devices
            return self.index.find_for(job)
        if self._now + job.limit <= kept.until < FOREVER:
            return self._among_kept(job)  # gone before anybody could start there
        return None

    def _try_idle(self, job: SimJob) -> bool | None:
        """Start a job that is preemptible always on what is free; it takes nothing from anybody."""
        quota = job.quota
        if quota.stopped_low or quota.room() < job.devices:
            return False
        if self._is_user_at_limit(job):
            return None
        # Whoever places are kept for may take them back at once.
        places = self.index.find_for(job) or self._among_kept(job)
        if places is None:
            return False
        self._control.start(job, places)
        return True

    def _take_for(self, job: SimJob) -> bool:
        leaving = select_victims(job, self.accounting, self._now)
        if leaving is None:
            return False
        for other in sorted(leaving, key=_size):  # the largest last: each leaves a team above its guarantee
            own = other.low or other.quota is job.quota
            self._control.requeue(other, SimEnding.OUTRANKED if own else SimEnding.RECLAIMED, job)
        places = self.index.find_for(job)
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
        if not job.queued or job.quota.stopped or job.quota.room() < job.devices:
            self.drop_reservation()
            self._pass += 1
            return True
        guaranteed = job.quota.entitled(job.devices)
        if not guaranteed and not self._has_room_with_kept(kept):
            return False
        self.drop_reservation()
        started = self._try(job, guaranteed=guaranteed, keep=False)
        if started is False:
            self._keep(kept)
            return False
        self._pass += 1
        return True

    # places

    def _look_at_kept(self) -> None:
        """Count what the kept places have, if anything changed there. O(1) mostly, O(kept places) else."""
        index = self.index
        if self._kept_seen == index.unlisted_moves:
            return
        self._kept_seen = index.unlisted_moves
        kept = self.reservation
        if kept is None:
            self._most_kept = self._kept_loose = 0
        else:
            free, loose_at, need = index.free, index.loose_at, kept.job.per_node
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
        return self._kept_loose + self.index.loose_at_least[job.per_node] >= job.nodes

    def _among_kept(self, job: SimJob) -> tuple[int, ...] | None:
        if self.reservation is None or job.nodes > 1 or self.most_kept() < job.per_node:
            return None
        free = self.index.free
        return next(((p,) for p in self.reservation.places if free[p] >= job.per_node), None)

    def _keep_for_first(self) -> None:
        """The first in order that lacks only places."""
        for _, quota in sorted(by_share([b for b in self.accounting.queued if not b.stopped])):
            room = quota.room()
            for queue in in_order([queue for queue in quota.queues.firm.values() if queue.devices <= room]):
                if not self._behind(queue.first()):
                    self._keep_place(queue.first())
                    return

    def _keep_place(self, job: SimJob) -> None:
        """Keep the places for it that are free soonest."""
        kept = reserve(job, self.index, self._now)
        # Without time limits nobody knows how long kept places stay idle: only for who waited long already.
        if kept is not None and (kept.until < FOREVER or self._now - job.submitted >= self.patience):
            self._keep(kept)
        else:
            self._vain_until = self._now + self.patience / 8

    def _keep(self, kept: Reservation) -> None:
        self.reservation = kept
        self._kept_seen = -1
        for place in kept.places:
            self.index.set_listed(place, False)

    def drop_reservation(self) -> None:
        """The kept places are anybody's again."""
        kept, self.reservation = self.reservation, None
        self._kept_seen = -1
        if kept is not None:
            for place in kept.places:
                self.index.set_listed(place, self.index.open[place])

    # quota

    def _save_quota(self, job: SimJob) -> None:
        """Its team's own jobs leave it no room, and it waited long: the team's later ones let it go first."""
        quota = job.quota
        if quota.saving is None and self._now - job.submitted >= self.patience:
            own = sum(other.devices for other in quota.weakest_first(BOUNDLESS))
            if all(b.held - own + job.devices <= b.ceiling for b in quota.path):
                quota.saving = job

    @staticmethod
    def _behind(job: SimJob) -> bool:
        """Whether its team saves for an earlier job."""
        first = job.quota.saving
        if first is None or first is job:
            return False
        if not first.queued:
            job.quota.saving = None
            return False
        return job.id > first.id and job.rank <= first.rank


def _size(job: SimJob) -> tuple[int, int]:
    return (job.devices, job.id)


def _first_below(quota: TeamQuota) -> tuple[int, float, int]:
    """A guarantee of one's own comes before what the family has to give."""
    return (-len(quota.path), quota.due, quota.number)
