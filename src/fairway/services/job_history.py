"""Export what became of jobs as a trace, which `fairway simulate` replays: CSV, in pieces."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Iterable
from dataclasses import fields
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

from fairway.cost.csv_cells import escape_row
from fairway.ledger import Ledger
from fairway.ledger.jobs.history import MAX_IDS, PastJob
from fairway.model.fleet import Capacity, Fleet
from fairway.model.job import JobState
from fairway.model.names import PoolName
from fairway.model.trace import TraceJob
from fairway.services.errors import ErrorKind, RequestError

_COLUMNS: Final = tuple(f.name for f in fields(TraceJob) if f.name not in ("name", "together"))
"""Without names of jobs: a replay does not need them, and a trace may be given to others."""
_NEVER: Final = frozenset({JobState.HELD, JobState.REFUSED})
"""Jobs that did not wait for GPUs, unless they had started before."""
_VALUES: Final = attrgetter(*_COLUMNS)


async def export_jobs(ledger: Ledger, fleet: Fleet, now: datetime, days: int) -> AsyncIterator[str]:
    """Return the jobs of the last days, as the columns of a trace, in pieces.

    Raises RequestError before the first piece if they are too many.
    """
    begin = now - timedelta(days=days)
    return _pieces(_past_jobs(ledger, fleet, await _ids(ledger, begin, days), begin, now))


async def read_past_jobs(ledger: Ledger, fleet: Fleet, now: datetime, days: int) -> list[TraceJob]:
    """Return the jobs of the last days, by their submission. Raises RequestError if they are too many."""
    begin = now - timedelta(days=days)
    ids = await _ids(ledger, begin, days)
    found = [job async for page in _past_jobs(ledger, fleet, ids, begin, now) for job in page]
    return sorted(found, key=lambda job: job.at)


async def _ids(ledger: Ledger, begin: datetime, days: int) -> tuple[int, int]:
    low, high = await ledger.job_history.id_range(begin)
    if high - low > MAX_IDS:
        raise RequestError(
            ErrorKind.INVALID,
            "HistoryTooLong",
            f"the last {days} days and the two weeks before have {high - low:,} jobs, more than {MAX_IDS:,}",
            "choose fewer days:  --days 7",
        )
    return low, high


async def _past_jobs(
    ledger: Ledger, fleet: Fleet, ids: tuple[int, int], begin: datetime, now: datetime
) -> AsyncIterator[list[TraceJob]]:
    """Yield the jobs of a range of ids as a replay takes them, page by page."""
    spot = frozenset(pool.name for pool in fleet.pools if pool.capacity is Capacity.SPOT)
    async for page in ledger.job_history.pages(ids, begin, now):
        yield [
            trace_job(job, now, spot)
            for job in page
            if job.first_start is not None or job.state not in _NEVER
        ]


async def _pieces(pages: AsyncIterator[list[TraceJob]]) -> AsyncIterator[str]:
    yield _text([_COLUMNS])
    async for page in pages:
        if page:
            yield _text([escape_row(_cells(job)) for job in page])


def trace_job(job: PastJob, now: datetime, spot: frozenset[PoolName]) -> TraceJob:
    """Return a past job as a replay takes it.

    A running job has run for as long as it will, as far as is known. A job that waits is one whose user waits
    until now. What was on spot nodes tolerated that.
    """
    started = job.first_start
    last_end = job.last_end or (now if job.state is JobState.RUNNING else job.ended_at or now)
    ran = 0.0 if job.last_start is None else max(0.0, (last_end - job.last_start).total_seconds())
    waited = None if started is not None else (job.ended_at or now) - job.submitted_at
    return TraceJob(
        at=job.submitted_at.timestamp(),
        seconds=ran,
        gpus=max(1, job.devices // max(1, job.nodes)),
        nodes=max(1, job.nodes),
        user=job.user,
        team=job.team,
        pool=job.pool,
        slice=job.slice,
        limit_seconds=job.time_seconds,
        priority=job.priority,
        failed=job.state is JobState.FAILED,
        started=None if started is None else started.timestamp(),
        preemptions=job.preemptions,
        tolerates_loss=job.pool in spot,
        cancelled_after=None if waited is None else max(0.0, waited.total_seconds()),
    )


def _cells(job: TraceJob) -> list[str]:
    return ["" if value is None else str(value) for value in _VALUES(job)]


def _text(rows: Iterable[Iterable[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
