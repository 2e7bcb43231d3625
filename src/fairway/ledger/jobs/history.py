"""Read what became of all jobs of a time, as a trace for replays.

Ids grow with time, so a time is a range of ids: only rows of these days are read, page by page, and those of
the days before it whose jobs may have run or waited when it began.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.sql_values import AnyRow
from fairway.model.job import Ending, JobState
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName

LOOK_BACK: Final = timedelta(days=14)
"""How long before its begin a job may have been submitted that still ran or waited then."""
MAX_IDS: Final = 5_000_000
"""The most ids of one answer."""
_PAGE: Final = 20_000
"""Ids of one statement."""

_RANGE = text("""
    SELECT COALESCE((SELECT job FROM job_clock WHERE minute < :back ORDER BY minute DESC LIMIT 1), 0) AS low,
        COALESCE((SELECT max(id) + 1 FROM job), 0) AS high
""")
_ROWS = text("""
    SELECT job.submitted_at, job.ended_at, job.state, job.nodes, job.devices, job.time_seconds,
        job_class.user_name, job_class.team, job_class.pool, job_class.slice, job_class.priority,
        tries.first_start, tries.last_start, tries.last_end, COALESCE(tries.preemptions, 0) AS preemptions
    FROM job JOIN job_class ON job_class.id = job.class
    LEFT JOIN LATERAL (
        SELECT min(started_at) AS first_start, max(started_at) AS last_start,
            (array_agg(ended_at ORDER BY number DESC))[1] AS last_end,
            count(*) FILTER (WHERE ending = :preempted) AS preemptions
        FROM attempt WHERE attempt.job = job.id
    ) AS tries ON true
    WHERE job.id >= :low AND job.id < :high AND job.submitted_at < :until AND job.devices > 0
        AND (job.submitted_at >= :begin OR job.ended_at IS NULL OR job.ended_at > :begin)
        AND NOT job_class.service AND job.replicas IS NULL
    ORDER BY job.id
""")


@dataclass(frozen=True, slots=True)
class PastJob:
    """What became of a job; times are aware UTC."""

    submitted_at: datetime
    ended_at: datetime | None
    state: JobState
    nodes: int
    devices: int
    """On all nodes."""
    time_seconds: int | None
    user: UserName
    team: TeamName
    pool: PoolName
    slice: SliceName | None
    priority: PriorityName | None
    first_start: datetime | None
    last_start: datetime | None
    """Of the attempt that counts: what earlier ones had done was lost."""
    last_end: datetime | None
    preemptions: int


class JobHistoryStore(LedgerStore):
    """Reads ended and open jobs of a time. Services and jobs with replicas run on and are left out."""

    async def id_range(self, begin: datetime) -> tuple[int, int]:
        """Return the ids of the jobs from LOOK_BACK before a time on: the first, and one after the last."""
        row = await self._fetch_first(_RANGE, {"back": begin - LOOK_BACK})
        return (0, 0) if row is None else (row.low, row.high)

    async def pages(
        self, ids: tuple[int, int], begin: datetime, until: datetime
    ) -> AsyncIterator[Sequence[PastJob]]:
        """Yield the jobs submitted in a time, and those that ran or waited as it began, by id."""
        low, high = ids
        values = {"begin": begin, "until": until, "preempted": Ending.PREEMPTED.value}
        while low < high:
            following = min(low + _PAGE, high)
            rows = await self._fetch(_ROWS, {**values, "low": low, "high": following})
            yield [_past_job(row) for row in rows]
            low = following


def _past_job(row: AnyRow) -> PastJob:
    return PastJob(
        row.submitted_at,
        row.ended_at,
        JobState(row.state),
        row.nodes,
        row.devices,
        row.time_seconds,
        UserName(row.user_name),
        TeamName(row.team),
        PoolName(row.pool),
        SliceName(row.slice) if row.slice else None,
        PriorityName(row.priority) if row.priority else None,
        row.first_start,
        row.last_start,
        row.last_end,
        row.preemptions,
    )
