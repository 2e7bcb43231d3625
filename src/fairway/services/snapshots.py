"""Read the present of a cluster from the ledger as a snapshot that can be played forward."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from fairway.cost.calendar import calendar_of
from fairway.explain.start_times import unknown_start
from fairway.ledger import Ledger
from fairway.ledger.records.snapshots import SnapshotJob, SnapshotNode, SnapshotRows, UseSum
from fairway.model.charge import Span
from fairway.model.fleet import Capacity, EngineKind, Fleet, Pool, VirtualPlace
from fairway.model.names import ClusterName
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.services.fleets import Clock, Fleets, with_budget_holds
from fairway.simulate.cluster import JobRequest, NodeSnapshot, requeue_seconds_of, terms_of
from fairway.simulate.past_use import PeriodUse, mean_counted_use
from fairway.simulate.snapshot import ClusterSnapshot, RunningJob, WaitingJob

ARRIVAL_SECONDS: Final = 86_400.0
"""How far back submissions count as what will come."""
_HALF_LIVES: Final = 6
"""Use that is older weighs less than 2 %."""
_MAX_DAYS: Final = 60
_BY_HOUR: Final = 48 * 3600
"""Use that is more recent is read by hour."""
_HOUR: Final = 3600
_FEW: Final = 10
"""So few submissions are taken for those of an hour at least."""


@dataclass(frozen=True, slots=True)
class _StoredUse:
    """What was read of past use, and when."""

    at: float
    sums: tuple[UseSum, ...]


class SnapshotReader:
    """Reads snapshots of clusters. Past use changes slowly, and is read anew at times only."""

    def __init__(self, ledger: Ledger, fleets: Fleets, *, clock: Clock = time.time) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._clock = clock
        self._use: dict[ClusterName, _StoredUse] = {}

    async def read(self, cluster: ClusterName) -> ClusterSnapshot | None:
        """Read the present of a cluster. Returns None if it is in no fleet. O(nodes + open jobs)."""
        fleet = await self._fleets.applied(cluster) or await self._fleets.current()
        if not any(c.name == cluster for c in fleet.clusters):
            return None
        fleet = await with_budget_holds(fleet, self._ledger, self._clock)
        ranks = {p.name: p.rank for p in fleet.priorities}
        rows = await self._ledger.snapshots.read(cluster, ranks, ARRIVAL_SECONDS)
        use = await self._past_use(fleet, cluster)
        return to_snapshot(fleet, cluster, rows, use)

    async def _past_use(self, fleet: Fleet, cluster: ClusterName) -> tuple[UseSum, ...]:
        now, half_life = self._clock(), max(1, fleet.fairness.half_life_seconds)
        stored = self._use.get(cluster)
        if stored is not None and now - stored.at < max(50.0, half_life / 500):
            return stored.sums
        calendar = calendar_of(fleet)
        since = int(now - min(_HALF_LIVES * half_life, _MAX_DAYS * 86_400))
        by_hour = max(since, int(now) - _BY_HOUR)
        days = {}
        if since < by_hour:
            by_hour = calendar.day_start(calendar.day_of(by_hour))
            first = calendar.day_start(calendar.day_of(since))
            days = {calendar.day_of(day.start): day for day in calendar.days(Span(first, by_hour))}
        sums = await self._ledger.snapshots.use(cluster, days, calendar.hour_start(by_hour))
        self._use[cluster] = _StoredUse(now, sums)
        return sums


def to_snapshot(
    fleet: Fleet, cluster: ClusterName, rows: SnapshotRows, use: tuple[UseSum, ...] = ()
) -> ClusterSnapshot:
    """Return the rows of a cluster as a snapshot. Pure.

    Jobs that wait for more than their turn and room are left out, and waiting jobs of no team of the fleet.
    """
    now = rows.at.timestamp()
    pools, terms = fleet.pools_of(cluster), terms_of(fleet)
    shapes = _Shapes(fleet, cluster, rows.nodes)
    teams = {team.name for team in fleet.teams}
    running = tuple(
        RunningJob(
            job.id,
            shapes.request(job, nodes=len(job.on) if job.service else None),
            job.submitted_at.timestamp(),
            now if job.started_at is None else job.started_at.timestamp(),
            job.on,
            job.service,
        )
        for job in rows.running
    )
    waiting = tuple(
        WaitingJob(job.id, shapes.packed(job), job.submitted_at.timestamp())
        for job in rows.waiting
        if job.team in teams and not unknown_start(job.reason_code)
    )
    arrivals = tuple(
        WaitingJob(job.id, shapes.packed(job), job.submitted_at.timestamp())
        for job in rows.arrivals
        if job.team in teams
    )
    # The fewer submissions there are, the less they tell of what will come: a large array that was just
    # submitted does not come every minute.
    submissions = len({(job.user, int(job.submitted_at.timestamp())) for job in rows.arrivals})
    lasting = max(_HOUR * _FEW / max(_FEW, submissions), now - rows.arrivals_since.timestamp())
    return ClusterSnapshot(
        cluster,
        now,
        pools,
        terms,
        tuple(shapes.node(node) for node in rows.nodes),
        running,
        waiting,
        MappingProxyType(
            mean_counted_use(
                (*map(_period, use), *_this_hour(running, now)),
                fleet.teams,
                max(1.0, fleet.fairness.half_life_seconds),
                now,
                terms.slurm_pools,
            )
        ),
        arrivals,
        min(ARRIVAL_SECONDS, lasting),
        MappingProxyType(requeue_seconds_of(fleet)),
    )


class _Shapes:
    """Converts nodes and requests of one cluster."""

    def __init__(self, fleet: Fleet, cluster: ClusterName, nodes: tuple[SnapshotNode, ...]) -> None:
        self._priorities: Final = {p.name for p in fleet.priorities}
        self._pools: Final = {pool.name: pool for pool in fleet.pools_of(cluster)}
        pods = next(c.engine for c in fleet.clusters if c.name == cluster) is EngineKind.KUBERNETES
        self._largest: Final[dict[Supply, int]] = {}
        if pods:
            for node in nodes:
                supply = Supply(node.pool, node.slice)
                self._largest[supply] = max(self._largest.get(supply, 0), node.total)

    def node(self, row: SnapshotNode) -> NodeSnapshot:
        """Return a node; those of virtual pools are numbered in the order of their racks."""
        pool = self._pools.get(row.pool)
        return NodeSnapshot(
            row.node,
            Supply(row.pool, row.slice),
            row.total,
            min(row.unhealthy, row.total),
            row.health is Health.READY,
            None if pool is None else _rack(pool, row),
        )

    def request(self, job: SnapshotJob, *, nodes: int | None = None) -> JobRequest:
        """Return what a job requests, or holds on that many nodes."""
        pool = self._pools.get(job.pool)
        return JobRequest(
            job.user,
            job.pool,
            job.gpus,
            job.nodes if nodes is None else nodes,
            job.slice,
            job.team,
            limit_seconds=job.time_seconds,
            priority=job.priority if job.priority in self._priorities else None,
            tolerates_loss=pool is not None and pool.capacity is Capacity.SPOT,
            together=job.together,
            name=job.name,
        )

    def packed(self, job: SnapshotJob) -> JobRequest:
        """Return what a waiting job requests. Several pods of it may share a node: as many as fit evenly."""
        request = self.request(job)
        largest = self._largest.get(request.supply, 0) if request.nodes > 1 and self._largest else 0
        if largest:
            fitting = range(largest // request.gpus, 1, -1)
            each = next((n for n in fitting if not request.nodes % n), 1)
            return replace(request, gpus=request.gpus * each, nodes=request.nodes // each)
        return request


def _rack(pool: Pool, row: SnapshotNode) -> int | None:
    place = pool.place
    if not isinstance(place, VirtualPlace) or place.nodes_per_rack is None:
        return None
    number = row.node.rpartition("-")[2]
    return (int(number) - 1) // place.nodes_per_rack if number.isdecimal() else None


def _period(row: UseSum) -> PeriodUse:
    return PeriodUse(row.start, row.end, row.team, Supply(row.pool, row.slice), row.device_seconds)


def _this_hour(running: tuple[RunningJob, ...], now: float) -> tuple[PeriodUse, ...]:
    """Return what running jobs used in this hour: they are metered when they end, or it ends."""
    begin = now - now % _HOUR
    return tuple(
        PeriodUse(
            begin,
            begin + _HOUR,
            job.request.team,
            job.request.supply,
            job.request.gpus * job.request.nodes * (now - max(begin, job.started)),
        )
        for job in running
        if job.request.team is not None
    )
