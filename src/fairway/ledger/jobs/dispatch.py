"""Jobs on their way to an engine: which are due, sent or refused, and which requests are still open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.fleet.observations import kept
from fairway.ledger.jobs import dependencies
from fairway.ledger.jobs import rows as job_rows
from fairway.ledger.jobs.submit import add_events
from fairway.ledger.records.fleet import Lease
from fairway.ledger.records.jobs import DesiredState, EventKind, PendingAction, PendingSubmit
from fairway.ledger.schema.jobs import OPEN_JOBS_SQL
from fairway.model.errors import FairwayError
from fairway.model.job import EngineId, JobId, JobState, engine_name, format_job_id
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName

GIVEN_UP_SECONDS: Final = 60
"""Seconds after its last possible arrival when a cancelled order is considered never sent."""


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
    WHERE cluster = :cluster AND state IN ({OPEN_JOBS_SQL}) AND engine_id IS NOT NULL
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
        code = '', reason = '', reason_code = '', ended_at = NULL, asked = job.asked OR job.wish <> 'run'
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
    UPDATE job SET state = 'refused', code = refused.code, reason = refused.reason, reason_code = '',
        ended_at = now(), sending_until = NULL, asked = false
    FROM unnest(
        CAST(:ids AS bigint[]), CAST(:submissions AS int[]), CAST(:codes AS text[]), CAST(:reasons AS text[])
    ) AS refused (id, submission, code, reason)
    WHERE job.cluster = :cluster AND job.id = refused.id AND job.submission = refused.submission
        AND job.state = 'queued' AND job.engine_id IS NULL
    RETURNING job.id
""")

