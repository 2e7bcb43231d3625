"""Read the last known state of clusters, pools and nodes."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import JSON, Row, Select, exists, func, select, tuple_
from sqlalchemy.dialects.postgresql import aggregate_order_by

from fairway.ledger.connection import Connections
from fairway.ledger.records.fleet import ClusterState, NodeState, PoolState
from fairway.ledger.schema.tables import cluster_state, device, node, pool_total
from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName
from fairway.model.observation import Devices, Health

LONGEST_PAGE: Final = 2000

_CLUSTERS = select(
    cluster_state.c.cluster,
    cluster_state.c.engine,
    cluster_state.c.engine_version,
    cluster_state.c.reachable,
    cluster_state.c.code,
    cluster_state.c.message,
    cluster_state.c.hint,
    cluster_state.c.since,
    cluster_state.c.attempted_at,
    cluster_state.c.observed_at,
).order_by(cluster_state.c.cluster)

_POOLS = select(
    pool_total.c.cluster,
    pool_total.c.pool,
    pool_total.c.slice,
    pool_total.c.total,
    pool_total.c.in_use,
    pool_total.c.free,
    pool_total.c.unhealthy,
    pool_total.c.nodes,
    pool_total.c.nodes_drained,
    pool_total.c.nodes_down,
).order_by(pool_total.c.cluster, pool_total.c.pool, pool_total.c.slice)

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


class ClusterStore:
    """Reads clusters, pools and nodes as they were last observed."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def all(self) -> tuple[ClusterState, ...]:
        """Return every cluster, by name."""
        async with self._connections.single() as connection:
            rows = (await connection.execute(_CLUSTERS)).all()
        return tuple(
            ClusterState(**{**row._mapping, "engine": EngineKind(row.engine) if row.engine else None})
            for row in rows
        )

    async def pools(self) -> tuple[PoolState, ...]:
        """Return every pool that has nodes, by cluster, pool and slice."""
        async with self._connections.single() as connection:
            rows = (await connection.execute(_POOLS)).all()
        return tuple(
            PoolState(**{**row._mapping, "pool": row.pool or None, "slice": row.slice or None})
            for row in rows
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
        page = _page(cluster=cluster, pool=pool, health=health, after=after, limit=limit)
        async with self._connections.single() as connection:
            rows = (await connection.execute(page)).all()
        return tuple(_node(row) for row in rows)


def _page(
    *, cluster: str | None, pool: str | None, health: Health | None, after: tuple[str, str] | None, limit: int
) -> Select[*tuple[Any, ...]]:
    page = select(
        node.c.cluster, node.c.name, node.c.health, node.c.reason, node.c.since, _DEVICES.label("devices")
    )
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
    return page.order_by(node.c.cluster, node.c.name).limit(max(1, min(limit, LONGEST_PAGE)))


def _node(row: Row[*tuple[Any, ...]]) -> NodeState:
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
