"""Write observations: a few statements whatever the number of nodes, and only rows that changed.

Each statement takes the whole observation as arrays, compares it with the stored rows, and writes the
difference. Comparing first matters: an upsert that changes nothing still locks, and so rewrites, every row.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import leases
from fairway.ledger.errors import ObservationRefused
from fairway.ledger.records.fleet import Lease
from fairway.ledger.schema.tables import NONE
from fairway.model.errors import FairwayError
from fairway.model.fleet import EngineKind
from fairway.model.observation import Observation, pool_totals

LONGEST_TEXT: Final = 2000
"""Reasons and messages of engines are truncated here, so that one bad node cannot fill the ledger."""

_NODES = text("""
    WITH seen AS (
        SELECT * FROM unnest(CAST(:names AS text[]), CAST(:healths AS text[]), CAST(:reasons AS text[]))
            AS seen (name, health, reason)
    ), gone AS (
        DELETE FROM node
        WHERE cluster = :cluster AND NOT EXISTS (SELECT FROM seen WHERE seen.name = node.name)
    )
    INSERT INTO node (cluster, name, health, reason, since)
    SELECT :cluster, seen.name, seen.health, seen.reason, now()
    FROM seen LEFT JOIN node AS kept ON kept.cluster = :cluster AND kept.name = seen.name
    WHERE kept.name IS NULL OR (kept.health, kept.reason) IS DISTINCT FROM (seen.health, seen.reason)
    ON CONFLICT (cluster, name) DO UPDATE SET
        health = excluded.health,
        reason = excluded.reason,
        since = CASE WHEN node.health = excluded.health THEN node.since ELSE excluded.since END
""")

_DEVICES = text("""
    WITH seen AS (
        SELECT * FROM unnest(
            CAST(:nodes AS text[]), CAST(:kinds AS text[]), CAST(:pools AS text[]), CAST(:slices AS text[]),
            CAST(:totals AS int[]), CAST(:in_uses AS int[]), CAST(:unhealthies AS int[])
        ) AS seen (node, kind, pool, slice, total, in_use, unhealthy)
    ), gone AS (
        DELETE FROM device
        WHERE cluster = :cluster
            AND NOT EXISTS (SELECT FROM seen WHERE seen.node = device.node AND seen.kind = device.kind)
    )
    INSERT INTO device (cluster, node, kind, pool, slice, total, in_use, unhealthy)
    SELECT :cluster, seen.*
    FROM seen LEFT JOIN device AS kept
        ON kept.cluster = :cluster AND kept.node = seen.node AND kept.kind = seen.kind
    WHERE kept.node IS NULL OR (kept.pool, kept.slice, kept.total, kept.in_use, kept.unhealthy)
        IS DISTINCT FROM (seen.pool, seen.slice, seen.total, seen.in_use, seen.unhealthy)
    ON CONFLICT (cluster, node, kind) DO UPDATE SET
        pool = excluded.pool, slice = excluded.slice,
        total = excluded.total, in_use = excluded.in_use, unhealthy = excluded.unhealthy
""")

_POOLS = text("""
    WITH seen AS (
        SELECT * FROM unnest(
            CAST(:pools AS text[]), CAST(:slices AS text[]), CAST(:totals AS int[]), CAST(:in_uses AS int[]),
            CAST(:frees AS int[]), CAST(:unhealthies AS int[]), CAST(:counts AS int[]),
            CAST(:drained AS int[]), CAST(:down AS int[])
        ) AS seen (pool, slice, total, in_use, free, unhealthy, nodes, nodes_drained, nodes_down)
    ), gone AS (
        DELETE FROM pool_total AS kept
        WHERE cluster = :cluster
            AND NOT EXISTS (SELECT FROM seen WHERE seen.pool = kept.pool AND seen.slice = kept.slice)
    )
    INSERT INTO pool_total
        (cluster, pool, slice, total, in_use, free, unhealthy, nodes, nodes_drained, nodes_down)
    SELECT :cluster, seen.* FROM seen
    ON CONFLICT (cluster, pool, slice) DO UPDATE SET
        total = excluded.total, in_use = excluded.in_use, free = excluded.free,
        unhealthy = excluded.unhealthy,
        nodes = excluded.nodes, nodes_drained = excluded.nodes_drained, nodes_down = excluded.nodes_down
""")

_REACHED = """
    engine = COALESCE(NULLIF(:engine, ''), cluster_state.engine), engine_version = :engine_version,
    since = CASE WHEN cluster_state.reachable THEN cluster_state.since ELSE now() END,
    reachable = true, code = '', message = '', hint = '',
    attempted_at = now(), observed_at = now(), token = :token
"""

_UNCHANGED = text(f"""
    UPDATE cluster_state SET {_REACHED}
    WHERE cluster = :cluster AND digest = :digest AND token <= :token
    RETURNING 1
""")  # noqa: S608

_CHANGED = text(f"""
    INSERT INTO cluster_state
        (cluster, engine, engine_version, reachable, since, attempted_at, observed_at, digest, token)
    VALUES (:cluster, :engine, :engine_version, true, now(), now(), now(), :digest, :token)
    ON CONFLICT (cluster) DO UPDATE SET {_REACHED}, digest = :digest
    WHERE cluster_state.token <= :token
    RETURNING 1
