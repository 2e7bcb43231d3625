"""Move old months of raw usage to an object store as Parquet, where queries can still read them.

The month's partition is first detached, which takes a moment, and an empty one is attached in its place:
late corrections go there, and the detached rows change no more. They are then copied piece by piece, each
read back and compared; last, in one transaction, the ledger records the objects and drops the table. Killed
anywhere, the next run resumes from the table it finds; a query sees every row once, wherever it is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.errors import ArchiveMissing, ArchiveUnreachable
from fairway.ledger.records.costs import ArchivedPart
from fairway.ledger.usage import partitions

if TYPE_CHECKING:
    from obstore.store import ObjectStore

LOCK: Final = 0x6661_6972_7761_72
"""Advisory lock of this database that an archiving server holds; one at a time is enough."""
BLOCKS: Final = 8192
"""PostgreSQL blocks in one object: 64 MB of rows, about 900,000, about 10 MB of Parquet."""
OBJECT_SECONDS: Final = 300.0
MONTH_SECONDS: Final = 4 * 3600.0
STORE_SECONDS: Final = 120.0
"""Time limit for one upload or download."""

_LEAVING: Final = "usage_leaving_"

_TRY_LOCK = text("SELECT pg_try_advisory_lock(:lock)")
_UNLOCK = text("SELECT pg_advisory_unlock(:lock)")

_DETACHED = text("""
    SELECT c.relname FROM pg_class AS c JOIN pg_class AS parent ON parent.relnamespace = c.relnamespace
    WHERE parent.oid = 'usage'::regclass AND c.relkind = 'r' AND c.relname LIKE 'usage\\_leaving\\_%'
    ORDER BY c.relname
""")

_PARTS = text("""
    SELECT month, path, rows, bytes, digest FROM usage_archive
    WHERE month BETWEEN :first AND :last ORDER BY month, path
""")

_ROUNDS = text("SELECT count(DISTINCT split_part(path, '/', 3)) FROM usage_archive WHERE month = :month")

_ADD_PART = text("""
    INSERT INTO usage_archive (month, path, rows, bytes, digest)
    VALUES (:month, :path, :rows, :bytes, :digest)
""")

# Ordered by class, which queries filter by: similar rows side by side make small files.
_COPY: Final = """
    COPY (
        SELECT CAST(extract(epoch FROM hour) * 1000000 AS bigint),
            CAST(extract(epoch FROM rows.started_at) * 1000000 AS bigint),
            CAST(extract(epoch FROM kept_at) * 1000000 AS bigint),
            rows.job, attempt, rows.class, seconds, rows.devices, COALESCE(job.name, '') AS name
        FROM {table} AS rows LEFT JOIN job ON job.id = rows.job
        WHERE rows.ctid >= '({first},0)' AND rows.ctid < '({last},0)'
        ORDER BY rows.class, hour, rows.job, attempt, rows.started_at, kept_at, rows.devices
    ) TO STDOUT (FORMAT csv)
"""


class Archive:
    """An object store: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///folder`, `memory:///`.

    Credentials come from the environment, as the provider's own tools read them.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._address = re.sub(r"//[^@/]*@", "//***@", url.partition("?")[0])
        """The URL without secrets: keys can be before the @ and after the ?."""
        self._store: ObjectStore | None = None

    async def put(self, path: str, content: bytes) -> None:
        import obstore  # noqa: PLC0415 - only when a month is archived

        await self._bounded(lambda store: obstore.put_async(store, path, content))

    async def get(self, path: str) -> bytes:
        import obstore  # noqa: PLC0415 - only when a month is read back

        async def fetch(store: ObjectStore) -> bytes:
            response = await obstore.get_async(store, path)
            return bytes(await response.bytes_async())

        return bytes(await self._bounded(fetch))

    async def _bounded(self, call: Any) -> Any:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                return await call(self._open())
        except FileNotFoundError as error:
            raise ArchiveMissing(
                "ArchiveMissing",
                f"the archive at {self._address} has no object {_first_line(error)}",
                "restore it from the store's older versions or its backup",
            ) from error
        except Exception as error:
            raise ArchiveUnreachable(
                "ArchiveUnreachable",
                f"the archive at {self._address} failed: {_first_line(error)}",
                "check FAIRWAY_ARCHIVE_URL and its credentials",
            ) from error

    def _open(self) -> ObjectStore:
        if self._store is None:
            from obstore.store import from_url  # noqa: PLC0415

            # A missing folder is created; a bucket is not.
            options: dict[str, Any] = {"mkdir": True} if self._url.startswith("file:") else {}
            self._store = from_url(self._url, **options)
        return self._store


