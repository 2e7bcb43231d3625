"""Read the data of the fleet and pool pages: waiting jobs and why, drained nodes, which jobs hold nodes.

None of them grows with ended jobs: waiting jobs are read by the index of states, running ones by the classes
of one pool, nodes by the index of pools. Results are bounded; the caller shows how much is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore, OneConnection
from fairway.ledger.cost.budgets import BudgetStore
from fairway.ledger.fleet.clusters import ClusterStore
from fairway.ledger.jobs.store import JobStore
from fairway.ledger.policy.applies import ApplyStore
from fairway.ledger.records.costs import StoredBudgetStatus
from fairway.ledger.records.fleet import ClusterState, PoolState
from fairway.ledger.records.jobs import JobCount
from fairway.ledger.records.policy import AppliedCluster
from fairway.ledger.schema.tables import NONE
from fairway.ledger.sql_values import AnyRow, supply
from fairway.model.job import JobId
from fairway.model.names import ClusterName, NodeName, PriorityName, SliceName, TeamName, UserName
from fairway.model.observation import Devices, Health, free_devices
from fairway.model.team import Supply

MAX_GROUPS: Final = 2000
"""Groups of jobs that wait for the same reason."""
MAX_DEVICES: Final = 20_000
"""Rows of one pool: one per node, or one for each kind of slice on it."""
MAX_HOLDERS: Final = 5000
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
    """A running job, with the devices it holds and its nodes; a node for each replica on it."""

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
    """The largest groups first, at most MAX_GROUPS."""
    drained: Mapping[Supply, int]
    """Devices on drained nodes that no job holds."""
    budgets: tuple[StoredBudgetStatus, ...]
    applied: tuple[AppliedCluster, ...]


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The data of a pool's page, beyond what `FleetSnapshot` has."""

    devices: tuple[DeviceRow, ...]
    """By node and slice, at most MAX_DEVICES."""
    holders: tuple[Holder, ...]
    """The largest first, at most MAX_HOLDERS."""


_WAITING = text("""
    WITH grouped AS MATERIALIZED (
        SELECT class, code, reason, reason_code, count(*) AS jobs, sum(devices) AS devices,
            min(gpus) AS least, min(submitted_at) AS oldest
        FROM job WHERE state IN ('queued', 'waiting') GROUP BY class, code, reason, reason_code
    )
    SELECT cluster, team, priority, pool, slice, code, reason, reason_code, jobs, devices, least, oldest
    FROM grouped JOIN job_class ON job_class.id = grouped.class
    ORDER BY jobs DESC, oldest LIMIT :limit
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
    ORDER BY device.node, device.slice, device.kind LIMIT :limit
""")

_FREE = text("""
    SELECT node.health, device.total, device.in_use, device.unhealthy, count(*) AS nodes
    FROM device JOIN node ON node.cluster = device.cluster AND node.name = device.node
    WHERE device.pool = :pool AND device.cluster = :cluster AND device.slice = :slice
    GROUP BY node.health, device.total, device.in_use, device.unhealthy
""")

_HOLDERS = text("""
    WITH running AS MATERIALIZED (
        SELECT job.id, job.name, user_name, team, priority, slice, held.devices, held.nodes, held.started_at
        FROM job JOIN job_class ON job_class.id = job.class
        CROSS JOIN LATERAL (
            WITH open AS (
                SELECT devices, nodes, started_at FROM attempt
                WHERE NOT service AND attempt.job = job.id AND ended_at IS NULL AND ending IS NULL
                UNION ALL SELECT devices, nodes, started_at FROM attempt
                WHERE service AND attempt.job = job.id AND replica <> '' AND ending IS NULL
            )
            SELECT (SELECT sum(devices) FROM open) AS devices, ARRAY(SELECT unnest(nodes) FROM open) AS nodes,
                (SELECT min(started_at) FROM open) AS started_at
        ) AS held
        WHERE job.state = 'running' AND job.class = ANY(ARRAY(
            SELECT id FROM job_class WHERE pool = :pool AND cluster = :cluster
        )) AND held.devices IS NOT NULL
    ), ranked AS (
        SELECT *, row_number() OVER (ORDER BY devices DESC, started_at, id) AS rank FROM running
    )
    SELECT * FROM ranked WHERE rank <= :largest OR nodes && CAST(:nodes AS text[])
    ORDER BY rank LIMIT :limit
""")


class PoolStore(LedgerStore):
    """Reads what pools have, which jobs hold it, and which wait for it: for the pages."""

    async def fleet(self) -> FleetSnapshot:
        """Read the state of the fleet. Grows with open jobs, clusters, pools and nodes that are not ready."""
        async with self._connections.single() as connection:
            shared = OneConnection(connection)
            clusters = ClusterStore(shared)
            waiting = (await connection.execute(_WAITING, {"limit": MAX_GROUPS})).all()
            drained = (await connection.execute(_DRAINED)).all()
            return FleetSnapshot(
                clusters=await clusters.all(),
                pools=await clusters.pools(),
                counts=await JobStore(shared).counts(),
                waiting=tuple(map(_group, waiting)),
                drained={supply(row.pool, row.slice): int(row.devices) for row in drained},
                budgets=await BudgetStore(shared).statuses(),
                applied=await ApplyStore(shared).applied(),
            )

    async def pool(
        self,
        cluster: str,
        pool: str,
        *,
        largest: int,
        select_nodes: Callable[[Sequence[DeviceRow]], Sequence[NodeName]],
    ) -> PoolSnapshot:
        """Read a pool's nodes, its `largest` running jobs, and all jobs on the nodes `select_nodes` returns.

        Grows with the nodes of the pool and the jobs running on it.
        """
        values: dict[str, object] = {"cluster": cluster, "pool": pool, "limit": MAX_DEVICES}
        async with self._connections.single() as connection:
            devices = tuple(map(_device, await connection.execute(_DEVICES, values)))
            values |= {"largest": largest, "nodes": list(select_nodes(devices)), "limit": MAX_HOLDERS}
            return PoolSnapshot(devices, tuple(map(_holder, await connection.execute(_HOLDERS, values))))

    async def free(self, cluster: ClusterName, of: Supply) -> list[int]:
        """Return the free devices of a supply on each node that has it. Grows with the nodes of the pool."""
        values = {"cluster": cluster, "pool": of.pool, "slice": of.slice or NONE}
        found: list[int] = []
        for row in await self._fetch(_FREE, values):
            devices = Devices(of.pool, "", of.slice, row.total, row.in_use, row.unhealthy)
            found += [free_devices(Health(row.health), devices)] * row.nodes
        return found


def _group(row: AnyRow) -> WaitingGroup:
    return WaitingGroup(
        cluster=ClusterName(row.cluster),
        team=TeamName(row.team) if row.team else None,
        priority=PriorityName(row.priority) if row.priority else None,
        supply=supply(row.pool, row.slice) if row.pool else None,
        code=row.code,
        reason=row.reason,
        reason_code=row.reason_code,
        jobs=int(row.jobs),
        devices=int(row.devices),
        least=int(row.least),
        oldest=row.oldest,
    )


def _device(row: AnyRow) -> DeviceRow:
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


def _holder(row: AnyRow) -> Holder:
    return Holder(
        job=JobId(row.id),
        name=row.name,
        user=UserName(row.user_name),
        team=TeamName(row.team) if row.team else None,
        priority=PriorityName(row.priority) if row.priority else None,
        slice=SliceName(row.slice) if row.slice else None,
        devices=int(row.devices),
        nodes=tuple(NodeName(name) for name in row.nodes),
        since=row.started_at,
        rank=int(row.rank),
    )
