"""What pools had over time: read from what was last observed, written as spans and sums by hour and day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.metering import Hours, moment, seconds
from fairway.ledger.records import Lease
from fairway.ledger.tables import NONE
from fairway.model.names import PoolName, SliceName
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.model.usage import Shelf
from fairway.policy.shelves import Alike, Held, Known, Turn

# Nodes are much alike: those that differ in nothing but their name are counted.
_NODES = text("""
    SELECT health, devices, count(*) AS nodes FROM (
        SELECT node.health, jsonb_agg(
            jsonb_build_array(pool, slice, total, in_use, unhealthy) ORDER BY pool, slice, kind
        ) AS devices
        FROM node JOIN device ON device.cluster = node.cluster AND device.node = node.name
        WHERE node.cluster = :cluster AND device.pool <> ''
        GROUP BY node.name, node.health
    ) AS each GROUP BY health, devices
""")

_WAITING = text("""
    SELECT job_class.pool, job_class.slice, min(job.gpus) AS gpus
    FROM job JOIN job_class ON job_class.id = job.class
    WHERE job.cluster = :cluster AND job.state = 'waiting' AND job_class.pool <> '' AND job.gpus > 0
        AND job.reason ~ :want_of_room
    GROUP BY job_class.pool, job_class.slice
""")

_KNOWN = text("SELECT * FROM capacity_now WHERE cluster = :cluster ORDER BY pool, slice")

_VECTOR = "total, drained, down, fragmented, gpus"
_ARRAYS = """
    unnest(
        CAST(:pools AS text[]), CAST(:slices AS text[]), CAST(:begins AS timestamptz[]),
        CAST(:ends AS timestamptz[]), CAST(:totals AS int[]), CAST(:drained AS int[]), CAST(:down AS int[]),
        CAST(:fragmented AS int[]), CAST(:gpus AS int[])
    ) AS told (pool, slice, began, ended, total, drained, down, fragmented, gpus)
"""

_SUMS = ", ".join(
    f"CAST(sum(CAST({state} AS bigint) * seconds) AS bigint)"
    for state in ("total", "drained", "down", "fragmented", "gpus")
)
_KEYS = "cluster, pool, slice"
_SUMMED = ("total", "drained", "down", "fragmented", "gpu_seconds")


def _added(table: str, key: str) -> str:
    sets = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in _SUMMED)
    return f"""
        INSERT INTO {table} ({key}, {_KEYS}, {", ".join(_SUMMED)})
        SELECT {key}, :cluster, pool, slice, {_SUMS} FROM pieces GROUP BY {key}, pool, slice
        ORDER BY {key}, pool, slice
        ON CONFLICT ({key}, {_KEYS}) DO UPDATE SET {sets}
    """  # noqa: S608


_CLOSE = text(f"""
    WITH told AS (SELECT * FROM {_ARRAYS}), spans AS (
        INSERT INTO capacity ({_KEYS}, started_at, ended_at, {_VECTOR})
        SELECT :cluster, pool, slice, began, ended, {_VECTOR} FROM told
    ), pieces AS MATERIALIZED (
        SELECT told.*, hour, day,
            CAST(date_part('epoch', least(ended, following) - greatest(began, hour)) AS integer) AS seconds
        FROM told JOIN unnest(
            CAST(:hours AS timestamptz[]), CAST(:followings AS timestamptz[]), CAST(:days AS date[])
        ) AS known (hour, following, day) ON hour < ended AND following > began
    ), by_hour AS ({_added("capacity_hour", "hour")})
    {_added("capacity_day", "day")}
""")  # noqa: S608

_NOW = text(f"""
    INSERT INTO capacity_now ({_KEYS}, metered_to, {_VECTOR})
    SELECT :cluster, pool, slice, began, {_VECTOR} FROM {_ARRAYS}
    ON CONFLICT ({_KEYS}) DO UPDATE SET metered_to = excluded.metered_to, total = excluded.total,
        drained = excluded.drained, down = excluded.down, fragmented = excluded.fragmented,
        gpus = excluded.gpus
""")  # noqa: S608

_GONE = text("""
    DELETE FROM capacity_now
    USING unnest(CAST(:pools AS text[]), CAST(:slices AS text[])) AS gone (pool, slice)
    WHERE cluster = :cluster AND capacity_now.pool = gone.pool AND capacity_now.slice = gone.slice
""")


async def nodes(connections: Connections, cluster: str) -> tuple[Alike, ...]:
    async with connections.single() as connection:
        rows = list(await connection.execute(_NODES, {"cluster": cluster}))
    return tuple(
        Alike(
            Health(row.health),
            tuple(Held(_supply(pool, slice_), *counts) for pool, slice_, *counts in row.devices),
            row.nodes,
        )
        for row in rows
    )


async def waiting(connections: Connections, cluster: str, want_of_room: str) -> dict[Supply, int]:
    async with connections.single() as connection:
        values = {"cluster": cluster, "want_of_room": want_of_room}
        rows = list(await connection.execute(_WAITING, values))
    return {_supply(row.pool, row.slice): row.gpus for row in rows}


async def known(connections: Connections, cluster: str) -> tuple[Known, ...]:
    async with connections.single() as connection:
        rows = list(await connection.execute(_KNOWN, {"cluster": cluster}))
    return tuple(
        Known(
            Shelf(_supply(row.pool, row.slice), row.total, row.drained, row.down, row.fragmented, row.gpus),
            seconds(row.metered_to),
        )
        for row in rows
    )


async def keep(connection: AsyncConnection, lease: Lease, turn: Turn, hours: Hours) -> None:
    """Add what is over to the sums; `hours` hold all of it."""
    if turn.closed:
        told = [(closed.shelf, closed.start, closed.end) for closed in turn.closed]
        more = {
            "hours": [moment(start) for start in hours.starts[:-1]],
            "followings": [moment(start) for start in hours.starts[1:]],
            "days": list(hours.days),
        }
        await connection.execute(_CLOSE, _arrays(lease, told) | more)
    if turn.now:
        now = [(one.shelf, one.metered_to, one.metered_to) for one in turn.now]
        await connection.execute(_NOW, _arrays(lease, now))
    if turn.gone:
        pools, slices = [s.pool for s in turn.gone], [s.slice or NONE for s in turn.gone]
        await connection.execute(_GONE, {"cluster": lease.cluster, "pools": pools, "slices": slices})


def _arrays(lease: Lease, told: Sequence[tuple[Shelf, int, int]]) -> dict[str, Any]:
    by_name = sorted(told, key=lambda one: (one[0].supply.pool, one[0].supply.slice or NONE))
    made = [shelf for shelf, _, _ in by_name]
    return {
        "cluster": lease.cluster,
        "pools": [shelf.supply.pool for shelf in made],
        "slices": [shelf.supply.slice or NONE for shelf in made],
        "begins": [moment(begin) for _, begin, _ in by_name],
        "ends": [moment(end) for _, _, end in by_name],
        "totals": [shelf.total for shelf in made],
        "drained": [shelf.drained for shelf in made],
        "down": [shelf.down for shelf in made],
        "fragmented": [shelf.fragmented for shelf in made],
        "gpus": [shelf.gpus for shelf in made],
    }


def _supply(pool: str, slice_: str) -> Supply:
    return Supply(PoolName(pool), SliceName(slice_) if slice_ else None)
