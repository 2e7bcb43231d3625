"""Read and write which nodes Fairway closed to new jobs.

A node is recorded before its engine is asked to close it, so that a server that is killed between the two
counts it and asks again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.sql_values import AnyRow, arrays, moment, sanitize
from fairway.model.gpu_health import SAME_EVENT_SECONDS
from fairway.model.names import ClusterName, NodeName, PoolName
from fairway.model.observation import Health
from fairway.policy.health import BrokenGpu, NodeState

_OPEN = text("""
    SELECT cluster, node, at, reason, done_at, lift_asked_by FROM cordon
    WHERE lifted_at IS NULL AND (CAST(:cluster AS text) IS NULL OR cluster = :cluster)
    ORDER BY cluster, node LIMIT 10000
""")
_ASK = text("""
    UPDATE cordon SET lift_asked_by = :by WHERE cluster = :cluster AND node = :node AND lifted_at IS NULL
    RETURNING 1
""")
# An old code of an XID says nothing of now: only a GPU that was seen to fail is broken by it. What somebody
# lifted counts no more.
_BROKEN = text("""
    SELECT node, gpu, code, at FROM gpu_event
    WHERE cluster = :cluster AND last_seen >= :since AND class <> 'application'
        AND (onset_known OR code NOT LIKE 'xid-%') AND NOT EXISTS (
            SELECT FROM cordon WHERE cordon.cluster = gpu_event.cluster AND cordon.node = gpu_event.node
                AND (cordon.lifted_at IS NULL OR cordon.lifted_at >= gpu_event.at)
        )
""")
_NODES = text("""
    SELECT node.name, node.health,
        array_remove(array_agg(DISTINCT device.pool), '') AS pools,
        EXISTS (
            SELECT FROM cordon
            WHERE cordon.cluster = node.cluster AND cordon.node = node.name AND lifted_at IS NULL
        ) AS ours
    FROM node JOIN device ON device.cluster = node.cluster AND device.node = node.name
    WHERE node.cluster = :cluster GROUP BY node.cluster, node.name, node.health
""")
_ADD = text("""
    INSERT INTO cordon (cluster, node, at, reason)
    SELECT :cluster, row.node, clock_timestamp(), row.reason
    FROM unnest(CAST(:node AS text[]), CAST(:reason AS text[])) AS row (node, reason)
    WHERE NOT EXISTS (
        SELECT FROM cordon WHERE cordon.cluster = :cluster AND cordon.node = row.node AND lifted_at IS NULL
    )
""")
_DONE = text("""
    UPDATE cordon SET done_at = clock_timestamp()
    WHERE cluster = :cluster AND node = ANY(CAST(:nodes AS text[])) AND lifted_at IS NULL AND done_at IS NULL
""")
_LIFTED = text("""
    UPDATE cordon SET lifted_at = clock_timestamp()
    WHERE cluster = :cluster AND node = ANY(CAST(:nodes AS text[])) AND lifted_at IS NULL
""")


@dataclass(frozen=True, slots=True)
class Cordon:
    """A node that Fairway closed, or is about to."""

    cluster: ClusterName
    node: NodeName
    at: datetime
    reason: str
    done: bool
    """Whether the engine has done it."""
    lift_asked_by: str | None
    """Who asked to open it again."""


class CordonStore(LedgerStore):
    """Reads which nodes Fairway closed, and records that somebody wants one open again."""

    async def open(self, cluster: str | None = None) -> tuple[Cordon, ...]:
        """Return the nodes that are closed, by cluster and name."""
        return tuple(_cordon(row) for row in await self._fetch(_OPEN, {"cluster": cluster}))

    async def ask_to_lift(self, cluster: str, node: str, by: str) -> bool:
        """Record who wants a node open again. Returns False if Fairway did not close it."""
        return await self._fetch_first(_ASK, {"cluster": cluster, "node": node, "by": by}) is not None

    async def broken(self, cluster: str, now: float) -> tuple[BrokenGpu, ...]:
        """Return the events that last, on nodes that Fairway has not closed, or not since it was opened."""
        values = {"cluster": cluster, "since": moment(now - SAME_EVENT_SECONDS)}
        return tuple(
            BrokenGpu(NodeName(row.node), row.gpu, row.code, row.at)
            for row in await self._fetch(_BROKEN, values)
        )

    async def nodes(self, cluster: str) -> dict[NodeName, NodeState]:
        """Return the nodes of a cluster that have devices."""
        return {
            NodeName(row.name): NodeState(
                NodeName(row.name),
                frozenset(PoolName(pool) for pool in row.pools),
                row.ours or row.health != Health.READY,
            )
            for row in await self._fetch(_NODES, {"cluster": cluster})
        }


class CordonWriter(FencedWriter):
    """Writes which nodes of the lease's cluster are closed."""

    async def add(self, nodes: Sequence[tuple[NodeName, str]]) -> None:
        """Record nodes that are to be closed, and why."""
        if nodes:
            rows = [(node, sanitize(reason)) for node, reason in nodes]
            await self._connection.execute(
                _ADD, arrays(rows, "node", "reason") | {"cluster": self._lease.cluster}
            )

    async def done(self, nodes: Collection[NodeName]) -> None:
        """Record that the engine closed nodes."""
        if nodes:
            await self._connection.execute(_DONE, {"cluster": self._lease.cluster, "nodes": list(nodes)})

    async def lifted(self, nodes: Collection[NodeName]) -> None:
        """Record that nodes are open again, or are not Fairway's to open."""
        if nodes:
            await self._connection.execute(_LIFTED, {"cluster": self._lease.cluster, "nodes": list(nodes)})


def _cordon(row: AnyRow) -> Cordon:
    return Cordon(
        ClusterName(row.cluster),
        NodeName(row.node),
        row.at,
        row.reason,
        row.done_at is not None,
        row.lift_asked_by,
    )
