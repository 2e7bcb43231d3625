"""Queries for the fleet page and the pool page: waiting jobs and why, drained nodes, which jobs hold nodes.

None of them grows with ended jobs: waiting jobs are read by the index of states, running ones by the classes
of one pool, nodes by the index of pools. Results are bounded; the caller shows how much is left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.cost.budgets import BudgetStore
from fairway.ledger.fleet.clusters import ClusterStore
from fairway.ledger.jobs import store
from fairway.ledger.policy.applies import ApplyStore
from fairway.ledger.records.costs import StoredBudgetStatus
from fairway.ledger.records.fleet import ClusterState, PoolState
from fairway.ledger.records.jobs import JobCount
from fairway.ledger.records.policy import AppliedCluster
from fairway.model.job import JobId
from fairway.model.names import ClusterName, NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.observation import Health
from fairway.model.team import Supply

MOST_GROUPS: Final = 2000
"""Groups of jobs that wait for the same reason."""
MOST_DEVICES: Final = 20_000
"""Rows of one pool: one per node, or one for each kind of slice on it."""
MOST_HOLDERS: Final = 5000
"""Running jobs on the requested nodes."""


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Jobs of one team, priority and supply that wait for the same reason."""

    cluster: ClusterName
    team: TeamName | None
    priority: PriorityName | None
    supply: Supply | None
    """None: of no pool in the fleet."""
    code: str
    reason: str
    reason_code: str
    jobs: int
    devices: int
    least: int
    """The fewest devices per node that any of them requests."""
    oldest: datetime


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """The devices of one supply on one node."""

    node: NodeName
    health: Health
    reason: str
    since: datetime
    slice: SliceName | None
    total: int
    in_use: int
    unhealthy: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A running job, with the devices it holds and its nodes."""

    job: JobId
    name: str
    user: UserName
    team: TeamName | None
    priority: PriorityName | None
    slice: SliceName | None
    devices: int
    nodes: tuple[NodeName, ...]
    since: datetime
    rank: int
    """1: holds the most devices of the pool."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The data of the fleet page."""

    clusters: tuple[ClusterState, ...]
    pools: tuple[PoolState, ...]
    counts: tuple[JobCount, ...]
    waiting: tuple[WaitingGroup, ...]
    """The largest groups first, at most MOST_GROUPS."""
    drained: Mapping[Supply, int]
    """Devices on drained nodes that no job holds."""
    standings: tuple[StoredBudgetStatus, ...]
    applied: tuple[AppliedCluster, ...]


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The data of a pool's page, beyond what `FleetSnapshot` has."""

    devices: tuple[DeviceRow, ...]
    """By node and slice, at most MOST_DEVICES."""
    holders: tuple[Holder, ...]
    """The largest first, at most MOST_HOLDERS."""


class _OneConnection(Connections):
    """A `Connections` that always returns one connection: taking and checking one costs more than a query."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    @asynccontextmanager
    async def single(self, seconds: float | None = None) -> AsyncIterator[AsyncConnection]:
        del seconds  # the look as a whole is bounded
        yield self._connection


_WAITING = text("""
    WITH grouped AS MATERIALIZED (
        SELECT class, code, reason, reason_code, count(*) AS jobs, sum(devices) AS devices,
            min(gpus) AS least, min(submitted_at) AS oldest
        FROM job WHERE state IN ('queued', 'waiting') GROUP BY class, code, reason, reason_code
    )
    SELECT cluster, team, priority, pool, slice, code, reason, reason_code, jobs, devices, least, oldest
    FROM grouped JOIN job_class ON job_class.id = grouped.class
    ORDER BY jobs DESC, oldest LIMIT :most
""")

# The second condition lets the index of unready nodes serve.
_DRAINED = text("""
    SELECT device.pool, device.slice, sum(greatest(0, device.total - device.in_use)) AS devices
    FROM node JOIN device ON device.cluster = node.cluster AND device.node = node.name
    WHERE node.health = 'drained' AND node.health <> 'ready' AND device.pool <> ''
    GROUP BY device.pool, device.slice
""")

_DEVICES = text("""
    SELECT device.node, node.health, node.reason, node.since, device.slice,
        device.total, device.in_use, device.unhealthy
    FROM device JOIN node ON node.cluster = device.cluster AND node.name = device.node
    WHERE device.pool = :pool AND device.cluster = :cluster
    ORDER BY device.node, device.slice, device.kind LIMIT :most
