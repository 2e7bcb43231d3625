"""Jobs on their way to an engine: what is due, what was sent or refused, what people still ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import job_afters, job_specs
from fairway.ledger.connection import Connections
from fairway.ledger.job_records import EventKind, ToDo, ToSend, Wish
from fairway.ledger.jobs import add_events
from fairway.ledger.observations import kept
from fairway.ledger.records import Lease
from fairway.model.errors import FairwayError
from fairway.model.job import OPEN_JOBS, EngineId, JobId, JobState, engine_name, job_word
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName

GIVEN_UP_SECONDS: Final = 60
"""How long after it could last arrive a cancelled order is taken for never sent."""

_OPEN: Final = ", ".join(f"'{state.value}'" for state in OPEN_JOBS)

_ORDER: Final = """
    SELECT job.id, job.submission, job.name, job.array_first, job.array_index, job.attempts, job.wish,
        job.sending_until, job_class.user_name, job_class.team, job_class.priority, job_class.pool,
        job_class.slice, job_spec.spec, ledger_mark.mark
    FROM job
    JOIN job_class ON job_class.id = job.class
    JOIN job_spec ON job_spec.job = COALESCE(job.array_first, job.id)
    CROSS JOIN ledger_mark
"""

# First alone which ones, then all about them: so that the index of what is due is all that is read.
_TO_SEND = text(f"""
    {_ORDER}
    JOIN (
        SELECT id FROM job
        WHERE cluster = :cluster AND state = 'queued' AND NOT has_after AND not_before <= now()
            AND wish <> 'cancel'
        ORDER BY not_before, id LIMIT :limit
    ) AS due ON due.id = job.id
    ORDER BY job.not_before, job.id
""")  # noqa: S608

_ONE = text(f"{_ORDER} WHERE job.id = :id AND job.submission > 0")

_TO_DO = text("""
    SELECT id, engine_id, wish, state FROM job
    WHERE cluster = :cluster AND asked AND engine_id IS NOT NULL
        AND (wish = 'cancel' OR (wish = 'hold' AND state = 'waiting') OR (wish = 'run' AND state = 'held'))
    ORDER BY id LIMIT :limit
""")

_OPEN_IDS = text(f"""
    SELECT engine_id FROM job
    WHERE cluster = :cluster AND state IN ({_OPEN}) AND engine_id IS NOT NULL
        AND (sent_at IS NULL OR sent_at < now() - make_interval(secs => :seconds))
""")  # noqa: S608

_LOCK = """
    SELECT id FROM job WHERE cluster = :cluster AND id = ANY(CAST(:ids AS bigint[]))
    ORDER BY id FOR UPDATE
"""

_BEGIN = text(f"""
    WITH mine AS ({_LOCK})
    UPDATE job SET sending_until = now() + make_interval(secs => :seconds) FROM mine
    WHERE job.id = mine.id AND job.state = 'queued' AND job.engine_id IS NULL AND job.wish <> 'cancel'
    RETURNING job.id
""")  # noqa: S608

_STANDING = text("""
    SELECT id, state, wish, submission, engine_id, attempts FROM job
    WHERE cluster = :cluster AND id = ANY(CAST(:ids AS bigint[]))
    ORDER BY id FOR UPDATE
""")

_LINKED = text("""
    SELECT engine_id FROM engine_job
    WHERE cluster = :cluster AND engine_id = ANY(CAST(:engine_ids AS text[]))
""")

_SENT = text("""
    UPDATE job SET state = 'waiting', engine_id = sent.engine_id, sending_until = NULL, sent_at = now(),
        code = '', reason = '', ended_at = NULL, asked = job.asked OR job.wish <> 'run'
    FROM unnest(CAST(:ids AS bigint[]), CAST(:engine_ids AS text[])) AS sent (id, engine_id)
    WHERE job.id = sent.id
""")

LINK: Final = text("""
    INSERT INTO engine_job (cluster, engine_id, job, submission, attempts_before, double)
    SELECT :cluster, * FROM unnest(
        CAST(:engine_ids AS text[]), CAST(:jobs AS bigint[]), CAST(:submissions AS int[]),
        CAST(:befores AS int[]), CAST(:doubles AS bool[])
    ) AS link (engine_id, job, submission, attempts_before, double)
    ON CONFLICT (cluster, engine_id) DO UPDATE SET
        job = excluded.job, submission = excluded.submission, attempts_before = excluded.attempts_before,
        double = excluded.double
""")

_REFUSED = text("""
    UPDATE job SET state = 'refused', code = refused.code, reason = refused.reason, ended_at = now(),
        sending_until = NULL, asked = false
    FROM unnest(
        CAST(:ids AS bigint[]), CAST(:submissions AS int[]), CAST(:codes AS text[]), CAST(:reasons AS text[])
    ) AS refused (id, submission, code, reason)
    WHERE job.cluster = :cluster AND job.id = refused.id AND job.submission = refused.submission
        AND job.state = 'queued' AND job.engine_id IS NULL
    RETURNING job.id