async def due(connections: Connections, keep_months: int, today: date) -> tuple[date, ...]:
    """Return the months whose rows are still in PostgreSQL but should be archived, oldest first."""
    oldest = _months_before(today.replace(day=1), keep_months)
    async with connections.single() as connection:
        months = {partitions.month_in(name) for name in await leaving(connection)}
        for month in await partitions.months(connection):
            if month < oldest and month not in months and await _has_rows(connection, month):
                months.add(month)
    return tuple(sorted(months))


async def archive_month(connections: Connections, store: Archive, month: date) -> tuple[ArchivedPart, ...]:
    """Move a month's rows to the store. Returns the new objects; empty if another server is archiving."""
    async with _try_lock(connections) as locked:
        if not locked:
            return ()
        table = await _take_out(connections, month)
        if table is None:
            return ()
        parts = await _copied(connections, store, table, month)
        await _finish(connections, table, parts)
    return parts


async def leaving(connection: AsyncConnection) -> list[str]:
    """Return the detached tables whose rows are being archived."""
    return [str(name) for name in (await connection.execute(_DETACHED)).scalars()]


async def parts(connection: AsyncConnection, first: int, last: int) -> tuple[ArchivedPart, ...]:
    """Return the archived objects of the months from that of `first` to that of `last`."""
    values = {"first": partitions.month_of(first), "last": partitions.month_of(last)}
    rows = await connection.execute(_PARTS, values)
    return tuple(ArchivedPart(**row._mapping) for row in rows)


async def sums(
    store: Archive | None,
    parts: Sequence[ArchivedPart],
    slots: Mapping[int, int],
    classes: Collection[int],
    names: Collection[str] | None,
) -> list[tuple[int, int, str, int]]:
    """Return slot, class, name and device-seconds of archived rows; one object in memory at a time."""
    from fairway.ledger.usage import parquet  # noqa: PLC0415 - polars, only when it is needed

    if store is None:
        raise ArchiveMissing(
            "ArchiveMissing",
            f"usage of {parts[0].month:%Y-%m} is in an archive that this server is not configured for",
            "set FAIRWAY_ARCHIVE_URL to the archive, or request the report without job names",
        )
    totals = parquet.Sums(slots, classes, names)
    for part in parts:
        content = await store.get(part.path)
        await asyncio.to_thread(totals.add, part, content)
    return totals.rows()


@asynccontextmanager
async def _try_lock(connections: Connections) -> AsyncIterator[bool]:
    """Try to hold the lock on a separate connection, outside any transaction."""
    async with connections.single(seconds=MONTH_SECONDS) as connection:
        locked = bool((await connection.execute(_TRY_LOCK, {"lock": LOCK})).scalar())
        try:
            yield locked
            await connection.execute(text("SELECT 1"))  # still connected, so the lock is still held
        finally:
            if locked:
                try:
                    await connection.execute(_UNLOCK, {"lock": LOCK})
                except BaseException:
                    await connection.invalidate()
                    raise


async def _take_out(connections: Connections, month: date) -> str | None:
    """Swap the month's partition for an empty one, unless done before. Returns None if it has no rows."""
    partition, detached = partitions.table(month), f"{_LEAVING}{month:%Y_%m}"
    async with connections.transaction() as connection:
        await partitions.lock(connection)
        if detached in await leaving(connection):
            return detached
        if month not in await partitions.months(connection) or not await _has_rows(connection, month):
            return None
        # Waits until readers of raw rows have finished; then nobody reads until it is done.
        await connection.execute(text("LOCK TABLE usage_archive IN ACCESS EXCLUSIVE MODE"))
        await connection.execute(text(f"ALTER TABLE usage DETACH PARTITION {partition}"))
        await connection.execute(text(f"ALTER TABLE {partition} RENAME TO {detached}"))
        await partitions.create(connection, month)
    return detached


