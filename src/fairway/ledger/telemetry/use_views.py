"""Read what GPUs did, for pages and lists.

Every read is bounded: by ids, by a limit, or by hours and the classes of jobs that ran in them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.records.gpu_use import (
    CoursePoint,
    DeviceUse,
    JobUse,
    LatestUse,
    NodeHour,
    NodeHours,
    SupplyNow,
)
from fairway.ledger.schema.telemetry import ADDED, LATEST, PEAK
from fairway.ledger.sql_values import AnyRow, moment, seconds, supply
from fairway.model.charge import Span
from fairway.model.gpu_use import WINDOW_SECONDS, Device, GpuUse, MetricCode
from fairway.model.job import JobId
from fairway.model.names import ClusterName, NodeName

MAX_DEVICES: Final = 10_000
"""GPUs of one job that are read."""
MAX_HOURS: Final = 24 * 31
"""Hours of a job's course: the newest."""
_HOUR: Final = 3600

_SUMS: Final = ", ".join(f"sum({name}) AS {name}" for name in ADDED)
_NEWEST: Final = ", ".join(
    f"avg(last_{name}) FILTER (WHERE last_at = newest) AS last_{name}" for name in LATEST
)

# What was held is counted as far as the cluster's metrics are read: of the time since nothing is known yet.
_JOBS = text(f"""
    WITH wanted AS (
        SELECT job.id, mark.read_to FROM job JOIN telemetry_mark AS mark ON mark.cluster = job.cluster
        WHERE job.id = ANY(CAST(:ids AS bigint[])) AND job.attempts > 0
    ), held AS (
        SELECT wanted.id, sum(attempt.devices * greatest(0, extract(epoch FROM
            least(coalesce(attempt.ended_at, read_to), read_to) - attempt.started_at))) AS held
        FROM wanted JOIN attempt ON attempt.job = wanted.id
        WHERE attempt.ended_at IS NOT NULL OR attempt.ending IS NULL
        GROUP BY wanted.id
    ), used AS (
        SELECT job, {_SUMS}, max({PEAK}) AS {PEAK}, max(last_at) AS last_at,
            count(*) FILTER (WHERE last_at = newest) AS gpus, {_NEWEST}
        FROM (
            SELECT *, max(last_at) OVER (PARTITION BY job) AS newest
            FROM gpu_use WHERE job = ANY(CAST(:ids AS bigint[]))
        ) AS each GROUP BY job
    )
    SELECT wanted.read_to, held.held, wanted.id, used.* FROM wanted
    JOIN held ON held.id = wanted.id LEFT JOIN used ON used.job = wanted.id
    WHERE held.held > 0
""")  # noqa: S608

_DEVICES = text(
    "SELECT * FROM gpu_use WHERE job = :job ORDER BY node, length(gpu), gpu, instance LIMIT :limit"
)

_HOURS = text("SELECT * FROM job_use WHERE job = :job ORDER BY hour DESC LIMIT :limit")

_WINDOWS = text("""
    SELECT started_at, measured, busy, gpus, idle_gpus FROM job_window WHERE job = :job
    ORDER BY started_at DESC LIMIT :limit
""")

_READ_TO = text(
    "SELECT max(read_to) AS at FROM telemetry_mark WHERE cluster = ANY(CAST(:clusters AS text[]))"
)

# The last window that was read of each cluster.
_NOW = text(f"""
    SELECT job_class.pool, job_class.slice, min(job_window.started_at) AS at,
        sum(job_window.measured) AS measured, sum(job_window.busy) AS busy,
        sum(job_window.idle_gpus) AS idle_gpus
    FROM telemetry_mark AS mark
    JOIN job_window ON job_window.cluster = mark.cluster
        AND job_window.started_at = mark.read_to - interval '{WINDOW_SECONDS} seconds'
    JOIN job ON job.id = job_window.job JOIN job_class ON job_class.id = job.class
    WHERE job_class.pool <> ''
    GROUP BY job_class.pool, job_class.slice ORDER BY job_class.pool, job_class.slice
""")  # noqa: S608

_NODES = text("""
    SELECT node, hour, measured, held_measured, held_busy FROM node_use
    WHERE cluster = :cluster AND hour >= :first AND hour < :end AND node = ANY(CAST(:nodes AS text[]))
    ORDER BY node, hour
""")

# Nodes that were held and did least: free ones are no waste of whoever holds something.
_IDLEST = text("""
    SELECT cluster, node FROM node_use
    WHERE cluster = ANY(CAST(:clusters AS text[])) AND hour >= :first AND hour < :end
    GROUP BY cluster, node HAVING sum(held_measured) > 0
    ORDER BY sum(held_measured - held_busy) DESC, cluster, node LIMIT :limit
""")