""")

_UNWISH = text(f"""
    UPDATE job SET asked = false, wish = CASE WHEN state = 'held' THEN 'hold' ELSE 'run' END
    WHERE cluster = :cluster AND id = ANY(CAST(:ids AS bigint[])) AND asked AND state IN ({_OPEN})
    RETURNING id
""")  # noqa: S608

_BROKEN = text("""
    SELECT job.id, waits.after, target.state FROM (
        SELECT job, min(after) AS after FROM job_after
        WHERE cluster = :cluster AND met IS FALSE GROUP BY job ORDER BY job LIMIT :limit
    ) AS waits
    JOIN job ON job.id = waits.job LEFT JOIN job AS target ON target.id = waits.after
    WHERE job.state IN ('queued', 'held') AND job.engine_id IS NULL AND job.sending_until IS NULL
    ORDER BY job.id FOR UPDATE OF job
""")

_CANCEL = text("""
    UPDATE job SET state = 'cancelled', code = ended.code, reason = ended.reason, ended_at = now(),
        asked = false, sending_until = NULL, has_after = false
    FROM unnest(CAST(:ids AS bigint[]), CAST(:codes AS text[]), CAST(:reasons AS text[]))
        AS ended (id, code, reason)
    WHERE job.id = ended.id
""")

_NEVER_SENT = text("""
    SELECT id FROM job
    WHERE cluster = :cluster AND asked AND wish = 'cancel' AND state = 'queued' AND engine_id IS NULL
        AND sending_until < now() - make_interval(secs => :seconds)
    ORDER BY id LIMIT :limit FOR UPDATE
