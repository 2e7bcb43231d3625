"""Read and write drift, the differences that a comparison found, and interventions, which help the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import insert, select, text, tuple_

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.policy.applies import restored, storable
from fairway.ledger.records.policy import Drift, StoredIntervention
from fairway.ledger.schema.tables import drift, intervention
from fairway.ledger.sql_values import json_rows, page_limit, sanitize
from fairway.model.apply import DriftKind
from fairway.model.names import ClusterName, TeamName
from fairway.policy.drift import DriftEntry
from fairway.policy.objects import Intervention, ObjectKey

MAX_ENTRIES: Final = 10_000
"""Entries stored of one comparison: a longer list has no use."""

# Only if the comparison was with the fleet that is in force, and no apply is running: an apply makes
# differences of its own on its way.
_COMPARED = text("""
    UPDATE applied_cluster SET looked_at = now()
    WHERE cluster = :cluster AND apply = :apply
        AND NOT EXISTS (SELECT FROM apply_cluster WHERE cluster = :cluster AND state = 'running')
    RETURNING 1
""")

_DRIFT = text("""
    WITH entry AS (
        SELECT * FROM jsonb_to_recordset(CAST(:entries AS jsonb)) AS entry (
            object_kind text, object_name text, field text, kind text, team text,
            wanted jsonb, found jsonb, changed_by text
        )
    ), gone AS (
        DELETE FROM drift
        WHERE cluster = :cluster AND NOT EXISTS (
            SELECT FROM entry
            WHERE entry.object_kind = drift.object_kind AND entry.object_name = drift.object_name
                AND entry.field = drift.field
        )
    )
    INSERT INTO drift (cluster, object_kind, object_name, field, kind, team, wanted, found, changed_by, since)
    SELECT :cluster, object_kind, object_name, field, kind, team, wanted, found, changed_by, now() FROM entry
    ON CONFLICT (cluster, object_kind, object_name, field) DO UPDATE SET
        kind = excluded.kind, team = excluded.team, wanted = excluded.wanted, found = excluded.found,
        changed_by = excluded.changed_by
    WHERE (drift.kind, drift.team, drift.wanted, drift.found, drift.changed_by) IS DISTINCT FROM
        (excluded.kind, excluded.team, excluded.wanted, excluded.found, excluded.changed_by)
""")

_SUMMARY = text("""
    SELECT cluster, count(*) AS objects, max(newest) AS newest,
        (array_agg(name ORDER BY newest DESC, name))[1 : 20] AS names
    FROM (
        SELECT cluster, object_kind || ' ' || object_name AS name, max(since) AS newest FROM drift
        GROUP BY cluster, object_kind, object_name
    ) AS object GROUP BY cluster ORDER BY cluster
""")

_ORDER = (drift.c.cluster, drift.c.object_kind, drift.c.object_name, drift.c.field)


@dataclass(frozen=True, slots=True)
class DriftSummary:
    """How a cluster differs from what was applied, in numbers."""

    cluster: ClusterName
    objects: int
    newest: datetime
    """When the latest difference was found."""
    names: Sequence[str]
    """Some of the objects, those with the latest differences first."""


class DriftStore(LedgerStore):
    """Reads drift and interventions."""

    async def page(
        self,
        *,
        cluster: str | None = None,
        after: tuple[str, str, str, str] | None = None,
        limit: int = 100,
    ) -> tuple[Drift, ...]:
        """Return at most `limit` (≤ 2000) differences; `after` is the key of the last one seen."""
        page = select(drift).order_by(*_ORDER).limit(page_limit(limit))
        if cluster is not None:
            page = page.where(drift.c.cluster == cluster)
        if after is not None:
            page = page.where(tuple_(*_ORDER) > tuple_(*after))
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
            for row in await self._fetch(page)
        )

    async def summary(self) -> tuple[DriftSummary, ...]:
        """Return how each cluster with drift differs."""
        rows = await self._fetch(_SUMMARY)
        return tuple(DriftSummary(ClusterName(r.cluster), r.objects, r.newest, r.names) for r in rows)

    async def interventions(
        self, *, cluster: str | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[StoredIntervention, ...]:
        """Return at most `limit` (≤ 2000) interventions, newest first; `before` is the last id seen."""
        page = select(intervention).order_by(intervention.c.id.desc()).limit(page_limit(limit))
        if cluster is not None:
            page = page.where(intervention.c.cluster == cluster)
        if before is not None:
            page = page.where(intervention.c.id < before)
        return tuple(StoredIntervention(**row._mapping) for row in await self._fetch(page))


class DriftWriter(FencedWriter):
    """Writes drift and interventions of the lease's cluster."""

    async def write(self, apply: int, entries: Sequence[DriftEntry]) -> bool:
        """Replace the cluster's drift with these differences from `apply`.

        Returns False, and stores nothing, if another apply finished since or is running now.
        """
        compared = await self._connection.execute(_COMPARED, {"cluster": self._lease.cluster, "apply": apply})
        if compared.first() is None:
            return False
        rows = [
            {
                "object_kind": sanitize(e.key.kind),
                "object_name": sanitize(e.key.name),
                "field": sanitize(e.field),
                "kind": e.kind.value,
                "team": e.team or "",
                "wanted": storable(e.wanted),
                "found": storable(e.found),
                "changed_by": sanitize(e.changed_by or ""),
            }
            for e in entries[:MAX_ENTRIES]
        ]
        values = {"cluster": self._lease.cluster, "entries": json_rows(rows)}
        await self._connection.execute(_DRIFT, values)
        return True

    async def write_interventions(self, interventions: Sequence[Intervention]) -> None:
        """Store interventions that were made."""
        rows = [
            {
                "cluster": self._lease.cluster,
                "promise": sanitize(n.promise),
                "verb": sanitize(n.verb),
                "job": sanitize(n.job),
                "why": sanitize(n.why),
            }
            for n in interventions
        ]
        if rows:
            await self._connection.execute(insert(intervention), rows)
