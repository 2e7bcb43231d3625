"""Read and write capacity: what pools had over time, as spans and as totals by hour and day."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import TextClause, text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.records.costs import HeldAndThere, LocalTime
from fairway.ledger.schema.tables import NONE
from fairway.ledger.sql_values import AnyRow, arrays, moment, seconds, supply
from fairway.ledger.usage.metering import Hours
from fairway.model.charge import CapacitySum, Span
from fairway.model.names import ClusterName, PoolName
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.model.usage import CapacitySample
from fairway.policy.capacity import CapacityUpdate, NodeDevices, NodeGroup, StoredCapacity

SECONDS: Final = 60.0

# Most nodes are alike: those that differ in nothing but their name are counted.
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

_CURRENT = text("SELECT * FROM capacity_now WHERE cluster = :cluster ORDER BY pool, slice")

_VECTOR = "total, drained, down, fragmented, gpus"

_ARRAYS = """
    unnest(
        CAST(:pools AS text[]), CAST(:slices AS text[]), CAST(:begins AS timestamptz[]),
        CAST(:ends AS timestamptz[]), CAST(:totals AS int[]), CAST(:drained AS int[]), CAST(:down AS int[]),
        CAST(:fragmented AS int[]), CAST(:gpus AS int[])
    ) AS sample (pool, slice, began, ended, total, drained, down, fragmented, gpus)
"""

_DEVICE_SECONDS = ", ".join(
    f"CAST(sum(CAST({state} AS bigint) * seconds) AS bigint)"
    for state in ("total", "drained", "down", "fragmented", "gpus")
)

_KEYS = "cluster, pool, slice"

_SUMMED = ("total", "drained", "down", "fragmented", "gpu_seconds")


def _add_to(table: str, key: str) -> str:
    """Return SQL that adds the pieces of spans to the totals by hour or day."""
    sets = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in _SUMMED)
    return f"""
        INSERT INTO {table} ({key}, {_KEYS}, {", ".join(_SUMMED)})
        SELECT {key}, :cluster, pool, slice, {_DEVICE_SECONDS} FROM pieces GROUP BY {key}, pool, slice
        ORDER BY {key}, pool, slice
        ON CONFLICT ({key}, {_KEYS}) DO UPDATE SET {sets}
    """  # noqa: S608


_CLOSE = text(f"""
    WITH sample AS (SELECT * FROM {_ARRAYS}), spans AS (
        INSERT INTO capacity ({_KEYS}, started_at, ended_at, {_VECTOR})
        SELECT :cluster, pool, slice, began, ended, {_VECTOR} FROM sample
    ), pieces AS MATERIALIZED (
        SELECT sample.*, hour, day,
            CAST(date_part('epoch', least(ended, following) - greatest(began, hour)) AS integer) AS seconds
        FROM sample JOIN unnest(
            CAST(:hours AS timestamptz[]), CAST(:followings AS timestamptz[]), CAST(:days AS date[])
        ) AS hours (hour, following, day) ON hour < ended AND following > began
    ), by_hour AS ({_add_to("capacity_hour", "hour")})
    {_add_to("capacity_day", "day")}
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

# Only of supplies whose capacity was known all the hour. A span is as long as the meter was away, at most a
# month.
_HELD_AND_THERE = text("""
    SELECT used.pool, used.slice, used.held, known.there
    FROM (
        SELECT job_class.pool, job_class.slice, CAST(sum(device_seconds) AS bigint) AS held
        FROM usage_hour JOIN job_class ON job_class.id = usage_hour.class
        WHERE usage_hour.hour = :start AND job_class.cluster = :cluster AND job_class.pool <> ''
        GROUP BY job_class.pool, job_class.slice
    ) AS used
    CROSS JOIN LATERAL (
        SELECT CAST(sum(seconds) AS bigint) AS seconds, CAST(sum(seconds * total) AS bigint) AS there
        FROM (
            SELECT date_part('epoch', least(ended_at, :end) - greatest(started_at, :start)) AS seconds, total
            FROM capacity
            WHERE cluster = :cluster AND capacity.pool = used.pool AND capacity.slice = used.slice
                AND started_at > CAST(:start AS timestamptz) - interval '32 days'
                AND started_at < :end AND ended_at > :start
        ) AS part
    ) AS known
    WHERE known.seconds = date_part('epoch', CAST(:end AS timestamptz) - :start)
    ORDER BY used.pool, used.slice
""")

_GPUS = text("SELECT pool, sum(gpus) AS gpus FROM capacity_now GROUP BY pool")

_OF_CLUSTERS: Final = "(CAST(:clusters AS text[]) IS NULL OR cluster = ANY(CAST(:clusters AS text[])))"


def _sums_by(unit: str) -> TextClause:
    return text(f"""
        SELECT {unit} AS start, cluster, pool, slice, total, drained, down, fragmented, gpu_seconds
        FROM capacity_{unit} WHERE {unit} >= :first AND {unit} < :end AND {_OF_CLUSTERS}
    """)  # noqa: S608


_HOURS = _sums_by("hour")
_DAYS = _sums_by("day")

_CURRENT_SUMS = text(f"""
    SELECT metered_to, cluster, pool, slice, total, drained, down, fragmented, gpus
    FROM capacity_now WHERE {_OF_CLUSTERS}
""")  # noqa: S608

_COUNTS = attrgetter("total", "drained", "down", "fragmented", "gpus")

_Key = tuple[int, str, str, str]


