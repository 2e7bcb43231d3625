"""Dependencies between jobs. A writer that ends a job settles its dependants in the same transaction.

Two writers that end tasks of one array at once each see the other's tasks as open. So the waiting rows are
locked first, and read by a separate statement: the second writer sees what the first one did. For the same
reason a new job locks the jobs it depends on until it is stored itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.schema.jobs import OPEN_JOBS_SQL
from fairway.model.job import After, JobId, JobState

_DONE: Final = f"'{JobState.DONE.value}'"
_CANCELLED: Final = f"'{JobState.CANCELLED.value}'"

_WAITED_FOR = text("""
    WITH targets AS (
        SELECT unnest(CAST(:ended AS bigint[])) AS id
        UNION SELECT array_first FROM job WHERE id = ANY(CAST(:ended AS bigint[])) AND array_first IS NOT NULL
    ), waits AS (
        SELECT job_after.after FROM job_after JOIN targets ON targets.id = job_after.after
        WHERE job_after.met IS NULL
        ORDER BY job_after.job, job_after.after
        FOR UPDATE OF job_after
    )
    SELECT DISTINCT after FROM waits
""")

# A cancelled job did not fail: jobs that clean up after failures do not apply to it.
_SETTLE = text(f"""
    WITH fate AS (
        SELECT waits.after, waits.whole_array, count(job.id) AS jobs,
            count(*) FILTER (WHERE job.state IN ({OPEN_JOBS_SQL})) AS open,
            count(*) FILTER (WHERE job.state = {_DONE}) AS done,
            count(*) FILTER (WHERE job.state NOT IN ({OPEN_JOBS_SQL}, {_DONE}, {_CANCELLED})) AS failed
        FROM (
            SELECT DISTINCT after, whole_array FROM job_after
            WHERE after = ANY(CAST(:targets AS bigint[])) AND met IS NULL
        ) AS waits LEFT JOIN LATERAL (
            SELECT id, state FROM job WHERE NOT waits.whole_array AND id = waits.after
            UNION ALL SELECT id, state FROM job WHERE waits.whole_array AND array_first = waits.after
        ) AS job ON true
        GROUP BY waits.after, waits.whole_array
    ), settled AS (
        SELECT after, whole_array, ending, CASE
            WHEN jobs = 0 THEN false
            WHEN ending = 'ok' AND done + open < jobs THEN false
            WHEN open > 0 THEN NULL
            WHEN ending = 'failed' THEN failed > 0
            ELSE true
        END AS met
        FROM fate CROSS JOIN (VALUES ('ok'), ('failed'), ('ended')) AS endings (ending)
    )
    UPDATE job_after SET met = settled.met FROM settled
    WHERE job_after.after = settled.after AND job_after.whole_array = settled.whole_array
        AND job_after.ending = settled.ending AND job_after.met IS NULL AND settled.met IS NOT NULL
""")  # noqa: S608

_LOCK_TARGETS = text("""
    SELECT id, array_first FROM job
    WHERE id = ANY(CAST(:targets AS bigint[])) OR array_first = ANY(CAST(:targets AS bigint[]))
    ORDER BY id FOR SHARE
""")

_ADD = text("""
    INSERT INTO job_after (job, after, cluster, ending, whole_array)
    SELECT job.id, job_after.after, job.cluster, job_after.ending, job_after.whole_array
    FROM unnest(
        CAST(:jobs AS bigint[]), CAST(:afters AS bigint[]), CAST(:endings AS text[]), CAST(:wholes AS bool[])
    ) AS job_after (job, after, ending, whole_array)
    JOIN job ON job.id = job_after.job
    ON CONFLICT DO NOTHING
""")

_READY: Final = """
    SELECT DISTINCT waits.job FROM job_after AS waits
    WHERE waits.cluster = :cluster AND waits.met IS NOT NULL AND NOT EXISTS (
        SELECT FROM job_after AS other WHERE other.job = waits.job AND other.met IS NOT TRUE
    )
"""

# The job first, then its dependencies, in the lock order of a cancel; a job that is being changed can wait.
_FREE = text(f"""
    WITH ready AS ({_READY}), mine AS (
        SELECT job.id FROM job JOIN ready ON ready.job = job.id ORDER BY job.id
        FOR UPDATE OF job SKIP LOCKED
    ), gone AS (
        DELETE FROM job_after USING mine WHERE job_after.job = mine.id
    )
    UPDATE job SET has_after = false FROM mine WHERE job.id = mine.id
""")  # noqa: S608

_FORGET = text("DELETE FROM job_after WHERE job = ANY(CAST(:jobs AS bigint[]))")


async def settle(connection: AsyncConnection, ended: Sequence[int]) -> None:
    """Settle the dependencies on these jobs, or on their arrays, as met or unmet."""
    if not ended:
        return
    targets = (await connection.execute(_WAITED_FOR, {"ended": list(ended)})).scalars().all()
    if targets:
        await connection.execute(_SETTLE, {"targets": list(targets)})


async def add(connection: AsyncConnection, afters: Mapping[JobId, Iterable[After]]) -> None:
    """Add dependencies of jobs stored in this transaction. One on an unknown job can never be met."""
    pairs = [(job, after) for job, several in afters.items() for after in several]
    targets = sorted({after.job for _, after in pairs})
    if not pairs:
        return
    rows = (await connection.execute(_LOCK_TARGETS, {"targets": targets})).all()
    arrays = {row.array_first for row in rows}
    values = {
        "jobs": [job for job, _ in pairs],
        "afters": [after.job for _, after in pairs],
        "endings": [after.when.value for _, after in pairs],
        "wholes": [after.job in arrays for _, after in pairs],
    }
    await connection.execute(_ADD, values)
    await connection.execute(_SETTLE, {"targets": targets})


async def free(connection: AsyncConnection, cluster: str) -> None:
    """Release the jobs of a cluster whose dependencies are all met."""
    await connection.execute(_FREE, {"cluster": cluster})


async def forget(connection: AsyncConnection, jobs: Sequence[int]) -> None:
    """Remove the dependencies of jobs that ended."""
    if jobs:
        await connection.execute(_FORGET, {"jobs": list(jobs)})
