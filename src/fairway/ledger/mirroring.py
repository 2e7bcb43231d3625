"""Keeps what engines show of their jobs: a few statements for a batch, and only rows that changed.

The batch is first compared with what is kept, without locks: mostly little has changed. Only what has is
locked, in the order of ids as everybody does, and decided again if somebody wrote to it meanwhile: the loop
that sends writes the same rows at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import attempt_rows, job_afters, job_specs, metering, sending, sightings
from fairway.ledger.connection import Connections
from fairway.ledger.job_changes import (
    COLUMNS,
    NAMES,
    Changes,
    Known,
    Link,
    class_of,
    columns_of,
    decide,
    link_of,
    newborn,
    order_in,
)
from fairway.ledger.job_classes import numbers
from fairway.ledger.job_pages import LATE
from fairway.ledger.job_records import EventKind, Kept, Wish
from fairway.ledger.jobs import add_events, mark_of, new_ids
from fairway.ledger.records import Lease
from fairway.model.job import OPEN_JOBS, EngineId, JobId, JobSpec, JobState, SeenJob

_OPEN: Final = ", ".join(f"'{state.value}'" for state in OPEN_JOBS)

_MARK = text("SELECT mark FROM mirror_mark WHERE cluster = :cluster")

_KEEP_MARK = text("""
    INSERT INTO mirror_mark (cluster, mark, at) VALUES (:cluster, :mark, now())
    ON CONFLICT (cluster) DO UPDATE SET mark = excluded.mark, at = excluded.at
""")

_LINKS = text("""
    SELECT engine_id, job, submission, attempts_before, double FROM engine_job
    WHERE cluster = :cluster AND engine_id = ANY(CAST(:ids AS text[]))
""")

# In the order of `Standing`.
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
        AND job.state IN ({_OPEN})
    ORDER BY job.id FOR UPDATE OF job
""")  # noqa: S608

_LOST = text("""
    WITH ended AS (
        UPDATE attempt SET ending = 'lost' WHERE job = ANY(CAST(:ids AS bigint[])) AND ending IS NULL
    )
    UPDATE job SET state = 'lost', code = 'Lost', asked = false,
        reason = 'the engine knows nothing of it any more'
    WHERE id = ANY(CAST(:ids AS bigint[]))
""")


async def mark(connections: Connections, cluster: str) -> str | None:
    async with connections.single() as connection:
        found = (await connection.execute(_MARK, {"cluster": cluster})).scalar()
    return None if found is None else str(found)


async def keep_seen(
    connection: AsyncConnection, lease: Lease, seen: Sequence[SeenJob], mark: str | None
) -> Kept:
    by_id = {job.engine_id: job for job in seen}  # of one that is there twice, the last
    changes = Changes()
    if by_id:
        prefix = await mark_of(connection)
        jobs = list(by_id.values())
        known = await _load(connection, lease, jobs, prefix)
        changes = decide(jobs, known)
        if not await _unchanged(connection, lease, known, changes.touched):
            known = await _load(connection, lease, jobs, prefix)
            changes = decide(jobs, known)
        await _bring_back(connection, known, changes)
        await _write(connection, lease, known, changes)
    if mark is not None:
        await connection.execute(_KEEP_MARK, {"cluster": lease.cluster, "mark": mark})
    ours = [job for job in changes.ended if job in known.rows and not known.rows[job].native] if by_id else []
    return Kept(tuple(JobId(job) for job in ours), tuple(changes.doubles))


async def keep_lost(connection: AsyncConnection, lease: Lease, ids: Sequence[EngineId]) -> None:
    values = {"cluster": lease.cluster, "ids": list(ids)}
    lost = list((await connection.execute(_LOCK_LOST, values)).scalars())
    if lost:
        await connection.execute(_LOST, {"ids": lost})
        await metering.queue(connection, lease.cluster, lost)
        await job_afters.settle(connection, lost)


async def _unchanged(
    connection: AsyncConnection, lease: Lease, known: Known, touched: Collection[int]
) -> bool:
    """Lock what changes; whether nobody wrote to it since it was read."""
    if not touched:
        return True
    locked = await connection.execute(_LOCK, {"cluster": lease.cluster, "ids": sorted(touched)})
    return all(known.rows[row.id].version == row.version for row in locked)


