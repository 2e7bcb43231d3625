"""Read and write how many devices jobs waited for, summed by hour; the jobs themselves are not read again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.schema.tables import NONE
from fairway.ledger.sql_values import arrays, moment, seconds, supply
from fairway.model.charge import Span
from fairway.model.team import Supply

_ADD = text("""
    INSERT INTO queue_hour AS stored (hour, cluster, pool, slice, seconds, device_seconds)
    SELECT hour, :cluster, pool, slice, seconds, device_seconds FROM unnest(
        CAST(:hours AS timestamptz[]), CAST(:pools AS text[]), CAST(:slices AS text[]),
        CAST(:lengths AS int[]), CAST(:sums AS bigint[])
    ) AS added (hour, pool, slice, seconds, device_seconds)
    ON CONFLICT (hour, cluster, pool, slice) DO UPDATE SET seconds = stored.seconds + excluded.seconds,
        device_seconds = stored.device_seconds + excluded.device_seconds
""")

_SUMS = text("""
    SELECT hour, pool, slice, seconds, device_seconds FROM queue_hour
    WHERE hour >= :first AND hour < :end AND pool = ANY(CAST(:pools AS text[]))
""")


@dataclass(frozen=True, slots=True)
class QueueHour:
    """The devices of a supply that jobs waited for in an hour, over the seconds that were observed."""

    start: int
    supply: Supply
    seconds: int
    device_seconds: int


class QueueStore(LedgerStore):
    """Reads the queue of past hours."""

    async def hours(self, window: Span, pools: Collection[str]) -> tuple[QueueHour, ...]:
        """Return the queue of these pools by hour; hours that were not observed are missing."""
        values = {"first": moment(window.start), "end": moment(window.end), "pools": sorted(pools)}
        return tuple(
            QueueHour(seconds(row.hour), supply(row.pool, row.slice), row.seconds, row.device_seconds)
            for row in await self._fetch(_SUMS, values)
        )


class QueueWriter(FencedWriter):
    """Writes the queue of the lease's cluster."""

    async def add(self, waiting: Mapping[Supply, int], hours: Sequence[tuple[int, int]]) -> None:
        """Add the devices waited for over these hours: when each began, and how many seconds of it."""
        rows = [
            (moment(start), one.pool, one.slice or NONE, length, devices * length)
            for start, length in hours
            for one, devices in sorted(waiting.items(), key=lambda item: str(item[0]))
        ]
        if rows:
            values = arrays(rows, "hours", "pools", "slices", "lengths", "sums")
            await self._connection.execute(_ADD, values | {"cluster": self._lease.cluster})
