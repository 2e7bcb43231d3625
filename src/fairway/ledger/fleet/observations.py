"""Write observations: a few statements whatever the number of nodes, and only rows that changed.

Each statement takes the whole observation as arrays, compares it with the stored rows, and writes the
difference. Comparing first matters: an upsert that changes nothing still locks, and so rewrites, every row.
"""

from __future__ import annotations

from dataclasses import astuple
from hashlib import blake2b

import msgspec
from sqlalchemy import text

from fairway.ledger import leases
from fairway.ledger.errors import ObservationRefused
from fairway.ledger.leases import FencedWriter
from fairway.ledger.records.fleet import Lease
from fairway.ledger.schema.tables import NONE
from fairway.ledger.sql_values import arrays, sanitize
from fairway.model.errors import FairwayError
from fairway.model.fleet import EngineKind
from fairway.model.observation import Observation, pool_totals

_NODES = text("""
    WITH found AS (
        SELECT * FROM unnest(CAST(:names AS text[]), CAST(:healths AS text[]), CAST(:reasons AS text[]))
            AS found (name, health, reason)
    ), gone AS (
        DELETE FROM node
        WHERE cluster = :cluster AND NOT EXISTS (SELECT FROM found WHERE found.name = node.name)
    )
    INSERT INTO node (cluster, name, health, reason, since)
    SELECT :cluster, found.name, found.health, found.reason, now()
    FROM found LEFT JOIN node AS stored ON stored.cluster = :cluster AND stored.name = found.name
    WHERE stored.name IS NULL OR (stored.health, stored.reason) IS DISTINCT FROM (found.health, found.reason)
    ON CONFLICT (cluster, name) DO UPDATE SET
        health = excluded.health,
        reason = excluded.reason,
        since = CASE WHEN node.health = excluded.health THEN node.since ELSE excluded.since END
""")

_DEVICES = text("""
    WITH found AS (
        SELECT * FROM unnest(
            CAST(:nodes AS text[]), CAST(:kinds AS text[]), CAST(:pools AS text[]), CAST(:slices AS text[]),
            CAST(:totals AS int[]), CAST(:in_uses AS int[]), CAST(:unhealthies AS int[])
        ) AS found (node, kind, pool, slice, total, in_use, unhealthy)
    ), gone AS (
        DELETE FROM device
        WHERE cluster = :cluster
            AND NOT EXISTS (SELECT FROM found WHERE found.node = device.node AND found.kind = device.kind)
    )
    INSERT INTO device (cluster, node, kind, pool, slice, total, in_use, unhealthy)
    SELECT :cluster, found.*
    FROM found LEFT JOIN device AS stored
        ON stored.cluster = :cluster AND stored.node = found.node AND stored.kind = found.kind
    WHERE stored.node IS NULL OR (stored.pool, stored.slice, stored.total, stored.in_use, stored.unhealthy)
        IS DISTINCT FROM (found.pool, found.slice, found.total, found.in_use, found.unhealthy)
    ON CONFLICT (cluster, node, kind) DO UPDATE SET
        pool = excluded.pool, slice = excluded.slice,
        total = excluded.total, in_use = excluded.in_use, unhealthy = excluded.unhealthy
""")

_POOLS = text("""
    WITH found AS (
        SELECT * FROM unnest(
            CAST(:pools AS text[]), CAST(:slices AS text[]), CAST(:totals AS int[]), CAST(:in_uses AS int[]),
            CAST(:frees AS int[]), CAST(:unhealthies AS int[]), CAST(:counts AS int[]),
            CAST(:drained AS int[]), CAST(:down AS int[])
        ) AS found (pool, slice, total, in_use, free, unhealthy, nodes, nodes_drained, nodes_down)
    ), gone AS (
        DELETE FROM pool_total AS stored
        WHERE cluster = :cluster
            AND NOT EXISTS (SELECT FROM found WHERE found.pool = stored.pool AND found.slice = stored.slice)
    )
    INSERT INTO pool_total
        (cluster, pool, slice, total, in_use, free, unhealthy, nodes, nodes_drained, nodes_down)
    SELECT :cluster, found.* FROM found
    ON CONFLICT (cluster, pool, slice) DO UPDATE SET
        total = excluded.total, in_use = excluded.in_use, free = excluded.free,
        unhealthy = excluded.unhealthy,
        nodes = excluded.nodes, nodes_drained = excluded.nodes_drained, nodes_down = excluded.nodes_down
""")