async def _has_rows(connection: AsyncConnection, month: date) -> bool:
    any_row = text(f"SELECT EXISTS (SELECT FROM {partitions.table(month)})")  # noqa: S608
    return bool((await connection.execute(any_row)).scalar())


async def _copied(
    connections: Connections, store: Archive, table: str, month: date
) -> tuple[ArchivedPart, ...]:
    """Copy every row of the table to the store, and verify it."""
    from fairway.ledger.usage import parquet  # noqa: PLC0415 - polars, only when it is needed

    async with connections.single(seconds=OBJECT_SECONDS) as connection:
        size = (await connection.execute(text(f"SELECT pg_relation_size('{table}')"))).scalar_one()
        round_ = (await connection.execute(_ROUNDS, {"month": month})).scalar_one() + 1
        block = int(str((await connection.execute(text("SHOW block_size"))).scalar_one()))
    parts: list[ArchivedPart] = []
    total = 0
    for first in range(0, size // block, BLOCKS):
        csv = await _rows(connections, table, first)
        if not csv:
            continue
        content = await asyncio.to_thread(parquet.encode, csv)
        path = f"usage/{month:%Y-%m}/{round_}/{len(parts):05}.parquet"
        await store.put(path, content)
        stored = await store.get(path)
        if stored != content:
            raise _differs(path)
        rows, device_seconds = await asyncio.to_thread(parquet.measure, stored)
        total += device_seconds
        parts.append(ArchivedPart(month, path, rows, len(stored), parquet.digest(stored)))
    await _compare(connections, table, sum(part.rows for part in parts), total)
    return tuple(parts)


async def _rows(connections: Connections, table: str, first: int) -> bytes:
    """Return the rows of some blocks as CSV, read in a short transaction."""
    query = _COPY.format(table=table, first=first, last=first + BLOCKS)
    csv = bytearray()
    async with connections.transaction(seconds=OBJECT_SECONDS) as connection:
        for setting in (f"statement_timeout = {round(OBJECT_SECONDS * 1000)}", "work_mem = '256MB'"):
            await connection.execute(text(f"SET LOCAL {setting}"))
        driver = (await connection.get_raw_connection()).driver_connection
        if not isinstance(driver, psycopg.AsyncConnection):
            raise TypeError(driver)
        async with driver.cursor() as cursor, cursor.copy(query) as copy:
            async for chunk in copy:
                csv += chunk
    return bytes(csv)


async def _compare(connections: Connections, table: str, rows: int, device_seconds: int) -> None:
    query = f"SELECT count(*), COALESCE(sum(CAST(seconds AS bigint) * devices), 0) FROM {table}"  # noqa: S608
    async with connections.transaction(seconds=OBJECT_SECONDS) as connection:
        await connection.execute(text(f"SET LOCAL statement_timeout = {round(OBJECT_SECONDS * 1000)}"))
        table_rows, table_seconds = (await connection.execute(text(query))).one()
    if (table_rows, int(table_seconds)) != (rows, device_seconds):
        raise _differs(table)


async def _finish(connections: Connections, table: str, parts: Sequence[ArchivedPart]) -> None:
    async with connections.transaction() as connection:
        await partitions.lock(connection)
        await connection.execute(text("LOCK TABLE usage_archive IN ACCESS EXCLUSIVE MODE"))
        await connection.execute(_ADD_PART, [asdict(part) for part in parts])
        await connection.execute(text(f"DROP TABLE {table}"))


def _differs(what: str) -> ArchiveUnreachable:
    return ArchiveUnreachable(
        "ArchiveDiffers",
        f"the archive returned other data than was written: {what}",
        "nothing was removed, and Fairway retries; check the object store",
    )


def _months_before(month: date, count: int) -> date:
    number = month.year * 12 + month.month - 1 - count
    return date(number // 12, number % 12 + 1, 1)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
