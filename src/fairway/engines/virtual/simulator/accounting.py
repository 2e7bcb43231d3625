"""The accounting of one supply: who holds, who waits, for which shapes; updated with every event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairway.engines.virtual.simulator.jobs import SimJob, SimState, TeamQuota
from fairway.engines.virtual.simulator.nodes import DeviceIndex
from fairway.engines.virtual.simulator.queues import JobQueue, ShapeKey
from fairway.engines.virtual.simulator.quota import BOUNDLESS
from fairway.engines.virtual.simulator.terms import ClusterTerms
from fairway.model.names import TeamName


class JobShape:
    """What jobs of all teams ask for alike: if one of them has no room, none has."""

    __slots__ = ("nodes", "per_node", "quotas", "quotas_low")

    def __init__(self, key: ShapeKey) -> None:
        self.nodes, self.per_node, _ = key
        self.quotas: Final[dict[TeamQuota, int]] = {}
        """Who waits for such devices, and in how many queues; with what is preemptible always apart."""
        self.quotas_low: Final[dict[TeamQuota, int]] = {}


class Accounting:
    """What a scheduler decides by: quotas, queues and what runs, with the index of free devices."""

    __slots__ = (
        "_remembered_at",
        "below",
        "half_life",
        "index",
        "low_held",
        "low_running",
        "lowest_firm",
        "outranking",
        "queued",
        "queued_low",
        "root",
        "shapes",
        "starts",
        "urgent_above",
    )

    def __init__(self, index: DeviceIndex) -> None:
        self.index: Final = index
        self.below: Final[dict[TeamQuota, None]] = {}
        """Quotas that hold less than they are guaranteed."""
        self.root = TeamQuota(None, None, self.below)
        self.half_life = 1.0
        self.urgent_above = 0
        """Ranks above it are urgent."""
        self.lowest_firm = 0
        """The lowest rank that is not preemptible always: nobody outranks anything lower."""
        self.low_running: Final[dict[SimJob, None]] = {}
        """What is preemptible always, in the order of its start."""
        self.low_held = 0
        self.starts = 0
        self._remembered_at = 0.0
        self.outranking: Final[dict[TeamQuota, int]] = {}
        """How many jobs wait above the lowest firm rank: they may outrank what their team runs."""
        self.shapes: Final[dict[ShapeKey, JobShape]] = {}
        self.queued: Final[dict[TeamQuota, None]] = {}
        """Quotas with queues of their own; those that are preemptible always apart."""
        self.queued_low: Final[dict[TeamQuota, None]] = {}

    def reset(
        self, terms: ClusterTerms, before: Mapping[TeamName, TeamQuota], now: float, half_life: float
    ) -> dict[TeamName, TeamQuota]:
        """Build quotas for these terms, with the memory of those before. Jobs are to be counted anew."""
        self.below.clear()
        self.root = TeamQuota(None, None, self.below)
        self.half_life = float(max(1, terms.fairness.half_life_seconds))
        self.urgent_above = terms.default_rank
        self.lowest_firm = min((p.rank for p in terms.priorities if not p.preemptible), default=0)
        for counted in (self.low_running, self.queued, self.queued_low, self.shapes, self.outranking):
            counted.clear()
        self.low_held = 0
        quotas: dict[TeamName, TeamQuota] = {}
        for number, team in enumerate(terms.teams):
            parent = self.root if team.parent is None else quotas[team.parent]
            quota = quotas[team.name] = TeamQuota(team, parent, self.below, number)
            quota.set_terms(team, self.index.supply)
            parent.children.append(quota)
            quota.average_at = now
            if team.name in before:
                quota.average = before[team.name].averaged(now, half_life)
            quota.remember(now, self.half_life)
        for quota in quotas.values():
            quota.inside = tuple(quota.all_inside())
        return quotas

    def remember(self, now: float) -> None:
        """Let past use fade. A thousandth of a half-life is too short to matter: so often it is done."""
        if now - self._remembered_at > self.half_life / 1000:
            self._remembered_at = now
            for quota in self.root.all_inside():
                quota.remember(now, self.half_life)

    def count_held(self, job: SimJob, sign: int, now: float, waiting: int = 0) -> None:
        """Count the job's devices: 1 when it starts, -1 when it leaves."""
        quota, devices, low = job.quota, sign * job.devices, job.low
        quota.hold(devices, 0 if low else devices, now, self.half_life, waiting)
        if sign > 0:
            self.starts += 1
            job.turn = self.starts
            quota.add_running(job)
        else:
            quota.remove_running(job)
        if low:
            self.low_held += devices
            if sign > 0:
                self.low_running[job] = None
            else:
                del self.low_running[job]

    def start(self, job: SimJob, places: tuple[int, ...], now: float) -> None:
        """The job waits no more: it runs there."""
        self._dequeue(job)
        if not job.low and job.rank > self.lowest_firm:
            self._count_outranking(job, -1)
        self.index.put(job, places)
        self.count_held(job, 1, now, -1)

    def stop(self, job: SimJob, now: float) -> None:
        """The job runs no more. Whoever waits for its user to have less is back in a queue."""
        self.index.remove(job, job.places)
        self.count_held(job, -1, now)
        job.places = ()
        quota = job.quota
        if quota.queues.at_user_limit and quota.user_most < BOUNDLESS:
            for other in quota.queues.at_user_limit.pop(job.user, ()):
                queue = quota.queues.join(other)
                if queue is not None:
                    self._open(quota, queue)

    def join(self, job: SimJob) -> None:
        """The job waits from now on."""
        job.state = SimState.WAITING
        quota = job.quota
        queue = quota.queues.join(job)
        if queue is not None:
            self._open(quota, queue)
        for above in quota.path:
            above.waiting += 1
        if not job.low and job.rank > self.lowest_firm:
            self._count_outranking(job, 1)

    def leave(self, job: SimJob) -> None:
        """The job waits no more."""
        self._dequeue(job)
        for quota in job.quota.path:
            quota.waiting -= 1
        if not job.low and job.rank > self.lowest_firm:
            self._count_outranking(job, -1)

    def set_aside(self, job: SimJob) -> None:
        """The job's user is at the team's limit: it is in no queue until something of its user ends."""
        self._dequeue(job)
        job.quota.queues.at_user_limit.setdefault(job.user, []).append(job)

    def _dequeue(self, job: SimJob) -> None:
        queues = job.quota.queues
        if not job.queued:
            queues.at_user_limit[job.user].remove(job)
            return
        queue = queues.leave(job)
        if queue is not None:
            self._close(job.quota, queue)

    def _open(self, quota: TeamQuota, queue: JobQueue[SimJob]) -> None:
        """Count a queue that is new."""
        key = queue.shape_key
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = JobShape(key)
        if queue.low:
            quotas = shape.quotas_low
            self.queued_low[quota] = None
        else:
            quotas = shape.quotas
            self.queued[quota] = None
        quotas[quota] = quotas.get(quota, 0) + 1

    def _close(self, quota: TeamQuota, queue: JobQueue[SimJob]) -> None:
        """Count a queue no more that is gone."""
        shape = self.shapes[queue.shape_key]
        quotas = shape.quotas_low if queue.low else shape.quotas
        quotas[quota] -= 1
        if not quotas[quota]:
            del quotas[quota]
        if not (quota.queues.low if queue.low else quota.queues.firm):
            del (self.queued_low if queue.low else self.queued)[quota]

    def _count_outranking(self, job: SimJob, by: int) -> None:
        count = self.outranking.get(job.quota, 0) + by
        if count:
            self.outranking[job.quota] = count
        else:
            del self.outranking[job.quota]
