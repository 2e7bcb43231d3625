"""Read and write the conditions of clusters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import select, text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.records.fleet import StoredCondition
from fairway.ledger.schema.tables import cluster_condition
from fairway.ledger.sql_values import json_rows, sanitize
from fairway.model.condition import Condition, ConditionType
from fairway.model.names import ClusterName

MAX_DETAIL_LENGTH: Final = 100_000
"""A diff longer than this has no reader."""

_ALL = select(cluster_condition).order_by(cluster_condition.c.cluster, cluster_condition.c.type)

_WRITE = text("""
    WITH entry AS (
        SELECT * FROM jsonb_to_recordset(CAST(:entries AS jsonb)) AS entry (
            type text, code text, message text, hint text, detail text
        )
    ), gone AS (
        DELETE FROM cluster_condition
        WHERE cluster = :cluster AND type = ANY (CAST(:types AS text[]))
            AND type NOT IN (SELECT type FROM entry)
    )
    INSERT INTO cluster_condition (cluster, type, code, message, hint, detail, since)
    SELECT :cluster, type, code, message, hint, detail, now() FROM entry
    ON CONFLICT (cluster, type) DO UPDATE SET
        code = excluded.code, message = excluded.message, hint = excluded.hint, detail = excluded.detail
    WHERE (cluster_condition.code, cluster_condition.message, cluster_condition.hint,
        cluster_condition.detail) IS DISTINCT FROM
        (excluded.code, excluded.message, excluded.hint, excluded.detail)
""")


class ConditionStore(LedgerStore):
    """Reads the conditions of clusters."""

    async def all(self) -> tuple[StoredCondition, ...]:
        """Return every condition, by cluster and type."""
        return tuple(
            StoredCondition(
                ClusterName(row.cluster),
                Condition(ConditionType(row.type), row.code, row.message, row.hint, row.detail),
                row.since,
            )
            for row in await self._fetch(_ALL)
        )


class ConditionWriter(FencedWriter):
    """Writes the conditions of the lease's cluster."""

    async def write(self, types: Collection[ConditionType], conditions: Sequence[Condition]) -> None:
        """Make the cluster's conditions of these types exactly `conditions`, at most one of each type.

        A condition that was there already keeps the time it began.
        """
        rows = [
            {
                "type": c.type.value,
                "code": sanitize(c.code),
                "message": sanitize(c.message),
                "hint": sanitize(c.hint),
                "detail": sanitize(c.detail, MAX_DETAIL_LENGTH),
            }
            for c in conditions
        ]
        await self._connection.execute(
            _WRITE,
            {
                "cluster": self._lease.cluster,
                "types": [t.value for t in types],
                "entries": json_rows(rows),
            },
        )
