"""Drift and nudges: what a comparison found different, and what was done to help the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import insert, select, text, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.fleet.clusters import LONGEST_PAGE
from fairway.ledger.fleet.observations import kept
from fairway.ledger.policy.applies import restored, storable
from fairway.ledger.records.fleet import Lease
from fairway.ledger.records.policy import Drift, DriftEntry, DriftKind, StoredNudge
from fairway.ledger.schema.tables import drift, nudge
from fairway.model.names import ClusterName, TeamName
from fairway.policy.objects import Nudge, ObjectKey

MOST_ENTRIES: Final = 10_000
"""Entries stored of one comparison: a longer list has no use."""

# Only if the comparison was with what holds now, and nobody is just changing it: an apply makes differences
# of its own on its way.
_COMPARED = text("""
    UPDATE applied_cluster SET looked_at = now()
    WHERE cluster = :cluster AND apply = :apply
        AND NOT EXISTS (SELECT FROM apply_cluster WHERE cluster = :cluster AND state = 'running')
    RETURNING 1
""")

_DRIFT = text("""
    WITH seen AS (
        SELECT * FROM jsonb_to_recordset(CAST(:entries AS jsonb)) AS seen (
            object_kind text, object_name text, field text, kind text, team text,
            wanted jsonb, found jsonb, changed_by text
        )
    ), gone AS (
        DELETE FROM drift
        WHERE cluster = :cluster AND NOT EXISTS (
            SELECT FROM seen
            WHERE seen.object_kind = drift.object_kind AND seen.object_name = drift.object_name
                AND seen.field = drift.field
        )
    )
    INSERT INTO drift (cluster, object_kind, object_name, field, kind, team, wanted, found, changed_by, since)
    SELECT :cluster, object_kind, object_name, field, kind, team, wanted, found, changed_by, now() FROM seen
    ON CONFLICT (cluster, object_kind, object_name, field) DO UPDATE SET
        kind = excluded.kind, team = excluded.team, wanted = excluded.wanted, found = excluded.found,
        changed_by = excluded.changed_by
    WHERE (drift.kind, drift.team, drift.wanted, drift.found, drift.changed_by) IS DISTINCT FROM
        (excluded.kind, excluded.team, excluded.wanted, excluded.found, excluded.changed_by)
""")

_ORDER = (drift.c.cluster, drift.c.object_kind, drift.c.object_name, drift.c.field)


class DriftStore:
    """Reads drift and nudges."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def page(
        self,
        *,
        cluster: str | None = None,
        after: tuple[str, str, str, str] | None = None,
        limit: int = 100,
    ) -> tuple[Drift, ...]:
        """Return at most `limit` (≤ 2000) differences; `after` is the key of the last one seen."""
        wanted = select(drift).order_by(*_ORDER).limit(max(1, min(limit, LONGEST_PAGE)))
        if cluster is not None:
            wanted = wanted.where(drift.c.cluster == cluster)
        if after is not None:
            wanted = wanted.where(tuple_(*_ORDER) > tuple_(*after))
        async with self._connections.single() as connection:
            rows = (await connection.execute(wanted)).all()
        return tuple(
            Drift(
                ClusterName(row.cluster),
                DriftEntry(
                    key=ObjectKey(row.object_kind, row.object_name),
                    kind=DriftKind(row.kind),
                    field=row.field,
                    wanted=restored(row.wanted),
                    found=restored(row.found),
                    changed_by=row.changed_by or None,
                    team=TeamName(row.team) if row.team else None,
                ),
                row.since,
            )
            for row in rows
        )

    async def nudges(
        self, *, cluster: str | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[StoredNudge, ...]:
        """Return at most `limit` (≤ 2000) nudges, newest first; `before` is the last id seen."""
        wanted = select(nudge).order_by(nudge.c.id.desc()).limit(max(1, min(limit, LONGEST_PAGE)))
        if cluster is not None:
            wanted = wanted.where(nudge.c.cluster == cluster)
        if before is not None:
            wanted = wanted.where(nudge.c.id < before)
        async with self._connections.single() as connection:
            return tuple(StoredNudge(**row._mapping) for row in await connection.execute(wanted))


class DriftWriter:
    """Writes drift and nudges of the lease's cluster."""

    def __init__(self, connection: AsyncConnection, lease: Lease) -> None:
        self._connection = connection
        self._lease = lease

    async def keep(self, apply: int, entries: Sequence[DriftEntry]) -> bool:
        """Replace the cluster's drift with these differences from `apply`.

        Returns False, and stores nothing, if another apply finished since or is running now.
        """
        compared = await self._connection.execute(_COMPARED, {"cluster": self._lease.cluster, "apply": apply})
        if compared.first() is None:
            return False
        rows = [
            {
                "object_kind": kept(e.key.kind),
                "object_name": kept(e.key.name),
                "field": kept(e.field),
                "kind": e.kind.value,
                "team": e.team or "",
                "wanted": storable(e.wanted),
                "found": storable(e.found),
                "changed_by": kept(e.changed_by or ""),
            }
            for e in entries[:MOST_ENTRIES]
        ]
        values = {"cluster": self._lease.cluster, "entries": msgspec.json.encode(rows).decode()}
        await self._connection.execute(_DRIFT, values)
        return True

    async def keep_nudges(self, nudges: Sequence[Nudge]) -> None:
        """Store nudges that were made."""
        rows = [
            {
                "cluster": self._lease.cluster,
                "promise": kept(n.promise),
                "verb": kept(n.verb),
                "job": kept(n.job),
                "why": kept(n.why),
            }
            for n in nudges
        ]
        if rows:
            await self._connection.execute(insert(nudge), rows)
