"""Read and write how long jobs of a group ran, as histograms, and queue the runs that are not yet in them.

Whoever records the end of an attempt queues it in the same transaction. The one loop that learns removes it
from the queue in the transaction that writes the histograms: each run counts once. Runs that ended before
there was a queue are read once, in order of job ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.sql_values import AnyRow, arrays
from fairway.model.job import Ending
from fairway.model.names import TeamName, UserName
from fairway.simulate.run_times import FinishedRun, JobTraits, RunTimeKey

LEARNT_ENDINGS: Final = (Ending.DONE, Ending.FAILED, Ending.CANCELLED, Ending.TIMED_OUT)
"""How a run ends that tells how long such jobs run: not what others or broken nodes ended."""
HISTORY: Final = timedelta(days=90)
"""Jobs submitted before are not learnt from history."""
MAX_HISTORY_JOBS: Final = 1_000_000
"""The most jobs that are learnt from history: histograms forget far fewer."""
MAX_GROUPS: Final = 1_000_000
"""The most groups whose histograms are stored; those not used for longest are removed."""

_QUEUE = text("""
    INSERT INTO run_to_learn (job, attempt)
    SELECT * FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])) ON CONFLICT DO NOTHING
""")

# Looked up one by one (enforced by OFFSET 0): planner estimates of a queue that was just empty are worthless.
_RUN = """
    CROSS JOIN LATERAL (
        SELECT class, name, devices, time_seconds FROM job WHERE job.id = ended.job OFFSET 0
    ) AS job
    CROSS JOIN LATERAL (
        SELECT user_name, team FROM job_class WHERE id = job.class AND pool <> '' AND NOT service OFFSET 0
    ) AS owner
"""
_COLUMNS = """
    ended.job, ended.number AS attempt, user_name, team, name, devices, time_seconds,
    ended.ending = 'timed-out' AS timed_out, date_part('epoch', ended.ended_at - ended.started_at) AS seconds
"""

_QUEUED = text("""
    SELECT job, attempt FROM run_to_learn ORDER BY job, attempt LIMIT :limit
""")

_QUEUED_RUNS = text(f"""
    SELECT {_COLUMNS}
    FROM unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])) AS queued (job, attempt)
    CROSS JOIN LATERAL (
        SELECT job, number, started_at, ended_at, ending FROM attempt
        WHERE attempt.job = queued.job AND attempt.number = queued.attempt AND replica = ''
            AND ending = ANY(CAST(:endings AS text[])) AND ended_at >= started_at OFFSET 0
    ) AS ended {_RUN}
    ORDER BY ended.ended_at
""")  # noqa: S608

_HISTORY_MARK = text("SELECT next_job FROM run_time_mark")

_FIRST_OF_HISTORY = text("""
    SELECT greatest(
        COALESCE((
            SELECT job FROM job_clock WHERE minute <= now() - CAST(:history AS interval)
            ORDER BY minute DESC LIMIT 1
        ), 0),
        (SELECT max(id) FROM job) - :most, 0
    )
""")

# In one statement, so that what is queued and what has ended are of the same moment.
_HISTORY_RUNS = text(f"""
    WITH chosen AS MATERIALIZED (SELECT id FROM job WHERE id >= :first ORDER BY id LIMIT :limit)
    SELECT bounds.last, bounds.jobs, runs.*
    FROM (SELECT max(id) AS last, count(*) AS jobs FROM chosen) AS bounds LEFT JOIN (
        SELECT {_COLUMNS}
        FROM chosen CROSS JOIN LATERAL (
            SELECT job, number, started_at, ended_at, ending FROM attempt
            WHERE attempt.job = chosen.id AND replica = ''
                AND ending = ANY(CAST(:endings AS text[])) AND ended_at >= started_at OFFSET 0
        ) AS ended {_RUN}
        WHERE NOT EXISTS (
            SELECT FROM run_to_learn WHERE run_to_learn.job = ended.job AND attempt = ended.number
        )
    ) AS runs ON true
    ORDER BY runs.job, runs.attempt
""")  # noqa: S608

_HISTOGRAMS = text("""
    SELECT key, histogram FROM run_time_histogram WHERE key = ANY(CAST(:keys AS bigint[]))
""")

_WRITE = text("""
    INSERT INTO run_time_histogram AS stored (key, histogram, used_on)
    SELECT key, histogram, CURRENT_DATE
    FROM unnest(CAST(:keys AS bigint[]), CAST(:histograms AS bytea[])) AS learnt (key, histogram) ORDER BY key
    ON CONFLICT (key) DO UPDATE SET histogram = excluded.histogram, used_on = excluded.used_on
