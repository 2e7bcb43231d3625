"""Drift and nudges: what a look at a cluster found different, and what was done to help it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import insert, select, text, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.applies import restored, storable
from fairway.ledger.connection import Connections
from fairway.ledger.observations import kept
from fairway.ledger.policy_records import Drift, DriftEntry, DriftKind, KeptNudge
from fairway.ledger.records import Lease
from fairway.ledger.states import LONGEST_PAGE
from fairway.ledger.tables import drift, nudge
from fairway.model.names import ClusterName, TeamName
from fairway.policy.objects import Nudge, ObjectKey

MOST_ENTRIES: Final = 10_000
"""Kept of one look: whoever lost more has no use for a longer list."""

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


async def page(
    connections: Connections,
    *,
    cluster: str | None,
    after: tuple[str, str, str, str] | None,
    limit: int,
) -> tuple[Drift, ...]:
    wanted = select(drift).order_by(*_ORDER).limit(max(1, min(limit, LONGEST_PAGE)))
    if cluster is not None:
        wanted = wanted.where(drift.c.cluster == cluster)
    if after is not None:
        wanted = wanted.where(tuple_(*_ORDER) > tuple_(*after))
    async with connections.single() as connection:
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


async def keep(connection: AsyncConnection, lease: Lease, apply: int, entries: Sequence[DriftEntry]) -> bool:
    compared = await connection.execute(_COMPARED, {"cluster": lease.cluster, "apply": apply})
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
    values = {"cluster": lease.cluster, "entries": msgspec.json.encode(rows).decode()}
    await connection.execute(_DRIFT, values)
    return True


async def nudges(
    connections: Connections, *, cluster: str | None, before: int | None, limit: int
) -> tuple[KeptNudge, ...]:
    wanted = select(nudge).order_by(nudge.c.id.desc()).limit(max(1, min(limit, LONGEST_PAGE)))
    if cluster is not None:
        wanted = wanted.where(nudge.c.cluster == cluster)
    if before is not None:
        wanted = wanted.where(nudge.c.id < before)
    async with connections.single() as connection:
        return tuple(KeptNudge(**row._mapping) for row in await connection.execute(wanted))


async def keep_nudges(connection: AsyncConnection, lease: Lease, given: Sequence[Nudge]) -> None:
    rows = [
        {
            "cluster": lease.cluster,
            "promise": kept(n.promise),
            "verb": kept(n.verb),
            "job": kept(n.job),
            "why": kept(n.why),
        }
        for n in given
    ]
    if rows:
        await connection.execute(insert(nudge), rows)
