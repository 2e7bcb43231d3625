"""Read the last known state of clusters, pools and nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import JSON, exists, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import aggregate_order_by

from fairway.ledger.connection import LedgerStore
from fairway.ledger.records.fleet import ClusterState, LeftCluster, NodeState, PoolState
from fairway.ledger.schema.tables import cluster_state, device, left_cluster, node, pool_total
from fairway.ledger.sql_values import AnyRow, page_limit
from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName
from fairway.model.observation import Devices, Health

_CLUSTERS = select(*(cluster_state.c[field.name] for field in fields(ClusterState))).order_by(
    cluster_state.c.cluster
)

_POOLS = select(pool_total).order_by(pool_total.c.cluster, pool_total.c.pool, pool_total.c.slice)

_DEVICE_FIELDS = (
    device.c.kind,
    device.c.pool,
    device.c.slice,
    device.c.total,
    device.c.in_use,
    device.c.unhealthy,
)

# In the same statement as the nodes, so that a page never mixes two observations.
_DEVICES = (
    select(
        func.json_agg(aggregate_order_by(func.json_build_array(*_DEVICE_FIELDS), device.c.kind), type_=JSON)
    )
    .where(device.c.cluster == node.c.cluster, device.c.node == node.c.name)
    .correlate(node)
    .scalar_subquery()
)


# Ready nodes count from when the first of their cluster was seen on: before, none of them came back.
_CHANGES = text("""
    SELECT cluster, health, count(*) AS nodes, max(since) AS last,
        (array_agg(name ORDER BY since DESC, name))[1 : 5] AS names
    FROM (
        SELECT *, min(since) OVER (PARTITION BY cluster) AS first FROM node
    ) AS node
    WHERE since >= :since AND (health <> 'ready' OR since > first + interval '1 minute')
    GROUP BY cluster, health ORDER BY cluster, health
""")


# Of a node with devices in several pools, the first by name.
_FIND = text("""
    SELECT node.cluster, node.name, node.health, (
        SELECT min(device.pool) FROM device
        WHERE device.cluster = node.cluster AND device.node = node.name AND device.pool <> ''
    ) AS pool
    FROM node WHERE strpos(lower(node.name), :part) > 0
    ORDER BY strpos(lower(node.name), :part), node.name, node.cluster LIMIT :limit
""")


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A node that was searched for."""

    cluster: ClusterName
    name: NodeName
    health: Health
    pool: PoolName | None


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """The nodes of a cluster that have been in a state since lately."""

    cluster: ClusterName
    health: Health
    nodes: int
    last: datetime
    """When the last of them changed."""
    names: tuple[NodeName, ...]
    """The last few."""


class ClusterStore(LedgerStore):
    """Reads clusters, pools and nodes as they were last observed."""

    async def all(self) -> tuple[ClusterState, ...]:
        """Return every cluster, by name."""
        return tuple(
            ClusterState(**{**row._mapping, "engine": EngineKind(row.engine) if row.engine else None})
            for row in await self._fetch(_CLUSTERS)
        )

    async def left(self) -> Mapping[ClusterName, LeftCluster]:
        """Return the clusters that are no longer in the fleet, by name."""
        return {row.cluster: LeftCluster(*row) for row in await self._fetch(select(left_cluster))}

    async def pools(self) -> tuple[PoolState, ...]:
        """Return every pool that has nodes, by cluster, pool and slice."""
        return tuple(
            PoolState(**{**row._mapping, "pool": row.pool or None, "slice": row.slice or None})
            for row in await self._fetch(_POOLS)
        )

    async def changes(self, since: datetime) -> tuple[NodeChanges, ...]:
        """Return which nodes came to their state since then. It reads all nodes."""
        return tuple(
            NodeChanges(row.cluster, Health(row.health), row.nodes, row.last, tuple(row.names))
            for row in await self._fetch(_CHANGES, {"since": since})
        )

    async def find_nodes(self, part: str, limit: int) -> tuple[FoundNode, ...]:
        """Return nodes whose names have this part, in lower case. It reads the names of all nodes."""
        return tuple(
            FoundNode(row.cluster, row.name, Health(row.health), row.pool)
            for row in await self._fetch(_FIND, {"part": part, "limit": limit})
        )

    async def nodes(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        health: Health | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> tuple[NodeState, ...]:
        """Return at most `limit` (≤ 2000) nodes by (cluster, name); `after` is the last pair seen."""
        page = select(node, _DEVICES.label("devices")).order_by(node.c.cluster, node.c.name)
        if cluster is not None:
            page = page.where(node.c.cluster == cluster)
        if pool is not None:
            in_pool = exists().where(
                device.c.pool == pool, device.c.cluster == node.c.cluster, device.c.node == node.c.name
            )
            page = page.where(in_pool)
        if health is not None:
            page = page.where(node.c.health == health.value)
        if health not in {None, Health.READY}:
            page = page.where(node.c.health != Health.READY.value)  # lets the index of unready nodes serve
        if after is not None:
            page = page.where(tuple_(node.c.cluster, node.c.name) > tuple_(*after))
        return tuple(map(_node, await self._fetch(page.limit(page_limit(limit)))))


def _node(row: AnyRow) -> NodeState:
    return NodeState(
        cluster=ClusterName(row.cluster),
        name=NodeName(row.name),
        health=Health(row.health),
        reason=row.reason,
        since=row.since,
        devices=tuple(
            Devices(PoolName(pool) if pool else None, kind, SliceName(cut) if cut else None, *counts)
            for kind, pool, cut, *counts in row.devices or ()
        ),
    )