async def _load(connection: AsyncConnection, lease: Lease, seen: Sequence[SeenJob], prefix: str) -> Known:
    values: dict[str, object] = {"cluster": lease.cluster, "ids": [job.engine_id for job in seen]}
    links = {
        row.engine_id: Link(row.job, row.submission, row.attempts_before, row.double)
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
    return Known(links, rows, attempts, classes)


async def _bring_back(connection: AsyncConnection, known: Known, changes: Changes) -> None:
    """Of ours that ended now, those that are to be sent once more."""
    bad = [
        (id_, job)
        for id_, job in changes.failed
        if job.state is not JobState.DONE and changes.jobs[id_].wish is not Wish.CANCEL
    ]
    if not bad:
        return
    rows = await connection.execute(_SPECS, {"ids": [id_ for id_, _ in bad]})
    specs: dict[int, JobSpec] = {row.id: job_specs.decoded(row.spec) for row in rows}
    for id_, job in bad:
        before = known.rows[id_]
        back = sightings.brought_back(changes.jobs[id_], job, specs[id_], before.moment)
        if back is None:
            continue
        sent_at = changes.jobs[id_].sent_at
        changes.jobs[id_], why = back
        changes.ended.remove(id_)
        changes.events += [
            {"job": id_, "at": sent_at, "kind": EventKind.SENT, "text": job.engine_id},
            {"job": id_, "kind": EventKind.RETRY, "text": why},
        ]


async def _write(connection: AsyncConnection, lease: Lease, known: Known, changes: Changes) -> None:
    await _insert_new(connection, lease, known, changes)
    if changes.jobs:
        rows = [columns_of(id_, standing) for id_, standing in changes.jobs.items()]
        await connection.execute(_UPDATE, {"rows": job_specs.compact(rows)})
    await attempt_rows.write(connection, changes.attempts)
    await metering.queue(connection, lease.cluster, changes.to_meter(known))
    await sending.link(connection, lease, changes.links)
    await add_events(connection, changes.events)
    await job_afters.settle(connection, sorted(changes.ended))


async def _insert_new(connection: AsyncConnection, lease: Lease, known: Known, changes: Changes) -> None:
    """Native jobs, in the order they were submitted, so that ids tell it as well as they can."""
    new = sorted(changes.new, key=lambda job: (job.submitted_at, job.array_index or 0))
    if not new:
        return
    ids = await new_ids(connection, len(new))
    arrays = await _arrays(connection, lease, list(zip(ids, new, strict=True)))
    rows: list[dict[str, object]] = []
    for id_, job in zip(ids, new, strict=True):
        attempts = sightings.merged((), 0, job)
        class_ = known.classes[class_of(job, lease.cluster)]
        standing = sightings.followed(newborn(job, class_), job, attempts, class_)
        place = {
            "submitted_at": job.submitted_at,
            "array_first": None if job.array_id is None else arrays[job.array_id],
            "array_index": job.array_index,
        }
        rows.append(columns_of(id_, standing) | place)
        changes.links.append((job.engine_id, id_, 0, 0, False))
        if attempts.put:
            changes.attempts.append((id_, job.engine_id, attempts))
    values = {"cluster": lease.cluster, "rows": job_specs.compact(rows), "late": LATE}
    await connection.execute(_INSERT, values)


async def _arrays(
    connection: AsyncConnection, lease: Lease, new: Collection[tuple[int, SeenJob]]
) -> dict[EngineId, int]:
    """The first job of each native array."""
    firsts: dict[EngineId, int] = {}
    for id_, job in new:
        if job.array_id is not None:
            firsts.setdefault(job.array_id, id_)
    if firsts:
        values = {"cluster": lease.cluster, "ids": list(firsts), "jobs": list(firsts.values())}
        await connection.execute(_NEW_ARRAYS, values)
        firsts |= {EngineId(row.engine_id): row.job for row in await connection.execute(_ARRAYS, values)}
    return firsts