_UNWISH = text(f"""
    UPDATE job SET asked = false, wish = CASE WHEN state = 'held' THEN 'hold' ELSE 'run' END
    WHERE cluster = :cluster AND id = ANY(CAST(:ids AS bigint[])) AND asked AND state IN ({OPEN_JOBS_SQL})
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
    UPDATE job SET state = 'cancelled', code = ended.code, reason = ended.reason, reason_code = '',
        ended_at = now(), asked = false, sending_until = NULL, has_after = false
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


class DispatchStore:
    """Reads the jobs to send to an engine, and the requests to carry out there."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def to_send(self, cluster: str, limit: int) -> tuple[PendingSubmit, ...]:
        """Return the jobs that are due to be sent, longest waiting first."""
        async with self._connections.transaction() as connection:
            await dependencies.free(connection, cluster)
            rows = (await connection.execute(_TO_SEND, {"cluster": cluster, "limit": max(1, limit)})).all()
        specs: dict[str, Any] = {}  # tasks of one array are decoded once
        return tuple(_order(row, specs) for row in rows)

    async def to_do(self, cluster: str, limit: int) -> tuple[PendingAction, ...]:
        """Return engine jobs that are not yet in the state users requested."""
        async with self._connections.single() as connection:
            rows = (await connection.execute(_TO_DO, {"cluster": cluster, "limit": max(1, limit)})).all()
        return tuple(
            PendingAction(JobId(row.id), EngineId(row.engine_id), DesiredState(row.wish), JobState(row.state))
            for row in rows
        )

    async def order_of(self, number: JobId) -> PendingSubmit | None:
        """Return a job's order as it was, or will be, sent. Returns None if it is native or unknown."""
        async with self._connections.single() as connection:
            row = (await connection.execute(_ONE, {"id": number})).first()
        return None if row is None else _order(row, {})

    async def open_engine_ids(self, cluster: str, sent_before_seconds: float = 15) -> frozenset[EngineId]:
        """Return open engine jobs, as far as the ledger knows, that were sent longer ago than that."""
        async with self._connections.single() as connection:
            found = await connection.execute(
                _OPEN_IDS, {"cluster": cluster, "seconds": float(sent_before_seconds)}
            )
            return frozenset(EngineId(row.engine_id) for row in found)


class DispatchWriter:
    """Writes what was sent to the lease's cluster."""

    def __init__(self, connection: AsyncConnection, lease: Lease) -> None:
        self._connection = connection
        self._lease = lease

    async def begin(self, numbers: Sequence[JobId], seconds: float) -> frozenset[JobId]:
        """Record, before sending, that these jobs are being sent and may arrive within `seconds`.

        Returns those that are still to be sent: jobs cancelled or held meanwhile are not among them.
        """
        values = {"cluster": self._lease.cluster, "ids": list(numbers), "seconds": float(seconds)}
        return frozenset(JobId(row.id) for row in await self._connection.execute(_BEGIN, values))

    async def keep_sent(self, sent: Sequence[tuple[JobId, int, EngineId]]) -> None:
        """Record created engine jobs: job, submission, engine id. Idempotent."""
        if not sent:
            return
        standing = await _standing(self._connection, self._lease, [job for job, _, _ in sent])
        values = {"cluster": self._lease.cluster, "engine_ids": [engine_id for _, _, engine_id in sent]}
        linked = set((await self._connection.execute(_LINKED, values)).scalars())
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
        await self._connection.execute(_SENT, {"ids": list(made), "engine_ids": list(made.values())})
        await link(self._connection, self._lease, links)
        await add_events(
            self._connection, [double_event(job, id_) for id_, job, _, _, double in links if double]
        )

    async def keep_refused(self, refused: Sequence[tuple[JobId, int, FairwayError]]) -> None:
        """Record jobs the engine refused: job, submission, reason."""
        await _standing(self._connection, self._lease, [job for job, _, _ in refused])
        values = {
            "cluster": self._lease.cluster,
            "ids": [job for job, _, _ in refused],
            "submissions": [submission for _, submission, _ in refused],
            "codes": [error.code for _, _, error in refused],
            "reasons": [kept(error.message) for _, _, error in refused],
        }
        changed = set((await self._connection.execute(_REFUSED, values)).scalars())
        events: list[dict[str, object]] = [
            {"job": job, "kind": EventKind.REFUSED, "text": _words(error)}
            for job, _, error in refused
            if job in changed
        ]
        await add_events(self._connection, events)
        await dependencies.settle(self._connection, sorted(changed))

    async def keep_wish_refused(self, refused: Sequence[tuple[JobId, FairwayError]]) -> None:
        """Record requests that the engine refused; they are not sent again."""
        await _standing(self._connection, self._lease, [job for job, _ in refused])
        values = {"cluster": self._lease.cluster, "ids": [job for job, _ in refused]}
        changed = set((await self._connection.execute(_UNWISH, values)).scalars())
        events: list[dict[str, object]] = [
            {"job": job, "kind": EventKind.REFUSED, "text": _words(error)}
            for job, error in refused
            if job in changed
        ]
        await add_events(self._connection, events)

    async def settle_after(self, limit: int = 1000) -> int:
        """Cancel jobs whose dependencies can no longer be met, and cancelled ones that never arrived.

        The latter were cancelled while they were being sent. Returns how many were cancelled.
        """
        ended = await _give_up_cancelled(self._connection, self._lease, limit)
        # What is cancelled here may be what others come after: a chain ends link by link.
        while ended < limit:
            values = {"cluster": self._lease.cluster, "limit": limit - ended}
            broken = {row.id: row for row in await self._connection.execute(_BROKEN, values)}
            if not broken:
                break
            reasons = [_never(row) for row in broken.values()]
            await _cancel(self._connection, list(broken), "DependencyFailed", reasons, EventKind.NOT_STARTED)
            ended += len(broken)
        return ended


async def link(
    connection: AsyncConnection, lease: Lease, links: Sequence[tuple[EngineId, int, int, int, bool]]
) -> None:
    """Store which job an engine job belongs to: engine id, job, submission, attempts before, is a double."""
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
    """Return the timeline event for a second engine job."""
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
    await dependencies.forget(connection, ids)
    await dependencies.settle(connection, ids)


async def _standing(
    connection: AsyncConnection, lease: Lease, ids: Sequence[int]
) -> dict[int, Row[*tuple[Any, ...]]]:
    """Lock rows in id order to avoid deadlocks."""
    rows = await connection.execute(_STANDING, {"cluster": lease.cluster, "ids": list(ids)})
    return {row.id: row for row in rows}


def _order(row: Row[*tuple[Any, ...]], specs: dict[str, Any]) -> PendingSubmit:
    if row.spec not in specs:
        specs[row.spec] = job_rows.decoded(row.spec)
    return PendingSubmit(
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
        desired_state=DesiredState(row.wish),
        sending_until=row.sending_until,
    )


def _never(row: Row[*tuple[Any, ...]]) -> str:
    if row.state is None:
        return f"it comes after {format_job_id(row.after)}, which does not exist"
    return f"it comes after {format_job_id(row.after)}, which did not end as it should: {row.state}"


def _words(error: FairwayError) -> str:
    return kept(f"{error.code}: {error.message}")