""")


async def to_send(connections: Connections, cluster: str, limit: int) -> tuple[ToSend, ...]:
    async with connections.transaction() as connection:
        await job_afters.free(connection, cluster)
        rows = (await connection.execute(_TO_SEND, {"cluster": cluster, "limit": max(1, limit)})).all()
    specs: dict[str, Any] = {}  # tasks of one array are decoded once
    return tuple(_order(row, specs) for row in rows)


async def to_do(connections: Connections, cluster: str, limit: int) -> tuple[ToDo, ...]:
    async with connections.single() as connection:
        rows = (await connection.execute(_TO_DO, {"cluster": cluster, "limit": max(1, limit)})).all()
    return tuple(
        ToDo(JobId(row.id), EngineId(row.engine_id), Wish(row.wish), JobState(row.state)) for row in rows
    )


async def order_of(connections: Connections, number: JobId) -> ToSend | None:
    async with connections.single() as connection:
        row = (await connection.execute(_ONE, {"id": number})).first()
    return None if row is None else _order(row, {})


async def open_engine_ids(connections: Connections, cluster: str, seconds: float) -> frozenset[EngineId]:
    async with connections.single() as connection:
        found = await connection.execute(_OPEN_IDS, {"cluster": cluster, "seconds": seconds})
        return frozenset(EngineId(row.engine_id) for row in found)


async def begin(
    connection: AsyncConnection, lease: Lease, wanted: Sequence[JobId], seconds: float
) -> frozenset[JobId]:
    values = {"cluster": lease.cluster, "ids": list(wanted), "seconds": seconds}
    return frozenset(JobId(row.id) for row in await connection.execute(_BEGIN, values))


async def keep_sent(
    connection: AsyncConnection, lease: Lease, sent: Sequence[tuple[JobId, int, EngineId]]
) -> None:
    if not sent:
        return
    standing = await _standing(connection, lease, [job for job, _, _ in sent])
    values = {"cluster": lease.cluster, "engine_ids": [engine_id for _, _, engine_id in sent]}
    linked = set((await connection.execute(_LINKED, values)).scalars())
    made: dict[int, EngineId] = {}
    links: list[tuple[EngineId, int, int, int, bool]] = []
    for job, submission, engine_id in sent:
        row = standing.get(job)
        if row is None or engine_id in linked:
            continue  # the mirror was quicker
        linked.add(engine_id)
        # One that was cancelled, or refused, before is there all the same: it is followed to its end.
        double = row.submission != submission or row.engine_id is not None or job in made
        if not double:
            made[job] = engine_id
        links.append((engine_id, job, submission, row.attempts, double))
    await connection.execute(_SENT, {"ids": list(made), "engine_ids": list(made.values())})
    await link(connection, lease, links)
    await add_events(connection, [double_event(job, id_) for id_, job, _, _, double in links if double])


async def keep_refused(
    connection: AsyncConnection, lease: Lease, refused: Sequence[tuple[JobId, int, FairwayError]]
) -> None:
    await _standing(connection, lease, [job for job, _, _ in refused])
    values = {
        "cluster": lease.cluster,
        "ids": [job for job, _, _ in refused],
        "submissions": [submission for _, submission, _ in refused],
        "codes": [error.code for _, _, error in refused],
        "reasons": [kept(error.message) for _, _, error in refused],
    }
    changed = set((await connection.execute(_REFUSED, values)).scalars())
    events: list[dict[str, object]] = [
        {"job": job, "kind": EventKind.REFUSED, "text": _words(error)}
        for job, _, error in refused
        if job in changed
    ]
    await add_events(connection, events)
    await job_afters.settle(connection, sorted(changed))


async def keep_wish_refused(
    connection: AsyncConnection, lease: Lease, refused: Sequence[tuple[JobId, FairwayError]]
) -> None:
    await _standing(connection, lease, [job for job, _ in refused])
    values = {"cluster": lease.cluster, "ids": [job for job, _ in refused]}
    changed = set((await connection.execute(_UNWISH, values)).scalars())
    events: list[dict[str, object]] = [
        {"job": job, "kind": EventKind.REFUSED, "text": _words(error)}
        for job, error in refused
        if job in changed
    ]
    await add_events(connection, events)


async def settle_after(connection: AsyncConnection, lease: Lease, limit: int) -> int:
    ended = await _give_up_cancelled(connection, lease, limit)
    # What is cancelled here may be what others come after: a chain ends link by link.
    while ended < limit:
        values = {"cluster": lease.cluster, "limit": limit - ended}
        broken = {row.id: row for row in await connection.execute(_BROKEN, values)}
        if not broken:
            break
        reasons = [_never(row) for row in broken.values()]
        await _cancel(connection, list(broken), "DependencyFailed", reasons, EventKind.NOT_STARTED)
        ended += len(broken)
    return ended


async def link(
    connection: AsyncConnection, lease: Lease, links: Sequence[tuple[EngineId, int, int, int, bool]]
) -> None:
    """Keep which job an engine job is of: engine id, job, submission, attempts before, whether a double."""
    if links:
        values = {
            "cluster": lease.cluster,
            "engine_ids": [link[0] for link in links],
            "jobs": [link[1] for link in links],
            "submissions": [link[2] for link in links],
            "befores": [link[3] for link in links],
            "doubles": [link[4] for link in links],
        }
        await connection.execute(LINK, values)


def double_event(job: int, engine_id: str) -> dict[str, object]:
    """The line of a timeline that tells of a second engine job."""
    return {"job": job, "kind": EventKind.DOUBLE, "text": f"{engine_id} is a second engine job of it"}


async def _give_up_cancelled(connection: AsyncConnection, lease: Lease, limit: int) -> int:
    values = {"cluster": lease.cluster, "seconds": GIVEN_UP_SECONDS, "limit": limit}
    ids = list((await connection.execute(_NEVER_SENT, values)).scalars())
    if ids:
        await _cancel(connection, ids, "", ["cancelled before it was sent"] * len(ids), None)
    return len(ids)


async def _cancel(
    connection: AsyncConnection, ids: list[int], code: str, reasons: list[str], kind: EventKind | None
) -> None:
    await connection.execute(_CANCEL, {"ids": ids, "codes": [code] * len(ids), "reasons": reasons})
    if kind is not None:
        told = zip(ids, reasons, strict=True)
        await add_events(connection, [{"job": id_, "kind": kind, "text": why} for id_, why in told])
    await job_afters.forget(connection, ids)
    await job_afters.settle(connection, ids)


async def _standing(
    connection: AsyncConnection, lease: Lease, ids: Sequence[int]
) -> dict[int, Row[*tuple[Any, ...]]]:
    """Locked in the order of ids, as everybody does: so nobody waits for somebody who waits for them."""
    rows = await connection.execute(_STANDING, {"cluster": lease.cluster, "ids": list(ids)})
    return {row.id: row for row in rows}


def _order(row: Row[*tuple[Any, ...]], specs: dict[str, Any]) -> ToSend:
    if row.spec not in specs:
        specs[row.spec] = job_specs.decoded(row.spec)
    return ToSend(
        id=JobId(row.id),
        submission=row.submission,
        spec=specs[row.spec],
        user=UserName(row.user_name),
        team=TeamName(row.team),
        priority=PriorityName(row.priority),
        pool=PoolName(row.pool),
        slice=SliceName(row.slice) if row.slice else None,
        engine_name=engine_name(row.mark, JobId(row.id), row.submission, row.name),
        array=None if row.array_first is None else JobId(row.array_first),
        array_index=row.array_index,
        attempts=row.attempts,
        wish=Wish(row.wish),
        sending_until=row.sending_until,
    )


def _never(row: Row[*tuple[Any, ...]]) -> str:
    if row.state is None:
        return f"it comes after {job_word(row.after)}, which does not exist"
    return f"it comes after {job_word(row.after)}, which did not end as it should: {row.state}"


def _words(error: FairwayError) -> str:
    return kept(f"{error.code}: {error.message}")