""")

_LEARNT = text("""
    DELETE FROM run_to_learn
    USING unnest(CAST(:jobs AS bigint[]), CAST(:attempts AS int[])) AS learnt (job, attempt)
    WHERE run_to_learn.job = learnt.job AND run_to_learn.attempt = learnt.attempt
""")

_SET_HISTORY_MARK = text("UPDATE run_time_mark SET next_job = :next")

_FORGET = text("""
    DELETE FROM run_time_histogram WHERE key IN (
        SELECT key FROM run_time_histogram ORDER BY used_on DESC, key OFFSET :most
    )
""")


@dataclass(frozen=True, slots=True)
class RunsToLearn:
    """Some runs that are not in the histograms yet."""

    runs: tuple[FinishedRun, ...]
    """In the order of their ends."""
    queued: tuple[tuple[int, int], ...] = ()
    """The entries of the queue that they came from, by job and attempt; of others nothing is learnt."""
    next_job: int | None = None
    """From history: where to read on; None: it has been read."""

    def __bool__(self) -> bool:
        return bool(self.runs or self.queued)


async def queue(connection: AsyncConnection, ended: Collection[tuple[int, int]]) -> None:
    """Queue attempts to be learnt, by job and number: they ended in this transaction."""
    if ended:
        await connection.execute(_QUEUE, arrays(sorted(ended), "jobs", "attempts"))


class RunTimeStore(LedgerStore):
    """Reads histograms of run times, and what is to be added to them."""

    async def queued(self, limit: int) -> RunsToLearn:
        """Return the first `limit` runs of the queue."""
        entries = tuple((row.job, row.attempt) for row in await self._fetch(_QUEUED, {"limit": limit}))
        if not entries:
            return RunsToLearn(())
        values = arrays(entries, "jobs", "attempts") | {"endings": list(LEARNT_ENDINGS)}
        return RunsToLearn(_runs(await self._fetch(_QUEUED_RUNS, values)), entries)

    async def history_mark(self) -> int | None:
        """Return the job from which on history is still to be read. Returns None if it has been read."""
        row = await self._fetch_first(_HISTORY_MARK)
        if row is None or row.next_job is None:
            return None
        if row.next_job > 0:
            return int(row.next_job)
        values = {"history": HISTORY, "most": MAX_HISTORY_JOBS}
        (first,) = await self._fetch(_FIRST_OF_HISTORY, values)
        return int(first[0])

    async def history(self, first: int, limit: int) -> RunsToLearn:
        """Return the runs of the first `limit` jobs from `first` on, without those that are queued."""
        values = {"first": first, "limit": limit, "endings": list(LEARNT_ENDINGS)}
        rows = await self._fetch(_HISTORY_RUNS, values)
        last = rows[0].last if rows[0].jobs == limit else None
        return RunsToLearn(
            _runs([row for row in rows if row.job is not None]), (), None if last is None else last + 1
        )

    async def histograms(self, keys: Collection[RunTimeKey]) -> dict[RunTimeKey, bytes]:
        """Return the stored histograms of these groups; those of which nothing is known are missing."""
        rows = await self._fetch(_HISTOGRAMS, {"keys": list(keys)})
        return {RunTimeKey(row.key): bytes(row.histogram) for row in rows}


class RunTimeWriter(FencedWriter):
    """Writes histograms of run times; under the lease of the one loop that learns."""

    async def write(self, histograms: Mapping[RunTimeKey, bytes], learnt: RunsToLearn) -> None:
        """Store histograms to which these runs were added, and remove the runs from what is to be learnt."""
        if histograms:
            values = arrays(list(histograms.items()), "keys", "histograms")
            await self._connection.execute(_WRITE, values)
        if learnt.queued:
            await self._connection.execute(_LEARNT, arrays(learnt.queued, "jobs", "attempts"))

    async def set_history_mark(self, next_job: int | None) -> None:
        """Store from which job on history is still to be read; None: it has been read."""
        await self._connection.execute(_SET_HISTORY_MARK, {"next": next_job})

    async def forget(self, most: int = MAX_GROUPS) -> int:
        """Remove the groups beyond `most` that were not used for longest. Returns how many; reads all."""
        return (await self._connection.execute(_FORGET, {"most": most})).rowcount


def _runs(rows: Sequence[AnyRow]) -> tuple[FinishedRun, ...]:
    return tuple(
        FinishedRun(
            JobTraits(UserName(row.user_name), TeamName(row.team), row.name, row.devices, row.time_seconds),
            float(row.seconds),
            row.timed_out,
        )
        for row in rows
    )
