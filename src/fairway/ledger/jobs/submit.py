"""Requests of users on jobs: submit once, hold, release, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.errors import KeyReused
from fairway.ledger.jobs import dependencies
from fairway.ledger.jobs import rows as job_rows
from fairway.ledger.jobs.rows import JobClass, numbers
from fairway.ledger.records.jobs import DesiredState, EventKind, NewJob
from fairway.ledger.schema.jobs import OPEN_JOBS_SQL
from fairway.ledger.schema.tables import NONE
from fairway.model.job import JobId, JobState

_MARK = text("SELECT mark FROM ledger_mark")

_KEY = text("SELECT digest, ids FROM submission_key WHERE by_whom = :by AND key = :key")

# Whoever comes second with the same key waits here until the first one is through.
_NEW_KEY = text("""
    INSERT INTO submission_key (by_whom, key, digest, ids) VALUES (:by, :key, :digest, :ids)
    ON CONFLICT DO NOTHING RETURNING 1
""")

_IDS = text("SELECT nextval(pg_get_serial_sequence('job', 'id')) FROM generate_series(1, :count)")

# What tasks of one array share is sent once.
_JOBS = text("""
    INSERT INTO job (
        id, class, cluster, name, state, wish, array_first, array_index, gpus, nodes, devices, submission,
        submitted_at, not_before, time_seconds, has_after
    )
    SELECT task.id, spec.class, spec.cluster, spec.name, spec.state, spec.wish,
        task.array_first, task.array_index, spec.gpus, spec.nodes, spec.gpus * spec.nodes, 1,
        now(), now(), spec.time_seconds, spec.has_after
    FROM unnest(
        CAST(:ids AS bigint[]), CAST(:places AS int[]), CAST(:firsts AS bigint[]), CAST(:indexes AS int[])
    ) AS task (id, place, array_first, array_index)
    JOIN jsonb_to_recordset(CAST(:specs AS jsonb)) AS spec (
        place int, class int, cluster text, name text, state text, wish text, gpus int, nodes int,
        time_seconds int, has_after bool
    ) USING (place)
    ORDER BY task.id
""")

_SPECS = text("""
    INSERT INTO job_spec (job, spec, why_there, submitted_by)
    SELECT *, :by FROM unnest(CAST(:jobs AS bigint[]), CAST(:specs AS text[]), CAST(:whys AS text[]))
""")

_CLOCK = text("""
    INSERT INTO job_clock (minute, job) VALUES (date_trunc('minute', clock_timestamp()), :job)
    ON CONFLICT DO NOTHING
""")

_LOCKED = text(f"""
    SELECT id, state, wish, asked, engine_id, sending_until FROM job
    WHERE id = ANY(CAST(:ids AS bigint[])) AND state IN ({OPEN_JOBS_SQL})
    ORDER BY id FOR UPDATE
""")  # noqa: S608

_ASK = text("""
    UPDATE job SET wish = :wish, asked = true WHERE id = ANY(CAST(:ids AS bigint[]))
""")

_AT_ONCE = text("""
    UPDATE job SET wish = :wish, asked = false, state = :state,
        ended_at = CASE WHEN :over THEN now() END
    WHERE id = ANY(CAST(:ids AS bigint[]))
""")

_EVENTS = text("""
    INSERT INTO job_event (job, at, kind, by_whom, text)
    SELECT job, COALESCE(at, now()), kind, by_whom, text FROM jsonb_to_recordset(CAST(:rows AS jsonb))
        AS event (job bigint, at timestamptz, kind text, by_whom text, text text)
