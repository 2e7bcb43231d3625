"""Read and write when waiting jobs are expected to start, and how earlier forecasts came out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.records.snapshots import JobForecast
from fairway.ledger.sql_values import AnyRow, json_rows, moment
from fairway.model.job import JobId
from fairway.simulate.calibration import SAMPLES, PastForecast
from fairway.simulate.starts import StartForecast

MAX_OPEN_CHECKS: Final = 1000
"""Checks of a cluster that have not come out; while there are more, no more are begun."""
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

# What was changed or on hold did not start as the job that was forecast.
_DROP_CHANGED = text("""
    DELETE FROM forecast_check AS of WHERE cluster = :cluster AND started_at IS NULL AND EXISTS (
        SELECT FROM job_event
        WHERE job_event.job = of.job AND kind IN ('change-requested', 'held') AND at > of.computed_at
    )
""")

_RESOLVE = text("""
    UPDATE forecast_check AS of SET started_at = begun.at
    FROM (
        SELECT open.job, open.computed_at, min(attempt.started_at) AS at
        FROM forecast_check AS open
        JOIN attempt ON attempt.job = open.job AND attempt.started_at >= open.computed_at
        WHERE open.cluster = :cluster AND open.started_at IS NULL
        GROUP BY open.job, open.computed_at
    ) AS begun
    WHERE of.cluster = :cluster AND of.job = begun.job AND of.computed_at = begun.computed_at
""")

_DROP_GONE = text("""
    DELETE FROM forecast_check AS of WHERE cluster = :cluster AND started_at IS NULL AND NOT EXISTS (
        SELECT FROM job WHERE job.id = of.job AND job.cluster = of.cluster AND job.state = 'waiting'
    )
""")

_DROP_OLD = text(f"""
    DELETE FROM forecast_check WHERE cluster = :cluster AND latest <= :at AND computed_at < (
        SELECT computed_at FROM forecast_check WHERE cluster = :cluster AND latest <= :at
        ORDER BY computed_at DESC OFFSET {2 * SAMPLES} LIMIT 1
    )
""")  # noqa: S608

_CHECK = text(f"""
    INSERT INTO forecast_check (cluster, computed_at, job, earliest, latest)
    SELECT :cluster, :at, job, earliest, latest
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS reported (
        job bigint, earliest timestamptz, latest timestamptz
    )
    WHERE (
        SELECT count(*) FROM forecast_check
        WHERE cluster = :cluster AND (started_at IS NULL OR latest > :at)
    ) < {MAX_OPEN_CHECKS}
    ON CONFLICT DO NOTHING
""")  # noqa: S608

# Only those whose latest start has passed: of younger ones, only early starts would be known.
_PAST = text(f"""
    SELECT computed_at, earliest, latest, COALESCE(started_at, now()) AS started_at
    FROM forecast_check WHERE cluster = :cluster AND latest <= now()
    ORDER BY computed_at DESC LIMIT {SAMPLES}
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

    async def check(self, forecasts: Sequence[StartForecast], at: datetime) -> None:
        """Note the starts that earlier forecasts waited for, and begin to wait for those of these, of `at`.

        O(checks of the cluster), of which there are at most some thousands.
        """
        values = {"cluster": self._lease.cluster, "at": at}
        for statement in (_DROP_CHANGED, _RESOLVE, _DROP_GONE, _DROP_OLD):
            await self._connection.execute(statement, values)
        rows = [
            {
                "job": f.job,
                "earliest": moment(f.earliest).isoformat(),
                "latest": moment(f.latest).isoformat(),
            }
            for f in forecasts
            if f.earliest is not None and f.latest is not None
        ]
        if rows:
            await self._connection.execute(_CHECK, values | {"rows": json_rows(rows)})


class JobForecastStore(LedgerStore):
    """Reads forecast starts."""

    async def of(self, jobs: Collection[JobId]) -> dict[JobId, JobForecast]:
        """Return the forecasts of those of the jobs that have one."""
        if not jobs:
            return {}
        return {JobId(r.job): _forecast(r) for r in await self._fetch(_READ, {"jobs": list(jobs)})}

    async def past(self, cluster: str) -> tuple[PastForecast, ...]:
        """Return the newest forecasts of a cluster that came out, as they were before calibration."""
        return tuple(
            PastForecast(*(when.timestamp() for when in row))
            for row in await self._fetch(_PAST, {"cluster": cluster})
        )


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
