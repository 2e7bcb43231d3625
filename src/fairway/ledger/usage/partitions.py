"""Create the partitions of `usage`: one per UTC month, when the first row of the month arrives.

They are created separately and attached, which blocks nobody: `ATTACH` locks the parent only against other
schema changes, where `CREATE TABLE … PARTITION OF` would wait for, and block, every reader and writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import LedgerStore
from fairway.ledger.sql_values import moment

LOCK: Final = 0x6661_6972_7573_65
"""Advisory lock for changing the set of partitions ("fairuse" in ASCII)."""

# From the catalog itself: `to_regclass` reads a cache that may not know yet what was committed while this
# transaction waited for the lock.
_MISSING = text("""
    SELECT wanted FROM unnest(CAST(:names AS text[])) AS wanted WHERE NOT EXISTS (
        SELECT FROM pg_class AS existing JOIN pg_class AS parent USING (relnamespace)
        WHERE parent.oid = 'usage'::regclass AND existing.relname = wanted
    )
""")
_LOCK = text("SELECT pg_advisory_xact_lock(:lock)")
_ATTACHED = text("SELECT relid::regclass::text FROM pg_partition_tree('usage') WHERE isleaf AND level = 1")


class PartitionStore(LedgerStore):
    """Creates partitions of the usage table."""

    async def ensure(self, hours: Iterable[int]) -> None:
        """Create missing partitions for these hours; call it before the transaction that writes usage."""
        months = {table(month): month for month in map(month_of, hours)}
        if not months:
            return
        missing = [row.wanted for row in await self._fetch(_MISSING, {"names": sorted(months)})]
        if not missing:
            return
        async with self._connections.transaction() as connection:
            await lock(connection)
            for name in list((await connection.execute(_MISSING, {"names": sorted(missing)})).scalars()):
                await create(connection, months[name])


async def create(connection: AsyncConnection, month: date) -> None:
    """Create the partition of a month; the caller holds `LOCK`."""
    name, start, end = table(month), month.isoformat(), following(month).isoformat()
    await connection.execute(text(f"CREATE TABLE {name} (LIKE usage INCLUDING ALL)"))
    await connection.execute(
        text(
            f"ALTER TABLE usage ATTACH PARTITION {name}"
            f" FOR VALUES FROM ('{start} 00:00+00') TO ('{end} 00:00+00')"
        )
    )


async def lock(connection: AsyncConnection) -> None:
    """Take the lock for changing partitions, until the transaction ends."""
    await connection.execute(_LOCK, {"lock": LOCK})


async def months(connection: AsyncConnection) -> list[date]:
    """Return the months that have a partition, oldest first."""
    names = (await connection.execute(_ATTACHED)).scalars()
    return sorted(month_in(name) for name in names)


def table(month: date) -> str:
    return f"usage_{month:%Y_%m}"


def month_in(name: str) -> date:
    """Return the month in a partition's name."""
    year, number = name.rsplit("_", 2)[-2:]
    return date(int(year), int(number), 1)


def month_of(hour: int) -> date:
    """Return the first day of the UTC month that contains a moment."""
    return moment(hour).date().replace(day=1)


def following(month: date) -> date:
    """Return the first day of the next month."""
    return date(month.year + month.month // 12, month.month % 12 + 1, 1)
