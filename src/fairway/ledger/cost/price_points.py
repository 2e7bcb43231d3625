"""Spot prices over time: the newest report for a moment is in force, and older ones stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import text

from fairway.ledger.connection import Connections
from fairway.ledger.records.costs import PricePointRow
from fairway.model.charge import Span
from fairway.model.names import PoolName
from fairway.model.price import PricePoint

# A report that changes nothing is not stored again. The clock, not the transaction's time: of two reports
# in turn the later one gets a later time whatever their transactions did.
_KEEP = text("""
    INSERT INTO price_point (pool, at, kept_at, by_whom, per_gpu_hour)
    SELECT told.pool, told.at, clock_timestamp(), :by, told.price
    FROM unnest(CAST(:pools AS text[]), CAST(:moments AS timestamptz[]), CAST(:prices AS numeric[]))
        AS told (pool, at, price)
    WHERE told.price IS DISTINCT FROM (
        SELECT per_gpu_hour FROM price_point AS known
        WHERE known.pool = told.pool COLLATE "C" AND known.at = told.at
        ORDER BY kept_at DESC LIMIT 1
    )
    RETURNING 1
""")

# The newest report for each moment, starting with the last moment at or before the start.
_POINTS = text("""
    SELECT DISTINCT ON (points.pool, points.at) points.pool, points.at, per_gpu_hour
    FROM unnest(CAST(:pools AS text[])) AS wanted (name)
    CROSS JOIN LATERAL (
        SELECT COALESCE(max(at), :start) AS at FROM price_point
        WHERE pool = wanted.name COLLATE "C" AND at <= :start
    ) AS since
    CROSS JOIN LATERAL (
        SELECT pool, point.at, kept_at, per_gpu_hour FROM price_point AS point
        WHERE pool = wanted.name COLLATE "C" AND point.at >= since.at AND point.at < :end
    ) AS points (pool, at, kept_at, per_gpu_hour)
    ORDER BY points.pool, points.at, kept_at DESC
""")


class PriceStore:
    """Reads and writes spot prices."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def points(
        self, pools: Collection[PoolName], window: Span
    ) -> Mapping[PoolName, tuple[PricePoint, ...]]:
        """Return spot prices within the window, preceded by the one in force at its start, by moment."""
        values = {
            "pools": sorted(set(pools)),
            "start": datetime.fromtimestamp(window.start, UTC),
            "end": datetime.fromtimestamp(window.end, UTC),
        }
        found: dict[PoolName, list[PricePoint]] = {}
        async with self._connections.single() as connection:
            for row in await connection.execute(_POINTS, values):
                found.setdefault(PoolName(row.pool), []).append(PricePoint(row.at, row.per_gpu_hour))
        return {pool: tuple(those) for pool, those in found.items()}

    async def keep(self, points: Sequence[PricePointRow], *, by: str) -> int:
        """Store spot prices. Returns how many of them were new."""
        told = {(point.pool, point.at): point.per_gpu_hour for point in points}  # of duplicates, the last
        if not told:
            return 0
        values = {
            "by": by,
            "pools": [pool for pool, _ in told],
            "moments": [at for _, at in told],
            "prices": list(told.values()),
        }
        async with self._connections.transaction() as connection:
            return len((await connection.execute(_KEEP, values)).all())
