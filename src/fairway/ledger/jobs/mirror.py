"""Store the engine jobs that engines report: a few statements per batch, and only rows that changed.

The batch is first compared with the stored rows, without locks: usually little has changed. Only rows that
changed are locked, in id order to avoid deadlocks, and decided again if they were written meanwhile: the
dispatch loop writes the same rows at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.jobs import dependencies, dispatch, reconcile
from fairway.ledger.jobs import rows as job_rows
from fairway.ledger.jobs.reconcile import (
    COLUMNS,
    NAMES,
    EngineJobLink,
    JobChanges,
    MergedAttempts,
    StoredJobs,
    class_of,
    columns_of,
    decide,
    link_of,
    newborn,
    order_in,
)
from fairway.ledger.jobs.rows import numbers
from fairway.ledger.jobs.store import LATE
from fairway.ledger.jobs.submit import add_events, mark_of, new_ids
from fairway.ledger.records.fleet import Lease
from fairway.ledger.records.jobs import DesiredState, EventKind, MirrorResult
from fairway.ledger.schema.jobs import OPEN_JOBS_SQL
from fairway.ledger.usage import metering
from fairway.model.job import EngineId, JobId, JobSpec, JobState, SeenJob

_MARK = text("SELECT mark FROM mirror_mark WHERE cluster = :cluster")


_KEEP_MARK = text("""
    INSERT INTO mirror_mark (cluster, mark, at) VALUES (:cluster, :mark, now())
    ON CONFLICT (cluster) DO UPDATE SET mark = excluded.mark, at = excluded.at
""")


_LINKS = text("""
    SELECT engine_id, job, submission, attempts_before, double FROM engine_job
    WHERE cluster = :cluster AND engine_id = ANY(CAST(:ids AS text[]))
""")


# In the order of `TeamSupplyUse`.
_READ = text(f"""
    SELECT {", ".join(f"job.{name}" for name in NAMES)}, job.cluster, job_class.user_name, job_class.native,
        CAST(job.xmin AS text) AS version, now() AS moment
    FROM job JOIN job_class ON job_class.id = job.class
    WHERE job.cluster = :cluster AND job.id = ANY(CAST(:ids AS bigint[]))
""")  # noqa: S608


_LOCK = text("""
    SELECT id, CAST(xmin AS text) AS version FROM job
    WHERE cluster = :cluster AND id = ANY(CAST(:ids AS bigint[])) ORDER BY id FOR UPDATE
""")


_ATTEMPTS = text("SELECT * FROM attempt WHERE job = ANY(CAST(:ids AS bigint[])) ORDER BY job, number")


_SPECS = text("""
    SELECT job.id, job_spec.spec FROM job JOIN job_spec ON job_spec.job = COALESCE(job.array_first, job.id)
    WHERE job.id = ANY(CAST(:ids AS bigint[]))
""")


_ARRAYS = text("""
    SELECT engine_id, job FROM engine_array
    WHERE cluster = :cluster AND engine_id = ANY(CAST(:ids AS text[]))
""")


_NEW_ARRAYS = text("""
    INSERT INTO engine_array (cluster, engine_id, job)
    SELECT :cluster, * FROM unnest(CAST(:ids AS text[]), CAST(:jobs AS bigint[]))
    ON CONFLICT DO NOTHING
""")


_UPDATE = text(f"""
    UPDATE job SET {", ".join(f"{name} = now.{name}" for name in NAMES[1:])}
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS now ({COLUMNS})
    WHERE job.id = now.id
""")  # noqa: S608


_INSERT = text(f"""
    INSERT INTO job (cluster, submitted_at, late, array_first, array_index, {", ".join(NAMES)})
    SELECT :cluster, submitted_at, submitted_at < now() - CAST(:late AS interval), array_first, array_index,
        {", ".join(NAMES)}
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS now (
        submitted_at timestamptz, array_first bigint, array_index int, {COLUMNS}
    )
    ORDER BY id
""")  # noqa: S608


_LOCK_LOST = text(f"""
    SELECT job.id FROM job JOIN engine_job ON engine_job.job = job.id
    WHERE job.cluster = :cluster AND engine_job.cluster = :cluster
        AND engine_job.engine_id = ANY(CAST(:ids AS text[])) AND job.engine_id = engine_job.engine_id
        AND job.state IN ({OPEN_JOBS_SQL})
    ORDER BY job.id FOR UPDATE OF job
""")  # noqa: S608


_LOST = text("""
    WITH ended AS (
        UPDATE attempt SET ending = 'lost' WHERE job = ANY(CAST(:ids AS bigint[])) AND ending IS NULL
    )
    UPDATE job SET state = 'lost', code = 'Lost', asked = false,
        reason = 'the engine knows nothing of it any more', reason_code = ''
    WHERE id = ANY(CAST(:ids AS bigint[]))
