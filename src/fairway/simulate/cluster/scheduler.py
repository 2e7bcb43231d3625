"""Decide what starts next on one supply: guaranteed jobs, then jobs by fair share, then preemptible jobs."""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

from fairway.simulate.cluster.accounting import Accounting, JobShape
from fairway.simulate.cluster.jobs import FOREVER, SimEnding, SimJob, TeamQuota
from fairway.simulate.cluster.nodes import DeviceIndex
from fairway.simulate.cluster.preemption import select_victims
from fairway.simulate.cluster.queues import JobQueue, sort_queues
from fairway.simulate.cluster.quota import UNLIMITED, share_orders
from fairway.simulate.cluster.reservation import Plan, Reservation, plan_starts, reserve


class JobControl(Protocol):
    """Carries out the decisions of a scheduler."""

    def start(self, job: SimJob, places: tuple[int, ...]) -> None: ...

    def requeue(self, job: SimJob, ending: SimEnding, by: SimJob) -> None:
        """End the running attempt; the job waits again."""
        ...


class SupplyScheduler:
    """The scheduler of one supply. A pass costs O(non-empty queues), however many jobs they have.

    A pass happens only when devices were freed or the policy changed. A job that arrives alone is tried
    alone, because its arrival lets no other waiting job start. At most one job has places reserved.
    """

    def __init__(self, index: DeviceIndex, control: JobControl, reserve_after: float) -> None:
        self.index: Final = index
        self.accounting: Final = Accounting(index)
        self.reserve_after: Final = reserve_after
        self.reservation: Reservation | None = None
        self._control: Final = control
        self._now = 0.0
        self._pass = 0
        self._outranking_pass = -1
        self._has_new_borrower = False
        """Whether a team exceeded its guarantee since the last check: its devices can be reclaimed now."""
        self._no_reservation_until = -1.0
        """A reservation was not possible; it is not tried again before this time."""
        self._planned_pass = -1
        self._plan = Plan(index, 0.0)
        self._reserved_version = -1
        self._reserved_free = 0
        self._reserved_available = 0

    def schedule(self, now: float) -> None:
        """Start every job that can start now."""
        self._now = now
        self._pass += 1
        self.accounting.update_averages(now)
        repeat = True
        while repeat:
            while self._start_reserved() or self._start_guaranteed():
                pass
            before = self._pass
            while self._pass == before and self._start_by_share():
                pass
            if self._should_reclaim():
                self._pass += 1
            repeat = self._pass != before  # a job was preempted: others may be able to start now
        while self._start_preemptible():
            pass

    def reserve_again(self, now: float) -> None:
        """Reserve places as an earlier pass would have: of a restored cluster that is not known."""
        self._now = now
        self._reserve_for_first()

    def schedule_one(self, job: SimJob, now: float) -> None:
        """Start the job that just arrived, if possible; all other waiting jobs are known to be unable to."""
        if not job.queued or (self.reservation is None and job.quota.queues.queue_of(job).count > 1):
            return  # the jobs before it in its queue request the same
        self._now = now
        self._pass += 1
        before = self._pass
        if job.preemptible:
            self._try_preemptible(job)
        else:
            self._try(job, guaranteed=job.quota.within_guarantee(job.devices))
        # It preempted a job, which may fit elsewhere, or its team now holds devices that can be reclaimed.
        if self._pass != before or self._should_reclaim():
            self.schedule(now)

    def _should_reclaim(self) -> bool:
        """Return whether a team just exceeded its guarantee while a job waits in one below its guarantee."""
        has_new_borrower, self._has_new_borrower = self._has_new_borrower, False
        return has_new_borrower and any(quota.waiting for quota in self.accounting.below_guarantee)

    def _start(self, job: SimJob, places: tuple[int, ...]) -> None:
        self._control.start(job, places)
        if not job.preemptible:
            for quota in job.quota.path:
                if quota.firm > quota.guarantee >= quota.firm - job.devices:
                    self._has_new_borrower = True

    # the three tiers, each starts at most one job

    def _start_guaranteed(self) -> bool:
        """Start a job that is within a guarantee, reclaiming devices if necessary."""
        if not self.accounting.queued:
            return False  # of a thousand teams below their guarantee, none has a job to start
        below = [q for q in self.accounting.below_guarantee if q.waiting]
        if len(below) > 1:
            below.sort(key=_guarantee_order)
        for entitled in below:
            inside = [q for q in entitled.subtree if q.queues.firm and not q.stopped]
            for _, quota in sorted(share_orders(inside)):
                headroom, this_pass = quota.guarantee_headroom(), self._pass
                firm = quota.queues.firm.values()
                queues = [q for q in firm if q.devices <= headroom and q.failed_pass != this_pass]
                if queues and self._try_queues(queues, guaranteed=True):
                    return True
        return False

    def _start_by_share(self) -> bool:
        """Start a job by fair share, on devices that are free or held by preemptible jobs."""
        if not self.accounting.queued:
            return False
        candidates = share_orders(self._find_candidates())
        if candidates:
            first = min(candidates)  # mostly it starts, so that the order of the others is not needed
            if self._try_team(first[1]):
                return True
            candidates.sort()
            for _, quota in islice(candidates, 1, None):
                if self._try_team(quota):
                    return True
        if self.reservation is None and self._now >= self._no_reservation_until:
            self._reserve_for_first()
        return False

    def _try_team(self, quota: TeamQuota) -> bool:
        if quota.stopped:
            return False
        queues = self._candidate_queues(quota)
        return bool(queues) and self._try_queues(queues, guaranteed=False)

    def _start_preemptible(self) -> bool:
        """Start a preemptible job on free devices."""
        if not self.accounting.queued_preemptible or not (self.index.free_total or self.reserved_free()):
            return False
        free_at_least, reserved_free, this_pass = self.index.free_at_least, self.reserved_free(), self._pass

        def may_fit(shape: JobShape | JobQueue[SimJob]) -> bool:
            nodes, need = shape.nodes, shape.per_node
            return free_at_least[need] >= nodes or (nodes == 1 and need <= reserved_free)

        candidates: dict[TeamQuota, int] = {}
        for shape in self.accounting.shapes.values():
            if shape.preemptible_quotas and may_fit(shape):
                candidates.update(shape.preemptible_quotas)
        for _, quota in sorted(share_orders(candidates)):
            queues = quota.queues.preemptible.values()
            for queue in sort_queues([q for q in queues if q.failed_pass != this_pass and may_fit(q)]):
                if self._try_preemptible(queue.first()) is not False:
                    return True
                queue.failed_pass = this_pass
        return False

    def _find_candidates(self) -> dict[TeamQuota, int]:
        """Find the quotas with a waiting job that may fit or may preempt. O(shapes + quotas found)."""
        accounting = self.accounting
        available_at_least, reserved_free = self.index.available_at_least, self.reserved_free()
        candidates: dict[TeamQuota, int] = {}
        for shape in accounting.shapes.values():
            need, nodes = shape.per_node, shape.nodes
            if available_at_least[need] >= nodes or (need <= reserved_free and nodes == 1):
                candidates.update(shape.quotas)
        if self._outranking_pass != self._pass:  # once a pass: starting jobs adds nothing they could preempt
            self._outranking_pass = self._pass
            candidates.update(accounting.outranking)
        return candidates

    def _candidate_queues(self, quota: TeamQuota) -> list[JobQueue[SimJob]]:
        """Return the queues of a team whose first job may be able to start."""
        this_pass, headroom, min_rank = self._pass, quota.headroom(), self.accounting.min_firm_rank
        available_at_least, reserved_free = self.index.available_at_least, self.reserved_free()
        found: list[JobQueue[SimJob]] = []
        for queue in quota.queues.firm.values():
            if queue.failed_pass == this_pass:
                continue
            if quota.quota_reserved_for is not None and self._is_behind_reserved(queue.first()):
                continue
            if queue.devices <= headroom:
                need, nodes = queue.per_node, queue.nodes
                may_fit = available_at_least[need] >= nodes or (
                    nodes == 1 and need <= reserved_free and self._ends_before_reservation(queue.first())
                )
            else:
                may_fit = quota.held > quota.firm  # preempting preemptible jobs makes room below the ceiling
                if not may_fit:
                    self._reserve_quota(queue.first())
            if may_fit or (queue.rank > min_rank and quota.runs_between(min_rank, queue.rank)):
                found.append(queue)
        return found

    def _ends_before_reservation(self, job: SimJob) -> bool:
        """Return whether the job would end before the reserved places are needed."""
        return self.reservation is not None and self._now + job.time_limit <= self.reservation.until

    # one queue, one job

    def _try_queues(self, queues: list[JobQueue[SimJob]], *, guaranteed: bool) -> bool:
        reserved_job = None if self.reservation is None else self.reservation.job
        for queue in sort_queues(queues):
            if queue.first() is reserved_job:
                continue  # it was tried before all others, with its reserved places
            started = self._try(queue.first(), guaranteed=guaranteed)
            if started is not False:
                return True
            queue.failed_pass = self._pass
        return False

    def _try(self, job: SimJob, *, guaranteed: bool, may_reserve: bool = True) -> bool | None:
        """Start the job if possible, with preemption. Returns None if its user is at the limit."""
        quota = job.quota
        if quota.stopped or self._is_behind_reserved(job):
            return False
        if self._is_user_at_limit(job):
            return None
        short = quota.headroom() < job.devices
        if not short:
            places = self._find(job, guaranteed=guaranteed)
            if places is not None:
                self._start(job, places)
                return True
        if self._could_preempt(job, short, guaranteed) and self._preempt_for(job):
            return True
        if short:
            self._reserve_quota(job)
        elif may_reserve and self.reservation is None and self._now >= self._no_reservation_until:
            self._reserve_for(job)
        return False

    def _could_preempt(self, job: SimJob, short: bool, guaranteed: bool) -> bool:
        """Return whether a search for victims may succeed."""
        if guaranteed or job.quota.runs_between(self.accounting.min_firm_rank, job.rank):
            return True
        if short:
            return any(q.held > q.firm for q in job.quota.path)
        held = self.accounting.preemptible_held
        return held > 0 and self.index.available_at_least[job.per_node] >= job.nodes

    def _is_user_at_limit(self, job: SimJob) -> bool:
        """Return whether the job exceeds its user's limit; if so, take it out of its queue."""
        quota = job.quota
        if quota.user_limit < UNLIMITED:
            held = quota.user_held.get(job.user, 0)
            if held + job.devices > quota.user_limit:
                self.accounting.set_aside(job)
                return True
        return False

    def _find(self, job: SimJob, *, guaranteed: bool) -> tuple[int, ...] | None:
        places = self.index.find_for(job)
        reservation = self.reservation
        if places is not None or reservation is None:
            return places
        if guaranteed and not reservation.job.quota.within_guarantee(reservation.job.devices):
            self.drop_reservation()  # a guarantee takes precedence over a reservation beyond one
            return self.index.find_for(job)
        if self._now + job.time_limit <= reservation.until < FOREVER:
            return self._find_in_reserved(job)  # it ends before the reserved places are needed
        return None

    def _try_preemptible(self, job: SimJob) -> bool | None:
        """Start a preemptible job on free devices; it preempts nothing."""
        quota = job.quota
        if quota.preemptible_stopped or quota.headroom() < job.devices:
            return False
        if self._is_user_at_limit(job):
            return None
        if self.accounting.on_slurm:
            places = self._find_unplanned(job)
        else:  # the job with the reservation can preempt it at once
            places = self.index.find_for(job) or self._find_in_reserved(job)
        if places is None:
            return False
        self._control.start(job, places)
        return True

    def _find_unplanned(self, job: SimJob) -> tuple[int, ...] | None:
        """Find places where a preemptible job ends, by its limit, before a waiting job would start."""
        ends, plan = self._now + job.time_limit, self._planned()
        found = (p for p in self.index.with_free(job.per_node) if plan.is_free_until(p, ends))
        if job.together:
            return self.index.in_one_rack(job.nodes, found)
        places = tuple(islice(found, job.nodes))
        if len(places) == job.nodes:
            return places
        return self._find_in_reserved(job) if self._ends_before_reservation(job) else None

    def _planned(self) -> Plan:
        """Return the plan of this pass: preemptible jobs, which start last, change nothing in it."""
        if self._planned_pass != self._pass:
            self._planned_pass = self._pass
            self._plan = plan_starts(self.accounting, self._now)
        return self._plan

    def _preempt_for(self, job: SimJob) -> bool:
        victims = select_victims(job, self.accounting, self._now)
        if victims is None:
            return False
        # The largest last: so each is taken from a team above its guarantee.
        for victim in sorted(victims, key=lambda victim: (victim.devices, victim.id)):
            own = victim.preemptible or victim.quota is job.quota
            self._control.requeue(victim, SimEnding.OUTRANKED if own else SimEnding.RECLAIMED, job)
        places = self.index.find_for(job)
        if places is None:
            raise AssertionError(f"job {job.id} does not fit where room was made for it")
        self._start(job, places)
        self._pass += 1  # devices were freed: jobs that could not start before may now
        return True

    def _start_reserved(self) -> bool:
        """Start the job with the reservation, or drop the reservation if it is not needed any more."""
        reservation = self.reservation
        if reservation is None:
            return False
        job = reservation.job
        if not job.queued or job.quota.stopped or job.quota.headroom() < job.devices:
            self.drop_reservation()
            self._pass += 1
            return True
        guaranteed = job.quota.within_guarantee(job.devices)
        if not guaranteed and not self._reserved_suffices(reservation):
            return False
        self.drop_reservation()
        started = self._try(job, guaranteed=guaranteed, may_reserve=False)
        if started is False:
            self._set_reservation(reservation)
            return False
        self._pass += 1
        return True

    # places

    def _count_reserved(self) -> None:
        """Update the counts of the reserved places if anything changed there. Mostly O(1)."""
        index = self.index
        if self._reserved_version == index.unlisted_changes:
            return
        self._reserved_version = index.unlisted_changes
        reservation = self.reservation
        if reservation is None:
            self._reserved_free = self._reserved_available = 0
        else:
            free, available, need = index.free, index.available, reservation.job.per_node
            self._reserved_free = max([free[p] for p in reservation.places])
            self._reserved_available = sum([available[p] >= need for p in reservation.places])

    def reserved_free(self) -> int:
        """Return the largest number of devices that are free on one reserved place."""
        self._count_reserved()
        return self._reserved_free

    def _reserved_suffices(self, reservation: Reservation) -> bool:
        """Return whether reserved and listed places suffice once preemptible jobs are gone."""
        self._count_reserved()
        job = reservation.job
        return self._reserved_available + self.index.available_at_least[job.per_node] >= job.nodes

    def _find_in_reserved(self, job: SimJob) -> tuple[int, ...] | None:
        if self.reservation is None or job.nodes > 1 or self.reserved_free() < job.per_node:
            return None
        free = self.index.free
        return next(((p,) for p in self.reservation.places if free[p] >= job.per_node), None)

    def _reserve_for_first(self) -> None:
        """Reserve places for the first job in order that is blocked by places only."""
        for _, quota in sorted(share_orders([q for q in self.accounting.queued if not q.stopped])):
            headroom = quota.headroom()
            for queue in sort_queues([q for q in quota.queues.firm.values() if q.devices <= headroom]):
                if not self._is_behind_reserved(queue.first()):
                    self._reserve_for(queue.first())
                    return

    def _reserve_for(self, job: SimJob) -> None:
        """Reserve the places for the job that become free soonest."""
        reservation = reserve(job, self.index, self._now)
        # Without time limits, reserved places may stay idle for any time: only for jobs that waited long.
        if reservation is not None and (
            reservation.until < FOREVER or self._now - job.submitted >= self.reserve_after
        ):
            self._set_reservation(reservation)
        else:
            self._no_reservation_until = self._now + self.reserve_after / 8

    def _set_reservation(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self._reserved_version = -1
        for place in reservation.places:
            self.index.set_listed(place, False)

    def drop_reservation(self) -> None:
        """Release the reserved places to all jobs."""
        reservation, self.reservation = self.reservation, None
        self._reserved_version = -1
        if reservation is not None:
            for place in reservation.places:
                self.index.set_listed(place, self.index.open[place])

    # quota

    def _reserve_quota(self, job: SimJob) -> None:
        """Let the job start before later ones of its team if the team's own jobs have blocked it for long."""
        quota = job.quota
        if quota.quota_reserved_for is None and self._now - job.submitted >= self.reserve_after:
            own = sum(other.devices for other in quota.weakest_first(UNLIMITED))
            if all(q.held - own + job.devices <= q.ceiling for q in quota.path):
                quota.quota_reserved_for = job

    @staticmethod
    def _is_behind_reserved(job: SimJob) -> bool:
        """Return whether an earlier job of its team has reserved quota."""
        first = job.quota.quota_reserved_for
        if first is None or first is job:
            return False
        if not first.queued:
            job.quota.quota_reserved_for = None
            return False
        return job.id > first.id and job.rank <= first.rank


def _guarantee_order(quota: TeamQuota) -> tuple[int, float, int]:
    """Return a sort key: a team's own guarantee comes before that of a team above it."""
    return (-len(quota.path), quota.weighted_share, quota.number)
