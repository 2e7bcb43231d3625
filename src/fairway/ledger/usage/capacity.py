"""Read and write capacity: what pools had over time, as spans and as totals by hour and day."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.records.costs import LocalTime
from fairway.ledger.records.fleet import Lease
from fairway.ledger.schema.tables import NONE
from fairway.ledger.usage.metering import Hours, moment, seconds
from fairway.model.charge import CapacitySum, Span
from fairway.model.names import ClusterName, PoolName, SliceName
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.model.usage import CapacitySample
from fairway.policy.capacity import CapacityUpdate, NodeDevices, NodeGroup, StoredCapacity

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
        AND job.reason_code = ANY(CAST(:codes AS text[]))
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


class CapacityStore:
    """Reads the capacity of pools: now, and over time."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def nodes(self, cluster: str) -> tuple[NodeGroup, ...]:
        """Return the nodes of a cluster on which pools have devices, counted by what they have in common."""
        async with self._connections.single() as connection:
            rows = list(await connection.execute(_NODES, {"cluster": cluster}))
        return tuple(
            NodeGroup(
                Health(row.health),
                tuple(NodeDevices(_supply(pool, slice_), *counts) for pool, slice_, *counts in row.devices),
                row.nodes,
            )
            for row in rows
        )

    async def waiting(self, cluster: str, codes: Collection[str]) -> Mapping[Supply, int]:
        """The least asked for on each node by any job that waits for one of these reasons, by supply."""
        async with self._connections.single() as connection:
            values = {"cluster": cluster, "codes": sorted(codes)}
            rows = list(await connection.execute(_WAITING, values))
        return {_supply(row.pool, row.slice): row.gpus for row in rows}

    async def known(self, cluster: str) -> tuple[StoredCapacity, ...]:
        """Return the last known capacity of a cluster's pools, and up to when it is written."""
        async with self._connections.single() as connection:
            rows = list(await connection.execute(_KNOWN, {"cluster": cluster}))
        return tuple(
            StoredCapacity(
                CapacitySample(
                    _supply(row.pool, row.slice), row.total, row.drained, row.down, row.fragmented, row.gpus
                ),
                seconds(row.metered_to),
            )
            for row in rows
        )

    async def sums(
        self,
        window: Span,
        *,
        local: LocalTime,
        by_day: bool,
        clusters: Collection[str] | None = None,
        live_until: int | None = None,
    ) -> tuple[CapacitySum, ...]:
        """Return capacity by hour or day, in order; with `live_until`, up to then as last observed."""
        values: dict[str, object] = {"clusters": None if clusters is None else sorted(clusters)}
        found: dict[_Key, CapacitySum] = {}
        async with self._connections.transaction(seconds=SECONDS) as connection:
            # One moment for both: what is now becomes a sum in a single transaction.
            await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
            for row in await _kept(connection, window, by_day, values, local):
                start = _start(row.start, local)
                found[start, row.cluster, row.pool, row.slice] = _sum(row, start, row.gpu_seconds)
            now = list(await connection.execute(_AT_THE_END, values)) if live_until is not None else []
        for row in now:
            _add_live(found, row, window, by_day, live_until or 0, local)
        return tuple(found[key] for key in sorted(found))


class CapacityWriter:
    """Writes the capacity of the lease's cluster."""

    def __init__(self, connection: AsyncConnection, lease: Lease) -> None:
        self._connection = connection
        self._lease = lease

    async def keep(self, turn: CapacityUpdate, hours: Hours) -> None:
        """Add the capacity of closed periods, which `hours` cover, and replace the current one."""
        if turn.closed:
            told = [(closed.shelf, closed.start, closed.end) for closed in turn.closed]
            more = {
                "hours": [moment(start) for start in hours.starts[:-1]],
                "followings": [moment(start) for start in hours.starts[1:]],
                "days": list(hours.days),
            }
            await self._connection.execute(_CLOSE, _arrays(self._lease, told) | more)
        if turn.now:
            now = [(one.shelf, one.metered_to, one.metered_to) for one in turn.now]
            await self._connection.execute(_NOW, _arrays(self._lease, now))
        if turn.gone:
            pools, slices = [s.pool for s in turn.gone], [s.slice or NONE for s in turn.gone]
            await self._connection.execute(
                _GONE, {"cluster": self._lease.cluster, "pools": pools, "slices": slices}
            )


