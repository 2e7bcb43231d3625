"""Read and write spot prices: the newest report for a moment is in force, and older ones stay stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.records.costs import PricePointRow, StoredPricePoint
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

# The newest report for each moment that is not withdrawn, starting with the last at or before the start.
_POINTS = text("""
    SELECT pool, at, per_gpu_hour FROM (
        SELECT DISTINCT ON (points.pool, points.at) points.pool, points.at, per_gpu_hour
        FROM unnest(CAST(:pools AS text[]), CAST(:starts AS timestamptz[]), CAST(:ends AS timestamptz[]))
            AS wanted (name, starts_at, ends_at)
        CROSS JOIN LATERAL (
            SELECT COALESCE((
                SELECT at FROM price_point AS point
                WHERE pool = wanted.name COLLATE "C" AND at <= starts_at AND per_gpu_hour IS NOT NULL
                    AND NOT EXISTS (
                        SELECT FROM price_point AS later WHERE later.pool = point.pool
                            AND later.at = point.at AND later.kept_at > point.kept_at
                    )
                ORDER BY at DESC LIMIT 1
            ), starts_at) AS at
        ) AS since
        CROSS JOIN LATERAL (
            SELECT pool, point.at, kept_at, per_gpu_hour FROM price_point AS point
            WHERE pool = wanted.name COLLATE "C" AND point.at >= since.at AND point.at < ends_at
        ) AS points (pool, at, kept_at, per_gpu_hour)
        ORDER BY points.pool, points.at, kept_at DESC
    ) AS newest WHERE per_gpu_hour IS NOT NULL ORDER BY pool, at
""")

# A withdrawal is a row without a price: what was reported stays.
_WITHDRAW = text("""
    INSERT INTO price_point (pool, at, kept_at, by_whom)
    SELECT pool, at, clock_timestamp(), :by FROM (
        SELECT DISTINCT ON (at) pool, at, per_gpu_hour FROM price_point
        WHERE pool = :pool AND at >= :start AND (CAST(:until AS timestamptz) IS NULL OR at < :until)
        ORDER BY at, kept_at DESC
    ) AS newest WHERE per_gpu_hour IS NOT NULL
    RETURNING 1
""")

_STORED = text("""
    SELECT * FROM (
        SELECT at, per_gpu_hour, by_whom, kept_at, NOT EXISTS (
            SELECT FROM price_point AS later WHERE later.pool = point.pool
                AND later.at = point.at AND later.kept_at > point.kept_at
        ) AS newest
        FROM price_point AS point
        WHERE pool = :pool AND (CAST(:until AS timestamptz) IS NULL OR at < :until)
    ) AS report
    WHERE :history OR (newest AND per_gpu_hour IS NOT NULL)
    ORDER BY at DESC, kept_at DESC LIMIT :limit
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

    async def stored(
        self, pool: PoolName, *, limit: int, until: datetime | None = None, history: bool = False
    ) -> tuple[StoredPricePoint, ...]:
        """Return reports of a pool's prices before `until`, newest first; with `history`, also replaced ones.

        Without `history`, those that are in force.
        """
        values = {"pool": pool, "limit": limit, "until": until, "history": history}
        return tuple(
            StoredPricePoint(row.at, row.per_gpu_hour, row.by_whom, row.kept_at, row.newest)
            for row in await self._fetch(_STORED, values)
        )

    async def withdraw(self, pool: PoolName, start: datetime, until: datetime | None, *, by: str) -> int:
        """Withdraw the prices from `start` until before `until`. Returns how many were in force."""
        values = {"pool": pool, "start": start, "until": until, "by": by}
        async with self._connections.transaction() as connection:
            return len((await connection.execute(_WITHDRAW, values)).all())

    async def add(self, points: Sequence[PricePointRow], *, by: str) -> int:
        """Store spot prices. Returns how many of them were new."""
        prices = {(point.pool, point.at): point.per_gpu_hour for point in points}  # of duplicates, the last
        if not prices:
            return 0
        values = arrays(((*key, price) for key, price in prices.items()), "pools", "moments", "prices")
        async with self._connections.transaction() as connection:
            return len((await connection.execute(_ADD, values | {"by": by})).all())