""")  # noqa: S608

_FAILED = text("""
    INSERT INTO cluster_state (cluster, engine, reachable, code, message, hint, since, attempted_at, token)
    VALUES (:cluster, :engine, false, :code, :message, :hint, now(), now(), :token)
    ON CONFLICT (cluster) DO UPDATE SET
        engine = COALESCE(NULLIF(:engine, ''), cluster_state.engine),
        since = CASE
            WHEN cluster_state.reachable OR cluster_state.attempted_at IS NULL THEN now()
            ELSE cluster_state.since
        END,
        reachable = false, code = :code, message = :message, hint = :hint,
        attempted_at = now(), token = :token
    WHERE cluster_state.token <= :token
    RETURNING 1
""")


class ObservationWriter:
    """Writes observations of the lease's cluster."""

    def __init__(self, connection: AsyncConnection, lease: Lease) -> None:
        self._connection = connection
        self._lease = lease

    async def keep(self, observation: Observation, *, engine: EngineKind | None = None) -> None:
        """Store an observation as the cluster's state; rows that did not change are not written."""
        _check_cluster(self._lease, observation.cluster)
        _check_names(observation)
        state = {
            "cluster": observation.cluster,
            "engine": engine or "",
            "engine_version": kept(observation.engine_version),
            "digest": digest(observation),
            "token": self._lease.token,
        }
        if (await self._connection.execute(_UNCHANGED, state)).first() is not None:
            return
        await self._connection.execute(_NODES, _node_arrays(observation))
        await self._connection.execute(_DEVICES, _device_arrays(observation))
        await self._connection.execute(_POOLS, _pool_arrays(observation))
        if (await self._connection.execute(_CHANGED, state)).first() is None:
            raise leases.lost(self._lease)

    async def keep_failure(
        self, cluster: str, error: FairwayError, *, engine: EngineKind | None = None
    ) -> None:
        """Record why the cluster is unreachable; its last known state stays."""
        _check_cluster(self._lease, cluster)
        state = {
            "cluster": self._lease.cluster,
            "engine": engine or "",
            "code": error.code,
            "message": kept(error.message),
            "hint": kept(error.hint),
            "token": self._lease.token,
        }
        if (await self._connection.execute(_FAILED, state)).first() is None:
            raise leases.lost(self._lease)


def digest(observation: Observation) -> bytes:
    """Hash the nodes and devices of an observation, whatever the engine's order."""
    total = blake2b(digest_size=16)
    encoder = msgspec.msgpack.Encoder()
    for node in sorted(observation.nodes, key=lambda n: n.name):
        devices = sorted(node.devices, key=lambda d: d.kind)
        total.update(encoder.encode((node.name, node.health, kept(node.reason), devices)))
    return total.digest()


def _check_names(observation: Observation) -> None:
    if len({n.name for n in observation.nodes}) < len(observation.nodes):
        raise _contradiction(observation, "lists a node twice")
    for node in observation.nodes:
        if len(node.devices) > 1 and len({d.kind for d in node.devices}) < len(node.devices):
            raise _contradiction(observation, f"lists one kind of device twice on node {node.name}")


def _contradiction(observation: Observation, what: str) -> ObservationRefused:
    return ObservationRefused(
        "ObservationRefused",
        f"what cluster {observation.cluster} shows contradicts itself: it {what}",
        "check that its pools do not claim the same devices twice; otherwise report a bug with its version",
    )


def _node_arrays(observation: Observation) -> dict[str, object]:
    nodes = observation.nodes
    return {
        "cluster": observation.cluster,
        "names": [n.name for n in nodes],
        "healths": [n.health.value for n in nodes],
        "reasons": [kept(n.reason) for n in nodes],
    }


def _device_arrays(observation: Observation) -> dict[str, object]:
    pairs = [(node, d) for node in observation.nodes for d in node.devices]
    return {
        "cluster": observation.cluster,
        "nodes": [node.name for node, _ in pairs],
        "kinds": [d.kind for _, d in pairs],
        "pools": [d.pool or NONE for _, d in pairs],
        "slices": [d.slice or NONE for _, d in pairs],
        "totals": [d.total for _, d in pairs],
        "in_uses": [d.in_use for _, d in pairs],
        "unhealthies": [d.unhealthy for _, d in pairs],
    }


def _pool_arrays(observation: Observation) -> dict[str, object]:
    sums = pool_totals(observation.nodes)
    return {
        "cluster": observation.cluster,
        "pools": [t.pool or NONE for t in sums],
        "slices": [t.slice or NONE for t in sums],
        "totals": [t.total for t in sums],
        "in_uses": [t.in_use for t in sums],
        "frees": [t.free for t in sums],
        "unhealthies": [t.unhealthy for t in sums],
        "counts": [t.nodes for t in sums],
        "drained": [t.nodes_drained for t in sums],
        "down": [t.nodes_down for t in sums],
    }


def kept(words: str) -> str:
    """Sanitize an engine's text for PostgreSQL: no NUL, valid UTF-8, bounded length."""
    cut = words[:LONGEST_TEXT].replace("\0", "")
    return cut if cut.isascii() else cut.encode("utf-8", "replace").decode()


def _check_cluster(lease: Lease, cluster: str) -> None:
    if cluster != lease.cluster:
        raise ValueError(f"a lease of cluster {lease.cluster} cannot write for {cluster}")
