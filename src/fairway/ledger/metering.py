"""Usage from attempts: what is true of them less what is written already, in one statement a batch.

Everything but the beginnings of hours, which the fleet's calendar knows, is reckoned in the database: rows go
from table to table without ever being a Python object. `cost.metering.difference` says the same for a single
attempt, and is what this is tested against.

That statement takes jobs off the queue, compares their attempts with `metered`, adds usage and its sums, and
makes `metered` show it, all as of one moment. Whatever the mirror writes of an attempt after that moment
comes with a row of the queue that is still there. Usage is of one cluster's classes, and one meter alone
writes it: no two transactions ever wait for each other's rows here.

What runs is metered up to the cluster's mark, and its row in `metered` only says that it runs. When an hour
is over a second statement adds the hour for all of them, and the mark moves: no row is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import Row, TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.metering_statements import METER_CHANGED, METER_RUNNING, PLAINLY, SPAN
from fairway.ledger.records import Lease
from fairway.model.names import PoolName, SliceName, TeamName
from fairway.model.team import Supply

_QUEUE = text("""
    INSERT INTO to_meter (cluster, job) SELECT :cluster, unnest(CAST(:jobs AS bigint[]))
""")

_MARK = text("SELECT metered_to FROM meter_mark WHERE cluster = :cluster")

_KEEP_MARK = text("""
    INSERT INTO meter_mark (cluster, metered_to) VALUES (:cluster, :upto)
    ON CONFLICT (cluster) DO UPDATE SET metered_to = excluded.metered_to
""")


@dataclass(frozen=True, slots=True)
class Hours:
    """The hours of a stretch of time, by when each begins, and the day each is of. Seconds since 1970."""

    starts: tuple[int, ...]
    """Ascending, the end of the last hour after all."""
    days: tuple[date, ...]
    """One for each hour: one fewer than `starts`."""


@dataclass(frozen=True, slots=True)
class Used:
    """What one team was found to have held of one supply: device-seconds."""

    team: TeamName
    supply: Supply
    used: int
    taken_back: int
    """By corrections."""


@dataclass(frozen=True, slots=True)
class MeteredBatch:
    """What came of a batch."""

    taken: int
    """Off the queue; fewer than asked for: it is empty."""
    rows: int
    used: tuple[Used, ...]


class HoursTooFew(Exception):
    """Some of a batch was held outside the hours that were given: nothing of it may be kept."""


async def queue(connection: AsyncConnection, cluster: str, jobs: Collection[int]) -> None:
    """Have these jobs metered: their attempts, or what tells whose they are, changed in this transaction."""
    if jobs:
        await connection.execute(_QUEUE, {"cluster": cluster, "jobs": sorted(jobs)})


async def mark(connections: Connections, cluster: str) -> int | None:
    async with connections.single() as connection:
        found = (await connection.execute(_MARK, {"cluster": cluster})).scalar()
    return None if found is None else seconds(found)


async def span(connections: Connections, cluster: str, most: int) -> tuple[int, int] | None:
    async with connections.single() as connection:
        row = (await connection.execute(SPAN, {"cluster": cluster, "most": most})).one()
    return None if row.earliest is None else (seconds(row.earliest), seconds(row.latest))


async def meter(connection: AsyncConnection, lease: Lease, hours: Hours, most: int) -> MeteredBatch:
    """Meter the first `most` of the queue; raises HoursTooFew if `hours` do not hold all of it."""
    return await _written(connection, METER_CHANGED, hours, {"cluster": lease.cluster, "most": most})


async def meter_running(connection: AsyncConnection, lease: Lease, hours: Hours, upto: int) -> MeteredBatch:
    """Meter all that runs from the mark to `upto`, and move the mark there."""
    values: dict[str, object] = {"cluster": lease.cluster, "upto": moment(upto)}
    done = await _written(connection, METER_RUNNING, hours, values)
    await connection.execute(_KEEP_MARK, values)
    return done


async def _written(
    connection: AsyncConnection, statement: TextClause, hours: Hours, values: dict[str, object]
) -> MeteredBatch:
    await connection.execute(PLAINLY)
    known = {
        "hours": [moment(start) for start in hours.starts],
        "days": list(hours.days),
        "count": len(hours.starts),
    }
    rows = list(await connection.execute(statement, values | known))
    first = rows[0]
    if first.outside:
        raise HoursTooFew
    return MeteredBatch(int(first.taken), int(first.rows or 0), _used(rows))


def _used(rows: Sequence[Row[*tuple[Any, ...]]]) -> tuple[Used, ...]:
    return tuple(
        Used(
            TeamName(row.team),
            Supply(PoolName(row.pool), SliceName(row.slice) if row.slice else None),
            int(row.used),
            int(row.taken_back),
        )
        for row in rows
        if row.team is not None
    )


def moment(second: int) -> datetime:
    """As PostgreSQL takes it."""
    return datetime.fromtimestamp(second, UTC)


def seconds(at: datetime) -> int:
    """The other way round."""
    return int(at.timestamp())