def _arrays(lease: Lease, told: Sequence[tuple[CapacitySample, int, int]]) -> dict[str, Any]:
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


SECONDS: Final = 60.0


_OF_CLUSTERS: Final = "(CAST(:clusters AS text[]) IS NULL OR cluster = ANY(CAST(:clusters AS text[])))"


_HOURS = text(f"""
    SELECT hour AS start, cluster, pool, slice, total, drained, down, fragmented, gpu_seconds
    FROM capacity_hour WHERE hour >= :first AND hour < :end AND {_OF_CLUSTERS}
""")  # noqa: S608


_DAYS = text(f"""
    SELECT day AS start, cluster, pool, slice, total, drained, down, fragmented, gpu_seconds
    FROM capacity_day WHERE day >= :first AND day < :end AND {_OF_CLUSTERS}
""")  # noqa: S608


_AT_THE_END = text(f"""
    SELECT metered_to, cluster, pool, slice, total, drained, down, fragmented, gpus
    FROM capacity_now WHERE {_OF_CLUSTERS}
""")  # noqa: S608


_Key = tuple[int, str, str, str]


async def _kept(
    connection: AsyncConnection, window: Span, by_day: bool, values: dict[str, object], local: LocalTime
) -> list[Row[*tuple[Any, ...]]]:
    edges: dict[str, object] = (
        {"first": local.day_of(window.start), "end": _day_after(window.end, local)}
        if by_day
        else {
            "first": datetime.fromtimestamp(window.start, UTC),
            "end": datetime.fromtimestamp(window.end, UTC),
        }
    )
    return list(await connection.execute(_DAYS if by_day else _HOURS, values | edges))


def _add_live(
    found: dict[_Key, CapacitySum],
    row: Row[*tuple[Any, ...]],
    window: Span,
    by_day: bool,
    until: int,
    local: LocalTime,
) -> None:
    since = max(int(row.metered_to.timestamp()), window.start)
    for start, length in _units(since, min(until, window.end), by_day, local):
        key = (start, row.cluster, row.pool, row.slice)
        more = _sum(row, start, row.gpus)
        before = found.get(key) or replace(more, total=0, drained=0, down=0, fragmented=0, gpu_seconds=0)
        found[key] = replace(
            before,
            total=before.total + more.total * length,
            drained=before.drained + more.drained * length,
            down=before.down + more.down * length,
            fragmented=before.fragmented + more.fragmented * length,
            gpu_seconds=before.gpu_seconds + more.gpu_seconds * length,
        )


def _units(start: int, end: int, by_day: bool, local: LocalTime) -> Iterator[tuple[int, int]]:
    """Yield the days or hours of a period: when each begins, and how many seconds of it are in the period."""
    while start < end:
        day = local.day_of(start)
        if by_day:
            begins, following = local.day_start(day), local.day_start(day + timedelta(days=1))
        else:
            begins, following = local.hour_start(start), local.next_hour(start)
        following = min(following, end)
        yield begins, following - start
        start = following


def _sum(row: Row[*tuple[Any, ...]], start: int, gpu_seconds: int) -> CapacitySum:
    return CapacitySum(
        start,
        ClusterName(row.cluster),
        Supply(PoolName(row.pool), SliceName(row.slice) if row.slice else None),
        row.total,
        row.drained,
        row.down,
        row.fragmented,
        gpu_seconds,
    )


def _start(start: date | datetime, local: LocalTime) -> int:
    return int(start.timestamp()) if isinstance(start, datetime) else local.day_start(start)


def _day_after(end: int, local: LocalTime) -> date:
    """Return the first day that begins at `end` or later."""
    day = local.day_of(end)
    return day if local.day_start(day) >= end else day + timedelta(days=1)
