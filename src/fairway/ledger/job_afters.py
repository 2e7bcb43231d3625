"""What comes after what. Whoever ends a job settles what waits for it, in the same transaction.

Two who end tasks of one array at once each see the other's as not over. So the rows that wait are locked
first, and looked at by a statement of their own: the second one sees what the first one did. For the same
reason a new job locks what it comes after until it is kept itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.model.job import OPEN_JOBS, After, JobId, JobState

_OPEN: Final = ", ".join(f"'{state.value}'" for state in OPEN_JOBS)
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

# One that was cancelled did not fail: what cleans up after failures is not meant for it.
_SETTLE = text(f"""
    WITH fate AS (
        SELECT waits.after, waits.whole_array, count(job.id) AS jobs,
            count(*) FILTER (WHERE job.state IN ({_OPEN})) AS open,
            count(*) FILTER (WHERE job.state = {_DONE}) AS done,
            count(*) FILTER (WHERE job.state NOT IN ({_OPEN}, {_DONE}, {_CANCELLED})) AS failed
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

# The job first, then what it waited for, as whoever cancels it does; one that is just being changed can wait.
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
    """Say to whoever waits for these, or for the arrays they are of, whether it came true."""
    if not ended:
        return
    targets = (await connection.execute(_WAITED_FOR, {"ended": list(ended)})).scalars().all()
    if targets:
        await connection.execute(_SETTLE, {"targets": list(targets)})


async def add(connection: AsyncConnection, afters: Mapping[JobId, Iterable[After]]) -> None:
    """Have jobs, kept in this transaction, wait for others. What is unknown can never come true."""
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
    """Let jobs go whose every `after` came true."""
    await connection.execute(_FREE, {"cluster": cluster})


async def forget(connection: AsyncConnection, jobs: Sequence[int]) -> None:
    """These wait for nothing any more: they are over."""
    if jobs:
        await connection.execute(_FORGET, {"jobs": list(jobs)})