class UseViewStore(LedgerStore):
    """Reads GPU use by job, by supply and by node."""

    async def jobs(self, ids: Collection[JobId]) -> dict[JobId, JobUse]:
        """Return the use of those jobs that held devices on a cluster whose metrics are read."""
        if not ids:
            return {}
        rows = await self._fetch(_JOBS, {"ids": sorted(ids)})
        return {JobId(row.id): _job_use(row) for row in rows}

    async def devices(self, job: JobId, limit: int = MAX_DEVICES) -> list[DeviceUse]:
        """Return the GPUs that a job held, by node and index, also those of earlier attempts."""
        rows = await self._fetch(_DEVICES, {"job": job, "limit": limit})
        return [
            DeviceUse(Device(row.node, row.gpu, row.instance), _use(row), row.idle, _latest(row, 1))
            for row in rows
        ]

    async def hours(self, job: JobId) -> list[CoursePoint]:
        """Return the course of a job by hour, oldest first: the newest month of it."""
        rows = await self._fetch(_HOURS, {"job": job, "limit": MAX_HOURS})
        return [CoursePoint(row.hour, _HOUR, _use(row), row.idle) for row in reversed(rows)]

    async def windows(self, job: JobId) -> list[CoursePoint]:
        """Return the course of a job by window, oldest first: of the last day, and only how busy it was."""
        rows = await self._fetch(_WINDOWS, {"job": job, "limit": 86_400 // WINDOW_SECONDS})
        return [
            CoursePoint(
                row.started_at,
                WINDOW_SECONDS,
                GpuUse({MetricCode.ENGINE: row.busy}, {MetricCode.ENGINE: row.measured}),
                row.measured * row.idle_gpus / row.gpus if row.gpus else 0.0,
            )
            for row in reversed(rows)
        ]

    async def read_to(self, clusters: Collection[str]) -> int | None:
        """Return up to when metrics are read of one of these clusters. Returns None if of none."""
        row = await self._fetch_first(_READ_TO, {"clusters": sorted(clusters)})
        return None if row is None or row.at is None else seconds(row.at)

    async def now(self) -> list[SupplyNow]:
        """Return what held GPUs did in the last window that was read, by supply."""
        return [
            SupplyNow(
                supply(row.pool, row.slice),
                row.at,
                row.measured / WINDOW_SECONDS,
                row.busy / WINDOW_SECONDS,
                row.idle_gpus,
            )
            for row in await self._fetch(_NOW)
        ]

    async def nodes(self, cluster: str, nodes: Collection[str], span: Span) -> list[NodeHours]:
        """Return what the GPUs of nodes did by hour; nodes of which nothing was measured have no hours."""
        values = {"cluster": cluster, "nodes": sorted(nodes), **_between(span)}
        found: dict[str, dict[int, NodeHour]] = {node: {} for node in nodes}
        for row in await self._fetch(_NODES, values):
            hour = NodeHour(row.measured, row.held_measured, row.held_busy)
            found[row.node][seconds(row.hour)] = hour
        return [NodeHours(ClusterName(cluster), NodeName(node), hours) for node, hours in found.items()]

    async def idlest_nodes(self, clusters: Collection[str], span: Span, limit: int) -> list[tuple[str, str]]:
        """Return the nodes (cluster, name) whose held GPUs did nothing for longest, the worst first."""
        values = {"clusters": sorted(clusters), "limit": limit, **_between(span)}
        return [(row.cluster, row.node) for row in await self._fetch(_IDLEST, values)]


def _between(span: Span) -> dict[str, object]:
    return {"first": moment(span.start), "end": moment(span.end)}


def _job_use(row: AnyRow) -> JobUse:
    held = float(row.held)
    if row.job is None:
        return JobUse(JobId(row.id), row.read_to, held, GpuUse())
    use = _use(row)
    # Attempts have whole seconds: what was measured is at most that fraction more.
    return JobUse(JobId(row.id), row.read_to, max(held, use.measured), use, row.idle, _latest(row, row.gpus))


def _use(row: AnyRow) -> GpuUse:
    use = GpuUse(peak_memory_mib=getattr(row, PEAK))
    for code in MetricCode:
        if measured := getattr(row, f"{code.value}_seconds"):
            use.seconds[code] = measured
            use.integrals[code] = getattr(row, code.value)
    return use


def _latest(row: AnyRow, gpus: int) -> LatestUse | None:
    if row.last_at is None:
        return None
    values = {MetricCode(name): getattr(row, f"last_{name}") for name in LATEST}
    return LatestUse(row.last_at, {code: value for code, value in values.items() if value is not None}, gpus)