""")


class MirrorStore:
    """Reads the mirror mark of a cluster."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def mark(self, cluster: str) -> str | None:
        """Return where the mirror of a cluster resumes. Returns None if it has not run yet."""
        async with self._connections.single() as connection:
            found = (await connection.execute(_MARK, {"cluster": cluster})).scalar()
        return None if found is None else str(found)


class MirrorWriter:
    """Writes the engine jobs of the lease's cluster."""

    def __init__(self, connection: AsyncConnection, lease: Lease) -> None:
        self._connection = connection
        self._lease = lease

    async def keep_seen(self, jobs: Sequence[SeenJob], mark: str | None = None) -> MirrorResult:
        """Store these engine jobs, and the mark at which the mirror resumes.

        Rows that did not change are not written. A failed job that has retries left is queued again.
        """
        by_id = {job.engine_id: job for job in jobs}  # of one that is there twice, the last
        changes = JobChanges()
        if by_id:
            prefix = await mark_of(self._connection)
            jobs = list(by_id.values())
            known = await _load(self._connection, self._lease, jobs, prefix)
            changes = decide(jobs, known)
            if not await _unchanged(self._connection, self._lease, known, changes.touched):
                known = await _load(self._connection, self._lease, jobs, prefix)
                changes = decide(jobs, known)
            await _bring_back(self._connection, known, changes)
            await _write(self._connection, self._lease, known, changes)
        if mark is not None:
            await self._connection.execute(_KEEP_MARK, {"cluster": self._lease.cluster, "mark": mark})
        ours = (
            [job for job in changes.ended if job in known.rows and not known.rows[job].native]
            if by_id
            else []
        )
        return MirrorResult(tuple(JobId(job) for job in ours), tuple(changes.doubles))

    async def keep_lost(self, ids: Sequence[EngineId]) -> None:
        """Mark jobs as lost: the engine no longer knows them."""
        values = {"cluster": self._lease.cluster, "ids": list(ids)}
        lost = list((await self._connection.execute(_LOCK_LOST, values)).scalars())
        if lost:
            await self._connection.execute(_LOST, {"ids": lost})
            await metering.queue(self._connection, self._lease.cluster, lost)
            await dependencies.settle(self._connection, lost)


async def _unchanged(
    connection: AsyncConnection, lease: Lease, known: StoredJobs, touched: Collection[int]
) -> bool:
    """Lock the rows to change. Returns whether none was written since it was read."""
    if not touched:
        return True
    locked = await connection.execute(_LOCK, {"cluster": lease.cluster, "ids": sorted(touched)})
    return all(known.rows[row.id].version == row.version for row in locked)


async def _load(
    connection: AsyncConnection, lease: Lease, seen: Sequence[SeenJob], prefix: str
) -> StoredJobs:
    values: dict[str, object] = {"cluster": lease.cluster, "ids": [job.engine_id for job in seen]}
    links = {
        row.engine_id: EngineJobLink(row.job, row.submission, row.attempts_before, row.double)
        for row in await connection.execute(_LINKS, values)
    }
    named = {job.engine_id: order for job in seen if (order := order_in(job.name, prefix)) is not None}
    values["ids"] = sorted({link.job for link in links.values()} | {job for job, _ in named.values()})
    rows = {row.id: row for row in await connection.execute(_READ, values)}
    native: list[SeenJob] = []
    for job in seen:
        link = link_of(job, links.get(job.engine_id), named.get(job.engine_id), rows, prefix)
        if link is None:
            links.pop(job.engine_id, None)
        else:
            links[job.engine_id] = link
        if link is None or rows[link.job].native:
            native.append(job)
    attempts: dict[int, list[Row[*tuple[Any, ...]]]] = {}
    tried = [row.id for row in rows.values() if row.attempts]
    for row in await connection.execute(_ATTEMPTS, {"ids": tried}) if tried else ():
        attempts.setdefault(row.job, []).append(row)
    classes = await numbers(connection, (class_of(job, lease.cluster) for job in native))
    return StoredJobs(links, rows, attempts, classes)


async def _bring_back(connection: AsyncConnection, known: StoredJobs, changes: JobChanges) -> None:
    """Queue Fairway's jobs again that ended now and are to be retried."""
    bad = [
        (id_, job)
        for id_, job in changes.failed
        if job.state is not JobState.DONE and changes.jobs[id_].wish is not DesiredState.CANCEL
    ]
    if not bad:
        return
    rows = await connection.execute(_SPECS, {"ids": [id_ for id_, _ in bad]})
    specs: dict[int, JobSpec] = {row.id: job_rows.decoded(row.spec) for row in rows}
    for id_, job in bad:
        before = known.rows[id_]
        back = reconcile.brought_back(changes.jobs[id_], job, specs[id_], before.moment)
        if back is None:
            continue
        sent_at = changes.jobs[id_].sent_at
        changes.jobs[id_], why = back
        changes.ended.remove(id_)
        changes.events += [
            {"job": id_, "at": sent_at, "kind": EventKind.SENT, "text": job.engine_id},
            {"job": id_, "kind": EventKind.RETRY, "text": why},
        ]