_DEVICE_ARRAYS = ["nodes", "kinds", "pools", "slices", "totals", "in_uses", "unhealthies"]
_POOL_ARRAYS = ["pools", "slices", "totals", "in_uses", "frees", "unhealthies", "counts", "drained", "down"]

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


class ObservationWriter(FencedWriter):
    """Writes observations of the lease's cluster."""

    async def write(self, observation: Observation, *, engine: EngineKind | None = None) -> None:
        """Store an observation as the cluster's state; rows that did not change are not written."""
        _check_cluster(self._lease, observation.cluster)
        _check_names(observation)
        nodes = observation.nodes
        state = {
            "cluster": observation.cluster,
            "engine": engine or "",
            "engine_version": sanitize(observation.engine_version),
            "digest": _digest(observation),
            "token": self._lease.token,
        }
        if (await self._connection.execute(_UNCHANGED, state)).first() is not None:
            return
        cluster = {"cluster": observation.cluster}
        rows: list[tuple[object, ...]] = [(n.name, n.health.value, sanitize(n.reason)) for n in nodes]
        await self._connection.execute(_NODES, arrays(rows, "names", "healths", "reasons") | cluster)
        rows = [
            (node.name, d.kind, d.pool or NONE, d.slice or NONE, d.total, d.in_use, d.unhealthy)
            for node in nodes
            for d in node.devices
        ]
        await self._connection.execute(_DEVICES, arrays(rows, *_DEVICE_ARRAYS) | cluster)
        rows = [(t.pool or NONE, t.slice or NONE, *astuple(t)[2:]) for t in pool_totals(nodes)]
        await self._connection.execute(_POOLS, arrays(rows, *_POOL_ARRAYS) | cluster)
        if (await self._connection.execute(_CHANGED, state)).first() is None:
            raise leases.lost(self._lease)

    async def write_failure(
        self, cluster: str, error: FairwayError, *, engine: EngineKind | None = None
    ) -> None:
        """Record why the cluster is unreachable; its last known state stays."""
        _check_cluster(self._lease, cluster)
        state = {
            "cluster": self._lease.cluster,
            "engine": engine or "",
            "code": error.code,
            "message": sanitize(error.message),
            "hint": sanitize(error.hint),
            "token": self._lease.token,
        }
        if (await self._connection.execute(_FAILED, state)).first() is None:
            raise leases.lost(self._lease)


def _digest(observation: Observation) -> bytes:
    """Hash the nodes and devices of an observation, whatever the engine's order."""
    digest = blake2b(digest_size=16)
    encoder = msgspec.msgpack.Encoder()
    for node in sorted(observation.nodes, key=lambda n: n.name):
        devices = sorted(node.devices, key=lambda d: d.kind)
        digest.update(encoder.encode((node.name, node.health, sanitize(node.reason), devices)))
    return digest.digest()


def _check_names(observation: Observation) -> None:
    if len({n.name for n in observation.nodes}) < len(observation.nodes):
        raise _contradiction(observation, "lists a node twice")
    for node in observation.nodes:
        if len(node.devices) > 1 and len({d.kind for d in node.devices}) < len(node.devices):
            raise _contradiction(observation, f"lists one kind of device twice on node {node.name}")


def _contradiction(observation: Observation, what: str) -> ObservationRefused:
    return ObservationRefused(
        "ObservationRefused",
        f"what cluster {observation.cluster} shows is inconsistent: it {what}",
        "check that its pools do not include the same GPUs twice; otherwise report a bug with its version",
    )


def _check_cluster(lease: Lease, cluster: str) -> None:
    if cluster != lease.cluster:
        raise ValueError(f"a lease of cluster {lease.cluster} cannot write for {cluster}")
