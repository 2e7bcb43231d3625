"""Read and write when waiting jobs are expected to start."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.records.snapshots import JobForecast
from fairway.ledger.sql_values import AnyRow, json_rows
from fairway.model.job import JobId

_TYPES: Final = """
    job bigint, earliest timestamptz, expected timestamptz, latest timestamptz, started real,
    futures integer, samples integer, source text, refused text
"""

_REPLACE = text(f"""
    WITH reported AS (
        SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS reported ({_TYPES})
    ), gone AS (
        DELETE FROM job_forecast
        WHERE cluster = :cluster AND NOT EXISTS (SELECT FROM reported WHERE reported.job = job_forecast.job)
    )
    INSERT INTO job_forecast (
        job, cluster, computed_at, earliest, expected, latest, started, futures, samples, source, refused
    )
    SELECT job, :cluster, :at, earliest, expected, latest, started, futures, samples, source, refused
    FROM reported
    ON CONFLICT (job) DO UPDATE SET
        cluster = excluded.cluster, computed_at = excluded.computed_at, earliest = excluded.earliest,
        expected = excluded.expected, latest = excluded.latest, started = excluded.started,
        futures = excluded.futures, samples = excluded.samples, source = excluded.source,
        refused = excluded.refused
""")  # noqa: S608

_READ = text("SELECT * FROM job_forecast WHERE job = ANY(CAST(:jobs AS bigint[]))")


class JobForecastWriter(FencedWriter):
    """Writes the forecast starts of the lease's cluster."""

    async def write(self, forecasts: Sequence[JobForecast], at: datetime) -> None:
        """Replace all forecasts of the cluster with these, of the moment `at`."""
        rows = [
            {
                "job": f.job,
                "earliest": None if f.earliest is None else f.earliest.isoformat(),
                "expected": None if f.expected is None else f.expected.isoformat(),
                "latest": None if f.latest is None else f.latest.isoformat(),
                "started": f.started,
                "futures": f.futures,
                "samples": f.samples,
                "source": f.source,
                "refused": f.refused,
            }
            for f in forecasts
        ]
        values = {"rows": json_rows(rows), "cluster": self._lease.cluster, "at": at}
        await self._connection.execute(_REPLACE, values)


class JobForecastStore(LedgerStore):
    """Reads forecast starts."""

    async def of(self, jobs: Collection[JobId]) -> dict[JobId, JobForecast]:
        """Return the forecasts of those of the jobs that have one."""
        if not jobs:
            return {}
        return {JobId(r.job): _forecast(r) for r in await self._fetch(_READ, {"jobs": list(jobs)})}


def _forecast(row: AnyRow) -> JobForecast:
    return JobForecast(
        JobId(row.job),
        row.earliest,
        row.expected,
        row.latest,
        row.started,
        row.futures,
        row.samples,
        row.source,
        row.refused,
        row.computed_at,
    )