async def _write(connection: AsyncConnection, lease: Lease, known: StoredJobs, changes: JobChanges) -> None:
    await _insert_new(connection, lease, known, changes)
    if changes.jobs:
        rows = [columns_of(id_, standing) for id_, standing in changes.jobs.items()]
        await connection.execute(_UPDATE, {"rows": job_rows.compact(rows)})
    await write(connection, changes.attempts)
    await metering.queue(connection, lease.cluster, changes.to_meter(known))
    await dispatch.link(connection, lease, changes.links)
    await add_events(connection, changes.events)
    await dependencies.settle(connection, sorted(changes.ended))


async def _insert_new(
    connection: AsyncConnection, lease: Lease, known: StoredJobs, changes: JobChanges
) -> None:
    """Insert native jobs, in order of submission, so that ids reflect it as far as possible."""
    new = sorted(changes.new, key=lambda job: (job.submitted_at, job.array_index or 0))
    if not new:
        return
    ids = await new_ids(connection, len(new))
    arrays = await _arrays(connection, lease, list(zip(ids, new, strict=True)))
    rows: list[dict[str, object]] = []
    for id_, job in zip(ids, new, strict=True):
        attempts = reconcile.merged((), 0, job)
        class_ = known.classes[class_of(job, lease.cluster)]
        standing = reconcile.followed(newborn(job, class_), job, attempts, class_)
        place = {
            "submitted_at": job.submitted_at,
            "array_first": None if job.array_id is None else arrays[job.array_id],
            "array_index": job.array_index,
        }
        rows.append(columns_of(id_, standing) | place)
        changes.links.append((job.engine_id, id_, 0, 0, False))
        if attempts.put:
            changes.attempts.append((id_, job.engine_id, attempts))
    values = {"cluster": lease.cluster, "rows": job_rows.compact(rows), "late": LATE}
    await connection.execute(_INSERT, values)


async def _arrays(
    connection: AsyncConnection, lease: Lease, new: Collection[tuple[int, SeenJob]]
) -> dict[EngineId, int]:
    """Return the first job of each native array."""
    firsts: dict[EngineId, int] = {}
    for id_, job in new:
        if job.array_id is not None:
            firsts.setdefault(job.array_id, id_)
    if firsts:
        values = {"cluster": lease.cluster, "ids": list(firsts), "jobs": list(firsts.values())}
        await connection.execute(_NEW_ARRAYS, values)
        firsts |= {EngineId(row.engine_id): row.job for row in await connection.execute(_ARRAYS, values)}
    return firsts


_PUT = text("""
    INSERT INTO attempt (
        job, number, engine_id, started_at, ended_at, ending, exit_code, signal, devices, nodes, reason
    )
    SELECT job, number, engine_id, started_at, ended_at, ending, exit_code, signal, devices,
        ARRAY(SELECT jsonb_array_elements_text(nodes)), reason
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS seen (
        job bigint, number int, engine_id text, started_at timestamptz, ended_at timestamptz, ending text,
        exit_code int, signal int, devices int, nodes jsonb, reason text
    )
    ON CONFLICT (job, number) DO UPDATE SET
        engine_id = excluded.engine_id, started_at = excluded.started_at, ended_at = excluded.ended_at,
        ending = excluded.ending, exit_code = excluded.exit_code, signal = excluded.signal,
        devices = excluded.devices, nodes = excluded.nodes, reason = excluded.reason
""")


_DROP = text("""
    DELETE FROM attempt USING unnest(CAST(:jobs AS bigint[]), CAST(:numbers AS int[])) AS gone (job, number)
    WHERE attempt.job = gone.job AND attempt.number = gone.number
""")


async def write(connection: AsyncConnection, attempts: Sequence[tuple[int, str, MergedAttempts]]) -> None:
    """Write changed attempts: job, engine job, what to insert or update and what to delete."""
    gone = [(job, number) for job, _, merged in attempts for number in merged.gone]
    if gone:
        values = {"jobs": [job for job, _ in gone], "numbers": [number for _, number in gone]}
        await connection.execute(_DROP, values)
    rows: list[dict[str, object]] = [
        {
            "job": job,
            "number": n.number,
            "engine_id": engine_id,
            "started_at": n.attempt.started_at,
            "ended_at": n.attempt.ended_at,
            "ending": n.attempt.ending,
            "exit_code": n.attempt.exit_code,
            "signal": n.attempt.signal,
            "devices": n.attempt.devices,
            "nodes": n.attempt.nodes,
            "reason": n.attempt.reason,
        }
        for job, engine_id, merged in attempts
        for n in merged.put
    ]
    if rows:
        await connection.execute(_PUT, {"rows": job_rows.compact(rows)})