class CapacityStore(LedgerStore):
    """Reads the capacity of pools: now, and over time."""

    async def gpus(self) -> dict[PoolName, int]:
        """Return the GPUs of each pool as last metered, those that are cut into slices included."""
        return {PoolName(row.pool): int(row.gpus) for row in await self._fetch(_GPUS)}

    async def nodes(self, cluster: str) -> tuple[NodeGroup, ...]:
        """Return the nodes of a cluster on which pools have devices, counted by what they have in common."""
        return tuple(
            NodeGroup(
                Health(row.health),
                tuple(NodeDevices(supply(pool, slice_), *counts) for pool, slice_, *counts in row.devices),
                row.nodes,
            )
            for row in await self._fetch(_NODES, {"cluster": cluster})
        )

    async def waiting(self, cluster: str, codes: Collection[str]) -> Mapping[Supply, int]:
        """Return, by supply, the smallest request per node of the jobs that wait for one of these reasons."""
        rows = await self._fetch(_WAITING, {"cluster": cluster, "codes": sorted(codes)})
        return {supply(row.pool, row.slice): row.gpus for row in rows}

    async def current(self, cluster: str) -> tuple[StoredCapacity, ...]:
        """Return the last known capacity of a cluster's pools, and up to when it is written."""
        return tuple(
            StoredCapacity(
                CapacitySample(
                    supply(row.pool, row.slice), row.total, row.drained, row.down, row.fragmented, row.gpus
                ),
                seconds(row.metered_to),
            )
            for row in await self._fetch(_CURRENT, {"cluster": cluster})
        )

    async def held_and_there(self, cluster: str, hour: Span) -> tuple[HeldAndThere, ...]:
        """Return what was held and what there was in a metered hour, by supply.

        Supplies whose capacity is not known for all of the hour are left out.
        """
        values = {"cluster": cluster, "start": moment(hour.start), "end": moment(hour.end)}
        return tuple(
            HeldAndThere(supply(row.pool, row.slice), row.held, row.there)
            for row in await self._fetch(_HELD_AND_THERE, values)
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
        first, end = (
            (local.day_of(window.start), _day_after(window.end, local))
            if by_day
            else (moment(window.start), moment(window.end))
        )
        values = {"clusters": None if clusters is None else sorted(clusters), "first": first, "end": end}
        found: dict[_Key, CapacitySum] = {}
        async with self._connections.transaction(seconds=SECONDS) as connection:
            # One snapshot for both: the current capacity becomes a sum in a single transaction.
            await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
            for row in await connection.execute(_DAYS if by_day else _HOURS, values):
                start = local.day_start(row.start) if by_day else seconds(row.start)
                found[start, row.cluster, row.pool, row.slice] = _sum(row, start, row.gpu_seconds)
            current = list(await connection.execute(_CURRENT_SUMS, values)) if live_until is not None else []
        for row in current:
            _add_live(found, row, window, by_day, live_until or 0, local)
        return tuple(found[key] for key in sorted(found))


class CapacityWriter(FencedWriter):
    """Writes the capacity of the lease's cluster."""

    async def write(self, update: CapacityUpdate, hours: Hours) -> None:
        """Add the capacity of closed periods, which `hours` cover, and replace the current one."""
        cluster = {"cluster": self._lease.cluster}
        if update.closed:
            spans = [(closed.sample, closed.start, closed.end) for closed in update.closed]
            starts = [moment(start) for start in hours.starts]
            more = {"hours": starts[:-1], "followings": starts[1:], "days": list(hours.days)}
            await self._connection.execute(_CLOSE, _arrays(spans) | more | cluster)
        if update.now:
            now = [(one.sample, one.metered_to, one.metered_to) for one in update.now]
            await self._connection.execute(_NOW, _arrays(now) | cluster)
        if update.gone:
            gone = arrays([(s.pool, s.slice or NONE) for s in update.gone], "pools", "slices")
            await self._connection.execute(_GONE, gone | cluster)


def _arrays(spans: Sequence[tuple[CapacitySample, int, int]]) -> dict[str, object]:
    rows = [
        (s.supply.pool, s.supply.slice or NONE, moment(start), moment(end), *_COUNTS(s))
        for s, start, end in spans
    ]
    rows.sort(key=lambda row: row[:2])
    counts = ("totals", "drained", "down", "fragmented", "gpus")
    return arrays(rows, "pools", "slices", "begins", "ends", *counts)


def _add_live(
    found: dict[_Key, CapacitySum],
    row: AnyRow,
    window: Span,
    by_day: bool,
    until: int,
    local: LocalTime,
) -> None:
    since = max(seconds(row.metered_to), window.start)
    for start, length in _units(since, min(until, window.end), by_day, local):
        key = (start, row.cluster, row.pool, row.slice)
        more = _sum(row, start, row.gpus)
        sums: dict[str, Any] = {
            name: getattr(found.get(key), name, 0) + getattr(more, name) * length for name in _SUMMED
        }
        found[key] = replace(more, **sums)


def _units(start: int, end: int, by_day: bool, local: LocalTime) -> Iterator[tuple[int, int]]:
    """Yield the days or hours of a period: when each begins, and how many seconds of it are in the period."""
    while start < end:
        if by_day:
            day = local.day_of(start)
            begins, following = local.day_start(day), local.day_start(day + timedelta(days=1))
        else:
            begins, following = local.hour_start(start), local.next_hour(start)
        following = min(following, end)
        yield begins, following - start
        start = following


def _sum(row: AnyRow, start: int, gpu_seconds: int) -> CapacitySum:
    return CapacitySum(
        start,
        ClusterName(row.cluster),
        supply(row.pool, row.slice),
        row.total,
        row.drained,
        row.down,
        row.fragmented,
        gpu_seconds,
    )


def _day_after(end: int, local: LocalTime) -> date:
    """Return the first day that begins at `end` or later."""
    day = local.day_of(end)
    return day if local.day_start(day) >= end else day + timedelta(days=1)