""")

_WISHED: Final = {
    DesiredState.RUN: (EventKind.RELEASED, JobState.QUEUED),
    DesiredState.HOLD: (EventKind.HELD, JobState.HELD),
    DesiredState.CANCEL: (EventKind.CANCELLED, JobState.CANCELLED),
}


async def ledger_mark(connections: Connections) -> str:
    async with connections.single() as connection:
        return await mark_of(connection)


async def mark_of(connection: AsyncConnection) -> str:
    """Return the mark that distinguishes this ledger's engine jobs from another's."""
    return str((await connection.execute(_MARK)).scalar_one())


async def submit(
    connections: Connections, new: Sequence[NewJob], *, by: str, key: str | None
) -> tuple[tuple[JobId, ...], ...]:
    if not new:
        return ()
    mine = b"" if key is None else job_rows.digest(new)
    sizes = [max(1, len(job.spec.array)) for job in new]
    async with connections.transaction() as connection:
        if key is not None and (known := await _known(connection, by, key, mine)) is not None:
            return _shared_out(known, sizes)
        ids = list((await connection.execute(_IDS, {"count": sum(sizes)})).scalars())
        if key is not None:
            values = {"by": by, "key": key, "digest": mine, "ids": job_rows.ranges(ids)}
            if (await connection.execute(_NEW_KEY, values)).first() is None:
                known = await _known(connection, by, key, mine)
                if known is None:
                    raise RuntimeError("a submission's key was there and is not")
                return _shared_out(known, sizes)
        tasks = _shared_out(ids, sizes)
        await _insert(connection, new, tasks, by)
    return tasks


async def set_desired_state(
    connections: Connections, wanted: Sequence[JobId], what: DesiredState, *, by: str
) -> tuple[JobId, ...]:
    kind, state = _WISHED[what]
    async with connections.transaction() as connection:
        rows = (await connection.execute(_LOCKED, {"ids": list(wanted)})).all()
        changed = [row for row in rows if _changes(row, what)]
        at_once = [row.id for row in changed if _unsent(row)]
        ask = [row.id for row in changed if not _unsent(row)]
        if at_once:
            over = what is DesiredState.CANCEL
            values = {"ids": at_once, "wish": what.value, "state": state.value, "over": over}
            await connection.execute(_AT_ONCE, values)
            if over:
                await dependencies.forget(connection, at_once)
                await dependencies.settle(connection, at_once)
        if ask:
            await connection.execute(_ASK, {"ids": ask, "wish": what.value})
        await add_events(connection, [{"job": row.id, "kind": kind, "by_whom": by} for row in changed])
    return tuple(JobId(row.id) for row in changed)


async def add_events(connection: AsyncConnection, rows: Sequence[dict[str, object]]) -> None:
    """Add timeline events: job, kind, and optionally `at`, `by_whom`, `text`."""
    if rows:
        blank = {"at": None, "by_whom": "", "text": ""}
        await connection.execute(_EVENTS, {"rows": job_rows.compact([blank | row for row in rows])})


async def new_ids(connection: AsyncConnection, count: int) -> list[int]:
    """Assign rising new job ids, and record when they were assigned."""
    ids = list((await connection.execute(_IDS, {"count": count})).scalars())
    await connection.execute(_CLOCK, {"job": ids[0]})
    return ids


async def _known(connection: AsyncConnection, by: str, key: str, digest: bytes) -> list[int] | None:
    row = (await connection.execute(_KEY, {"by": by, "key": key})).first()
    if row is None:
        return None
    if bytes(row.digest) != digest:
        raise KeyReused(
            "KeyReused",
            f"other jobs were submitted under the key {key} before",
            "use a new key for new jobs; to submit the same ones again without doubling them, send the same",
        )
    return job_rows.unranged(row.ids)


def _shared_out(ids: Sequence[int], sizes: Sequence[int]) -> tuple[tuple[JobId, ...], ...]:
    left = iter(ids)
    return tuple(tuple(JobId(next(left)) for _ in range(size)) for size in sizes)


async def _insert(
    connection: AsyncConnection, new: Sequence[NewJob], tasks: Sequence[Sequence[JobId]], by: str
) -> None:
    await connection.execute(_CLOCK, {"job": tasks[0][0]})
    classes = [_class(job) for job in new]
    known = await numbers(connection, classes)
    specs = [
        {
            "place": place,
            "class": known[class_],
            "cluster": class_.cluster,
            "name": job.spec.name,
            "state": (JobState.HELD if job.hold else JobState.QUEUED).value,
            "wish": (DesiredState.HOLD if job.hold else DesiredState.RUN).value,
            "gpus": job.spec.gpus.count,
            "nodes": job.spec.nodes,
            "time_seconds": job.spec.time_seconds,
            "has_after": bool(job.spec.after),
        }
        for place, (job, class_) in enumerate(zip(new, classes, strict=True))
    ]
    rows = [
        (id_, place, ids[0] if job.spec.array else None, index)
        for place, (job, ids) in enumerate(zip(new, tasks, strict=True))
        for id_, index in zip(ids, job.spec.array or (None,), strict=True)
    ]
    values = {
        "ids": [row[0] for row in rows],
        "places": [row[1] for row in rows],
        "firsts": [row[2] for row in rows],
        "indexes": [row[3] for row in rows],
        "specs": job_rows.compact(specs),
    }
    await connection.execute(_JOBS, values)
    kept = {
        "jobs": [ids[0] for ids in tasks],
        "specs": [job_rows.encoded(job.spec) for job in new],
        "whys": [job.placement.why for job in new],
        "by": by,
    }
    await connection.execute(_SPECS, kept)
    waits = {
        id_: job.spec.after for job, ids in zip(new, tasks, strict=True) if job.spec.after for id_ in ids
    }
    await dependencies.add(connection, waits)


def _class(job: NewJob) -> JobClass:
    supply = job.placement.supply
    return JobClass(
        job.placement.cluster, job.user, job.team, supply.pool, supply.slice or NONE, job.priority, False
    )


def _unsent(row: Row[*tuple[Any, ...]]) -> bool:
    """Return whether no engine can have received it."""
    return row.engine_id is None and row.sending_until is None


def _changes(row: Row[*tuple[Any, ...]], wish: DesiredState) -> bool:
    """Return whether the wish changes anything: a cancel is never taken back."""
    return bool(row.wish not in {DesiredState.CANCEL, wish})
