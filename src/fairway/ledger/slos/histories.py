"""Read what objectives judge jobs by: when they were submitted, waited, ran and ended.

A verdict is certain within the time of the promise after a job's submission, pauses apart. So the jobs that
were submitted in a span, or that wait since their last pause as if they had been, are all that can have one
in it. Both are found by their indexes; jobs of other times are not read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.sql_values import AnyRow, moment
from fairway.model.job import JobState
from fairway.policy.slo import JobHistory, Pause, Run
from fairway.policy.slo_scope import JobTraits

MAX_HISTORIES: Final = 20_000
"""Jobs that are read at once; a caller with more of them reads a shorter span."""

# The ids that were certainly given in a span: `job_clock` knows minutes, and a transaction lasts seconds.
_SUBMITTED: Final = """
    SELECT id FROM job
    WHERE id >= COALESCE((
            SELECT job FROM job_clock WHERE minute < CAST(:first AS timestamptz) - interval '2 minutes'
            ORDER BY minute DESC LIMIT 1
        ), 0) AND id < COALESCE((
            SELECT job FROM job_clock WHERE minute > CAST(:last AS timestamptz) + interval '2 minutes'
            ORDER BY minute LIMIT 1
        ), 9223372036854775807)
        AND NOT late AND submitted_at > :first AND submitted_at <= :last
    UNION ALL SELECT id FROM job WHERE late AND submitted_at > :first AND submitted_at <= :last
    UNION SELECT job FROM job_pause WHERE waits_from > :first AND waits_from <= :last
"""
_JOB: Final = """
    job.id, job_class.team, job_class.pool, job_class.slice, job_class.priority, job.devices, job.state,
    job.time_seconds, EXTRACT(EPOCH FROM job.submitted_at)::float8 AS submitted,
    EXTRACT(EPOCH FROM job.ended_at)::float8 AS ended
"""
# Of jobs that have not started, those that can be late by now; of the others, those that started since.
_STARTS = text(f"""
    SELECT {_JOB}, EXTRACT(EPOCH FROM first.started_at)::float8 AS started
    FROM ({_SUBMITTED}) AS candidate JOIN job ON job.id = candidate.id
    JOIN job_class ON job_class.id = job.class
    LEFT JOIN LATERAL (
        SELECT started_at FROM attempt WHERE attempt.job = job.id ORDER BY number LIMIT 1
    ) AS first ON true
    WHERE job.cluster = ANY(CAST(:clusters AS text[])) AND job.devices > 0
        AND (job.started_at > :after
            OR (job.started_at IS NULL AND (job.attempts > 0 OR job.submitted_at <= :due)))
        AND (job.ended_at IS NULL OR job.ended_at > :after)
    LIMIT :limit
""")  # noqa: S608 - only text of our own
# A service has no end, and so no demand.
_RUNS = text(f"""
    SELECT {_JOB}, runs.runs
    FROM ({_SUBMITTED}) AS candidate JOIN job ON job.id = candidate.id
    JOIN job_class ON job_class.id = job.class
    LEFT JOIN LATERAL (
        SELECT json_agg(json_build_array(
            EXTRACT(EPOCH FROM started_at)::float8, EXTRACT(EPOCH FROM ended_at)::float8, devices
        ) ORDER BY number) AS runs FROM attempt WHERE attempt.job = job.id
    ) AS runs ON true
    WHERE job.cluster = ANY(CAST(:clusters AS text[])) AND job.devices > 0 AND NOT job_class.service
    LIMIT :limit
""")  # noqa: S608
_PAUSES = text("""
    SELECT job, EXTRACT(EPOCH FROM started_at)::float8 AS start, EXTRACT(EPOCH FROM ended_at)::float8 AS end
    FROM job_pause WHERE job = ANY(CAST(:ids AS bigint[])) ORDER BY job, started_at
""")


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """The history of a job, with what decides which objectives count it."""

    traits: JobTraits
    slice: str
    """Empty: whole GPUs."""
    history: JobHistory


@dataclass(frozen=True, slots=True)
class CountedSpan:
    """A span of time whose verdicts are counted: after `after`, up to `until`. Seconds since 1970."""

    after: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.after


class HistoryStore(LedgerStore):
    """Reads histories of jobs."""

    async def starting(
        self, span: CountedSpan, bound: float, clusters: Collection[str], limit: int
    ) -> list[StoredHistory]:
        """Return at most `limit` jobs that started in a span, or were late then, with a bound on waiting."""
        values = {
            "first": moment(span.after - bound),
            "last": moment(span.until),
            "after": moment(span.after),
            "due": moment(span.until - bound),
        }
        rows = await self._fetch(_STARTS, values | {"clusters": sorted(clusters), "limit": limit})
        found = [
            _stored(row, () if row.started is None else (Run(row.started, None, row.devices),))
            for row in rows
        ]
        return await self._with_pauses(rows, found)

    async def delivering(
        self, span: CountedSpan, bound: float, clusters: Collection[str], limit: int
    ) -> list[StoredHistory]:
        """Return at most `limit` jobs whose work falls due in a span, `bound` seconds after submission."""
        values = {"first": moment(span.after - bound), "last": moment(span.until - bound)}
        rows = await self._fetch(_RUNS, values | {"clusters": sorted(clusters), "limit": limit})
        found = [_stored(row, tuple(Run(*run) for run in row.runs or ())) for row in rows]
        return await self._with_pauses(rows, found)

    async def _with_pauses(
        self, rows: Sequence[AnyRow], found: Sequence[StoredHistory]
    ) -> list[StoredHistory]:
        if not rows:
            return []
        pauses: dict[int, list[Pause]] = {}
        for row in await self._fetch(_PAUSES, {"ids": [row.id for row in rows]}):
            pauses.setdefault(row.job, []).append(Pause(row.start, row.end))
        return [
            replace(one, history=replace(one.history, pauses=tuple(pauses[row.id])))
            if row.id in pauses
            else one
            for row, one in zip(rows, found, strict=True)
        ]


def _stored(row: AnyRow, runs: tuple[Run, ...]) -> StoredHistory:
    values: dict[str, Any] = {"refused": row.state == JobState.REFUSED, "limit_seconds": row.time_seconds}
    return StoredHistory(
        JobTraits(row.team, row.pool, row.priority, row.devices),
        row.slice,
        JobHistory(row.submitted, row.devices, runs, row.ended, **values),
    )
