"""Partitions of `usage`: one a month of UTC, made when the first row of a month comes.

Made aside and attached, which stops nobody: `ATTACH` locks the whole only against other changes of its shape,
where `CREATE TABLE … PARTITION OF` would wait for, and hold up, every reader and writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections

LOCK: Final = 0x6661_6972_7573_65
"""Whoever changes which partitions there are holds it ("fairuse" in ASCII)."""

# By the catalogue itself: `to_regclass` looks into a cache that need not know yet what was committed while
# this transaction waited for the lock.
_MISSING = text("""
    SELECT wanted FROM unnest(CAST(:names AS text[])) AS wanted WHERE NOT EXISTS (
        SELECT FROM pg_class AS known JOIN pg_class AS whole USING (relnamespace)
        WHERE whole.oid = 'usage'::regclass AND known.relname = wanted
    )
""")
_LOCK = text("SELECT pg_advisory_xact_lock(:lock)")
_ATTACHED = text("SELECT relid::regclass::text FROM pg_partition_tree('usage') WHERE isleaf AND level = 1")


async def ensure(connections: Connections, hours: Iterable[int]) -> None:
    """See that rows of these hours have a partition; any number of servers may do so at once.

    In a short transaction of its own: call it before the one that writes.
    """
    months = {table(month): month for month in map(month_of, hours)}
    if not months:
        return
    async with connections.single() as connection:
        missing = list((await connection.execute(_MISSING, {"names": sorted(months)})).scalars())
    if not missing:
        return
    async with connections.transaction() as connection:
        await connection.execute(_LOCK, {"lock": LOCK})
        for name in list((await connection.execute(_MISSING, {"names": sorted(missing)})).scalars()):
            await make(connection, months[name])


async def make(connection: AsyncConnection, month: date) -> None:
    """One that is not there; the caller holds `LOCK`."""
    name, start, end = table(month), month.isoformat(), following(month).isoformat()
    await connection.execute(text(f"CREATE TABLE {name} (LIKE usage INCLUDING ALL)"))
    await connection.execute(
        text(
            f"ALTER TABLE usage ATTACH PARTITION {name}"
            f" FOR VALUES FROM ('{start} 00:00+00') TO ('{end} 00:00+00')"
        )
    )


async def lock(connection: AsyncConnection) -> None:
    """Be the only one to change which partitions there are, until the transaction ends."""
    await connection.execute(_LOCK, {"lock": LOCK})


async def months(connection: AsyncConnection) -> list[date]:
    """Those that have a partition, oldest first."""
    found = await connection.execute(_ATTACHED)
    return sorted(month_in(name) for name in found.scalars())


def table(month: date) -> str:
    return f"usage_{month:%Y_%m}"


def month_in(name: str) -> date:
    """The other way round."""
    year, number = name.rsplit("_", 2)[-2:]
    return date(int(year), int(number), 1)


def month_of(hour: int) -> date:
    """First day of the UTC month a moment is in."""
    return datetime.fromtimestamp(hour, UTC).date().replace(day=1)


def following(month: date) -> date:
    """The first day of the next month."""
    return date(month.year + month.month // 12, month.month % 12 + 1, 1)
