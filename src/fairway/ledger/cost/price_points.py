"""Read and write spot prices: the newest report for a moment is in force, and older ones stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.records.costs import PricePointRow
from fairway.ledger.sql_values import arrays, moment
from fairway.model.charge import Span
from fairway.model.names import PoolName
from fairway.model.price import PricePoint

# A report that changes nothing is not stored again. The clock, not the transaction's time: of two reports
# in turn the later one gets a later time whatever their transactions did.
_ADD = text("""
    INSERT INTO price_point (pool, at, kept_at, by_whom, per_gpu_hour)
    SELECT report.pool, report.at, clock_timestamp(), :by, report.price
    FROM unnest(CAST(:pools AS text[]), CAST(:moments AS timestamptz[]), CAST(:prices AS numeric[]))
        AS report (pool, at, price)
    WHERE report.price IS DISTINCT FROM (
        SELECT per_gpu_hour FROM price_point AS stored
        WHERE stored.pool = report.pool COLLATE "C" AND stored.at = report.at
        ORDER BY kept_at DESC LIMIT 1
    )
    RETURNING 1
""")

# The newest report for each moment, starting with the last moment at or before the start.
_POINTS = text("""
    SELECT DISTINCT ON (points.pool, points.at) points.pool, points.at, per_gpu_hour
    FROM unnest(CAST(:pools AS text[]), CAST(:starts AS timestamptz[]), CAST(:ends AS timestamptz[]))
        AS wanted (name, starts_at, ends_at)
    CROSS JOIN LATERAL (
        SELECT COALESCE(max(at), starts_at) AS at FROM price_point
        WHERE pool = wanted.name COLLATE "C" AND at <= starts_at
    ) AS since
    CROSS JOIN LATERAL (
        SELECT pool, point.at, kept_at, per_gpu_hour FROM price_point AS point
        WHERE pool = wanted.name COLLATE "C" AND point.at >= since.at AND point.at < ends_at
    ) AS points (pool, at, kept_at, per_gpu_hour)
    ORDER BY points.pool, points.at, kept_at DESC
""")


class PriceStore(LedgerStore):
    """Reads and writes spot prices."""

    async def points(
        self, pools: Collection[PoolName], window: Span
    ) -> Mapping[PoolName, tuple[PricePoint, ...]]:
        """Return spot prices within the window, preceded by the one in force at its start, by moment."""
        return await self.points_within(dict.fromkeys(sorted(set(pools)), (window,)))

    async def points_within(
        self, windows: Mapping[PoolName, Sequence[Span]]
    ) -> Mapping[PoolName, tuple[PricePoint, ...]]:
        """Return spot prices within some windows of each pool, each preceded by the one in force then."""
        rows = [(pool, moment(w.start), moment(w.end)) for pool, spans in windows.items() for w in spans]
        values = arrays(rows, "pools", "starts", "ends")
        by_pool: dict[PoolName, list[PricePoint]] = {}
        for row in await self._fetch(_POINTS, values):
            by_pool.setdefault(PoolName(row.pool), []).append(PricePoint(row.at, row.per_gpu_hour))
        return {pool: tuple(points) for pool, points in by_pool.items()}

    async def add(self, points: Sequence[PricePointRow], *, by: str) -> int:
        """Store spot prices. Returns how many of them were new."""
        prices = {(point.pool, point.at): point.per_gpu_hour for point in points}  # of duplicates, the last
        if not prices:
            return 0
        values = arrays(((*key, price) for key, price in prices.items()), "pools", "moments", "prices")
        async with self._connections.transaction() as connection:
            return len((await connection.execute(_ADD, values | {"by": by})).all())
