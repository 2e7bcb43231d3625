"""Account for one supply: devices held, jobs waiting, and the shapes requested; updated at every event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairway.model.names import TeamName
from fairway.simulate.cluster.jobs import SimJob, SimState, TeamQuota
from fairway.simulate.cluster.nodes import DeviceIndex
from fairway.simulate.cluster.queues import JobQueue, ShapeKey
from fairway.simulate.cluster.quota import UNLIMITED
from fairway.simulate.cluster.terms import ClusterTerms


class JobShape:
    """A request for nodes and devices that jobs of all teams share: if one does not fit, none does."""

    def __init__(self, key: ShapeKey) -> None:
        self.nodes, self.per_node, _ = key
        self.quotas: Final[dict[TeamQuota, int]] = {}
        """The number of queues with this shape by quota; those of preemptible jobs are counted separately."""
        self.preemptible_quotas: Final[dict[TeamQuota, int]] = {}


class Accounting:
    """The state that a scheduler uses: quotas, queues, running jobs, and the index of free devices."""

    def __init__(self, index: DeviceIndex) -> None:
        self.index: Final = index
        self.below_guarantee: Final[dict[TeamQuota, None]] = {}
        """Quotas that hold less than their guarantee."""
        self.root = TeamQuota(None, None, self.below_guarantee)
        self.on_slurm = False
        self.half_life = 1.0
        self.urgent_above = 0
        """Jobs with a higher rank are urgent."""
        self.min_firm_rank = 0
        """The lowest rank that is not preemptible."""
        self.preemptible_running: Final[dict[SimJob, None]] = {}
        """Running preemptible jobs, in order of their start."""
        self.preemptible_held = 0
        self.start_count = 0
        self._averaged_at = 0.0
        self.outranking: Final[dict[TeamQuota, int]] = {}
        """Waiting jobs above `min_firm_rank` by quota: they may preempt running jobs of their team."""
        self.shapes: Final[dict[ShapeKey, JobShape]] = {}
        self.queued: Final[dict[TeamQuota, None]] = {}
        """Quotas with queues of their own; those of preemptible jobs are kept separately."""
        self.queued_preemptible: Final[dict[TeamQuota, None]] = {}

    def reset(
        self, terms: ClusterTerms, before: Mapping[TeamName, TeamQuota], now: float, half_life: float
    ) -> dict[TeamName, TeamQuota]:
        """Build the quota tree for new terms, with the old averages. The caller must count all jobs again."""
        self.below_guarantee.clear()
        self.root = TeamQuota(None, None, self.below_guarantee)
        self.half_life = float(max(1, terms.fairness.half_life_seconds))
        self.urgent_above = terms.default_rank
        self.min_firm_rank = min((p.rank for p in terms.priorities if not p.preemptible), default=0)
        for counted in (self.queued, self.queued_preemptible, self.shapes, self.outranking):
            counted.clear()
        self.preemptible_running.clear()
        self.preemptible_held = 0
        quotas: dict[TeamName, TeamQuota] = {}
        self.on_slurm = self.index.supply.pool in terms.slurm_pools
        for number, team in enumerate(terms.teams):
            parent = self.root if team.parent is None else quotas[team.parent]
            quota = quotas[team.name] = TeamQuota(team, parent, self.below_guarantee, number)
            quota.set_terms(team, self.index.supply, all_use_counts=self.on_slurm)
            parent.children.append(quota)
            quota.average_at = now
            if team.name in before:
                quota.average = before[team.name].current_average(now, half_life)
            quota.update_average(now, self.half_life)
        for quota in quotas.values():
            quota.subtree = tuple(quota.iter_subtree())
        return quotas

    def update_averages(self, now: float) -> None:
        """Update all averages, at most once in a thousandth of the half-life: less makes no difference."""
        if now - self._averaged_at > self.half_life / 1000:
            self._averaged_at = now
            for quota in self.root.iter_subtree():
                quota.update_average(now, self.half_life)

    def count_held(self, job: SimJob, sign: int, now: float, waiting: int = 0) -> None:
        """Count the devices of a running job: `sign` is 1 when it starts, -1 when it ends."""
        quota, devices, preemptible = job.quota, sign * job.devices, job.preemptible
        quota.change_held(devices, 0 if preemptible else devices, now, self.half_life, waiting)
        if sign > 0:
            self.start_count += 1
            job.start_number = self.start_count
            quota.add_running(job)
        else:
            quota.remove_running(job)
        if preemptible:
            self.preemptible_held += devices
            if sign > 0:
                self.preemptible_running[job] = None
            else:
                del self.preemptible_running[job]

    def start(self, job: SimJob, places: tuple[int, ...], now: float) -> None:
        """Move a job from its queue to these places."""
        self._dequeue(job)
        if not job.preemptible and job.rank > self.min_firm_rank:
            self._count_outranking(job, -1)
        self.index.allocate(job, places)
        self.count_held(job, 1, now, -1)

    def stop(self, job: SimJob, now: float) -> None:
        """Release the places of a job, and queue the jobs that its user's limit blocked."""
        self.index.deallocate(job, job.places)
        self.count_held(job, -1, now)
        job.places = ()
        quota = job.quota
        if quota.queues.at_user_limit and quota.user_limit < UNLIMITED:
            for other in quota.queues.at_user_limit.pop(job.user, ()):
                queue = quota.queues.join(other)
                if queue is not None:
                    self._add_queue(quota, queue)

    def join(self, job: SimJob) -> None:
        """Add a job to the waiting ones."""
        job.state = SimState.WAITING
        quota = job.quota
        queue = quota.queues.join(job)
        if queue is not None:
            self._add_queue(quota, queue)
        for above in quota.path:
            above.waiting += 1
        if not job.preemptible and job.rank > self.min_firm_rank:
            self._count_outranking(job, 1)

    def leave(self, job: SimJob) -> None:
        """Remove a job from the waiting ones."""
        self._dequeue(job)
        for quota in job.quota.path:
            quota.waiting -= 1
        if not job.preemptible and job.rank > self.min_firm_rank:
            self._count_outranking(job, -1)

    def set_aside(self, job: SimJob) -> None:
        """Take a job out of its queue until a job of its user, who is at the team's limit, ends."""
        self._dequeue(job)
        job.quota.queues.at_user_limit.setdefault(job.user, []).append(job)

    def _dequeue(self, job: SimJob) -> None:
        queues = job.quota.queues
        if not job.queued:
            queues.at_user_limit[job.user].remove(job)
            return
        queue = queues.leave(job)
        if queue is not None:
            self._remove_queue(job.quota, queue)

    def _add_queue(self, quota: TeamQuota, queue: JobQueue[SimJob]) -> None:
        """Count a new queue."""
        shape = self.shapes.setdefault(queue.shape_key, JobShape(queue.shape_key))
        quotas = shape.preemptible_quotas if queue.preemptible else shape.quotas
        (self.queued_preemptible if queue.preemptible else self.queued)[quota] = None
        quotas[quota] = quotas.get(quota, 0) + 1

    def _remove_queue(self, quota: TeamQuota, queue: JobQueue[SimJob]) -> None:
        """Stop counting a removed queue."""
        shape = self.shapes[queue.shape_key]
        quotas = shape.preemptible_quotas if queue.preemptible else shape.quotas
        quotas[quota] -= 1
        if not quotas[quota]:
            del quotas[quota]
        if not (quota.queues.preemptible if queue.preemptible else quota.queues.firm):
            del (self.queued_preemptible if queue.preemptible else self.queued)[quota]

    def _count_outranking(self, job: SimJob, by: int) -> None:
        count = self.outranking.get(job.quota, 0) + by
        if count:
            self.outranking[job.quota] = count
        else:
            del self.outranking[job.quota]