""")

_HOLDERS = text("""
    WITH running AS MATERIALIZED (
        SELECT job.id, job.name, user_name, team, priority, slice, attempt.devices, attempt.nodes,
            attempt.started_at
        FROM job JOIN job_class ON job_class.id = job.class
        JOIN attempt ON attempt.job = job.id AND attempt.ended_at IS NULL AND attempt.ending IS NULL
        WHERE job.state = 'running' AND job.class = ANY(ARRAY(
            SELECT id FROM job_class WHERE pool = :pool AND cluster = :cluster
        ))
    ), ranked AS (
        SELECT *, row_number() OVER (ORDER BY devices DESC, started_at, id) AS rank FROM running
    )
    SELECT * FROM ranked WHERE rank <= :largest OR nodes && CAST(:nodes AS text[])
    ORDER BY rank LIMIT :most
""")


class PoolStore:
    """Reads what pools have, which jobs hold it, and which wait for it: for the pages."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def fleet(self) -> FleetSnapshot:
        """Read the state of the fleet. Grows with open jobs, clusters, pools and nodes that are not ready."""
        async with self._connections.single() as connection:
            one = _OneConnection(connection)
            clusters = ClusterStore(one)
            waiting = (await connection.execute(_WAITING, {"most": MOST_GROUPS})).all()
            drained = (await connection.execute(_DRAINED)).all()
            return FleetSnapshot(
                clusters=await clusters.all(),
                pools=await clusters.pools(),
                counts=await store.counts(one, None),
                waiting=tuple(map(_group, waiting)),
                drained={_supply(row.pool, row.slice): int(row.devices) for row in drained},
                standings=await BudgetStore(one).standings(),
                applied=await ApplyStore(one).applied(),
            )

    async def pool(
        self,
        cluster: str,
        pool: str,
        *,
        largest: int,
        look_at: Callable[[Sequence[DeviceRow]], Sequence[NodeName]],
    ) -> PoolSnapshot:
        """Read a pool's nodes, its `largest` running jobs, and all jobs on the nodes `look_at` returns.

        Grows with the nodes of the pool and the jobs running on it.
        """
        asked: dict[str, object] = {"cluster": cluster, "pool": pool}
        async with self._connections.single() as connection:
            rows = (await connection.execute(_DEVICES, asked | {"most": MOST_DEVICES})).all()
            devices = tuple(map(_device, rows))
            asked |= {"largest": largest, "nodes": list(look_at(devices)), "most": MOST_HOLDERS}
            return PoolSnapshot(
                devices, tuple(map(_holder, (await connection.execute(_HOLDERS, asked)).all()))
            )


def _group(row: Row[*tuple[Any, ...]]) -> WaitingGroup:
    return WaitingGroup(
        cluster=ClusterName(row.cluster),
        team=TeamName(row.team) if row.team else None,
        priority=PriorityName(row.priority) if row.priority else None,
        supply=_supply(row.pool, row.slice) if row.pool else None,
        code=row.code,
        reason=row.reason,
        reason_code=row.reason_code,
        jobs=int(row.jobs),
        devices=int(row.devices),
        least=int(row.least),
        oldest=row.oldest,
    )


def _device(row: Row[*tuple[Any, ...]]) -> DeviceRow:
    return DeviceRow(
        NodeName(row.node),
        Health(row.health),
        row.reason,
        row.since,
        SliceName(row.slice) if row.slice else None,
        row.total,
        row.in_use,
        row.unhealthy,
    )


def _holder(row: Row[*tuple[Any, ...]]) -> Holder:
    return Holder(
        job=JobId(row.id),
        name=row.name,
        user=UserName(row.user_name),
        team=TeamName(row.team) if row.team else None,
        priority=PriorityName(row.priority) if row.priority else None,
        slice=SliceName(row.slice) if row.slice else None,
        devices=row.devices,
        nodes=tuple(NodeName(name) for name in row.nodes),
        since=row.started_at,
        rank=int(row.rank),
    )


def _supply(pool: str, slice_: str) -> Supply:
    return Supply(PoolName(pool), SliceName(slice_) if slice_ else None)
