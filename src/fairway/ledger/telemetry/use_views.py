"""Read what GPUs did, for pages and lists.

Every read is bounded: by ids, by a limit, or by hours and the classes of jobs that ran in them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.records.gpu_use import CoursePoint, DeviceUse, JobUse, LatestUse
from fairway.ledger.schema.telemetry import ADDED, LATEST, PEAK
from fairway.ledger.sql_values import AnyRow
from fairway.model.gpu_use import WINDOW_SECONDS, Device, GpuUse, MetricCode
from fairway.model.job import JobId

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


class UseViewStore(LedgerStore):
    """Reads GPU use by job, over time, by node and by user."""

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
        if seconds := getattr(row, f"{code.value}_seconds"):
            use.seconds[code] = seconds
            use.integrals[code] = getattr(row, code.value)
    return use


def _latest(row: AnyRow, gpus: int) -> LatestUse | None:
    if row.last_at is None:
        return None
    values = {MetricCode(name): getattr(row, f"last_{name}") for name in LATEST}
    return LatestUse(row.last_at, {code: value for code, value in values.items() if value is not None}, gpus)
