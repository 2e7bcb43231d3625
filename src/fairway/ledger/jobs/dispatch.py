"""Read the jobs to send to an engine and the open requests of users; record what was sent or refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import LedgerStore
from fairway.ledger.jobs.submit import (
    add_events,
    decode_spec,
    release_ready,
    remove_dependencies,
    settle_dependencies,
)
from fairway.ledger.leases import FencedWriter
from fairway.ledger.records.fleet import Lease
from fairway.ledger.records.jobs import DesiredState, EventKind, PendingAction, PendingSubmit
from fairway.ledger.schema.jobs import OPEN_JOBS_SQL
from fairway.ledger.schema.tables import NONE
from fairway.ledger.sql_values import AnyRow, arrays, sanitize
from fairway.model.errors import FairwayError
from fairway.model.job import EngineId, JobId, JobSpec, JobState, engine_name, format_job_id
from fairway.model.names import NodeName, PoolName, PriorityName, SliceName, TeamName, UserName

GIVEN_UP_SECONDS: Final = 60
"""Seconds after its last possible arrival when a cancelled order is considered never sent."""


ORDER_COLUMNS: Final = """
    job.id, job.submission, job.name, job.array_first, job.array_index, job.attempts, job.wish,
    job.sending_until, job_class.user_name, job_class.team, job_class.priority, job_class.pool,
    job_class.slice, job_spec.spec, ledger_mark.mark,
    CASE WHEN job.submission > 1 THEN (
        SELECT array_agg(DISTINCT node ORDER BY node) FROM spared_attempt
        WHERE spared_attempt.job = job.id
    ) END AS avoid
"""
"""The columns that `pending_submit` converts, of the tables of `ORDER_TABLES`."""
ORDER_TABLES: Final = """
    job
    JOIN job_class ON job_class.id = job.class
    JOIN job_spec ON job_spec.job = COALESCE(job.array_first, job.id)
    CROSS JOIN ledger_mark
"""
_ORDER: Final = f"SELECT {ORDER_COLUMNS} FROM {ORDER_TABLES}"  # noqa: S608

# The ids are selected first, alone, so that nothing but the index of due jobs is scanned.
_PENDING_SUBMITS = text(f"""
    {_ORDER}
    JOIN (
        SELECT id FROM job
        WHERE cluster = :cluster AND state = 'queued' AND NOT has_after AND not_before <= now()
            AND wish <> 'cancel'
        ORDER BY not_before, id LIMIT :limit
    ) AS due ON due.id = job.id
    ORDER BY job.not_before, job.id
""")  # noqa: S608

_READY_NODES = text("""
    SELECT count(DISTINCT node.name) FROM device
    JOIN node ON node.cluster = device.cluster AND node.name = device.node
    WHERE device.cluster = :cluster AND device.pool = :pool AND device.slice = :slice
        AND device.total - device.unhealthy >= :gpus AND node.health = 'ready'
        AND NOT node.name = ANY(CAST(:avoid AS text[]))
""")

_ONE = text(f"{_ORDER} WHERE job.id = :id AND job.submission > 0")

_PENDING_ACTIONS = text("""
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

# In id order, to avoid deadlocks.
_LOCK = """
    SELECT id, state, wish, submission, engine_id, attempts FROM job
    WHERE cluster = :cluster AND id = ANY(CAST(:ids AS bigint[]))
    ORDER BY id FOR UPDATE
"""

_BEGIN = text(f"""
    WITH locked AS ({_LOCK})
    UPDATE job SET sending_until = now() + make_interval(secs => :seconds) FROM locked
    WHERE job.id = locked.id AND job.state = 'queued' AND job.engine_id IS NULL AND job.wish <> 'cancel'
    RETURNING job.id
""")  # noqa: S608

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

_LINK: Final = text("""
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

_REVERT_REQUEST = text(f"""
    UPDATE job SET asked = false, wish = CASE WHEN state = 'held' THEN 'hold' ELSE 'run' END
    WHERE cluster = :cluster AND id = ANY(CAST(:ids AS bigint[])) AND asked AND state IN ({OPEN_JOBS_SQL})
    RETURNING id
""")  # noqa: S608

_UNSATISFIABLE = text("""
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


class DispatchStore(LedgerStore):
    """Reads the jobs to send to an engine, and the requests to carry out there."""

    async def pending_submits(self, cluster: str, limit: int) -> tuple[PendingSubmit, ...]:
        """Return the jobs that are due to be sent, longest waiting first."""
        async with self._connections.transaction() as connection:
            await release_ready(connection, cluster)
            values = {"cluster": cluster, "limit": max(1, limit)}
            rows = (await connection.execute(_PENDING_SUBMITS, values)).all()
            decode = cache(decode_spec)  # tasks of one array are decoded once
            jobs = [pending_submit(row, decode(row.spec)) for row in rows]
            return tuple([await _with_other_nodes(connection, cluster, job) for job in jobs])

    async def pending_actions(self, cluster: str, limit: int) -> tuple[PendingAction, ...]:
        """Return engine jobs that are not yet in the state users requested."""
        return tuple(
            PendingAction(JobId(row.id), EngineId(row.engine_id), DesiredState(row.wish), JobState(row.state))
            for row in await self._fetch(_PENDING_ACTIONS, {"cluster": cluster, "limit": max(1, limit)})
        )

    async def order_of(self, number: JobId) -> PendingSubmit | None:
        """Return a job's order as it was, or will be, sent. Returns None if it is native or unknown."""
        row = await self._fetch_first(_ONE, {"id": number})
        return None if row is None else pending_submit(row, decode_spec(row.spec))

    async def open_engine_ids(self, cluster: str, sent_before_seconds: float = 15) -> frozenset[EngineId]:
        """Return open engine jobs, as far as the ledger knows, that were sent longer ago than that."""
        values = {"cluster": cluster, "seconds": float(sent_before_seconds)}
        return frozenset(EngineId(row.engine_id) for row in await self._fetch(_OPEN_IDS, values))


class DispatchWriter(FencedWriter):
    """Writes what was sent to the lease's cluster."""

    async def begin(self, numbers: Sequence[JobId], seconds: float) -> frozenset[JobId]:
        """Record, before sending, that these jobs are being sent and may arrive within `seconds`.

        Returns those that are still to be sent: jobs cancelled or held meanwhile are not among them.
        """
        values = {"cluster": self._lease.cluster, "ids": list(numbers), "seconds": float(seconds)}
        return frozenset(JobId(row.id) for row in await self._connection.execute(_BEGIN, values))

    async def record_sent(self, sent: Sequence[tuple[JobId, int, EngineId]]) -> None:
        """Record created engine jobs: job, submission, engine id. Idempotent."""
        if not sent:
            return
        rows = await self._lock([job for job, _, _ in sent])
        values = {"cluster": self._lease.cluster, "engine_ids": [engine_id for _, _, engine_id in sent]}
        linked = set((await self._connection.execute(_LINKED, values)).scalars())
        created: dict[int, EngineId] = {}
        links: list[tuple[EngineId, int, int, int, bool]] = []
        for job, submission, engine_id in sent:
            row = rows.get(job)
            if row is None or engine_id in linked:
                continue  # the mirror has stored it already
            linked.add(engine_id)
            # A job that was cancelled or refused before has an engine job all the same: it is followed too.
            double = row.submission != submission or row.engine_id is not None or job in created
            if not double:
                created[job] = engine_id
            links.append((engine_id, job, submission, row.attempts, double))
        await self._connection.execute(_SENT, arrays(list(created.items()), "ids", "engine_ids"))
        await link(self._connection, self._lease, links)
        await add_events(
            self._connection, [double_event(job, id_) for id_, job, _, _, double in links if double]
        )

    async def record_refused(self, refused: Sequence[tuple[JobId, int, FairwayError]]) -> list[JobId]:
        """Record jobs the engine refused: job, submission, reason. Returns those that ended by it."""
        await self._lock([job for job, _, _ in refused])
        rows = [(job, submission, error.code, sanitize(error.message)) for job, submission, error in refused]
        values = arrays(rows, "ids", "submissions", "codes", "reasons") | {"cluster": self._lease.cluster}
        changed = set((await self._connection.execute(_REFUSED, values)).scalars())
        await self._add_refusals([(job, error) for job, _, error in refused if job in changed])
        await settle_dependencies(self._connection, sorted(changed))
        return [JobId(id_) for id_ in sorted(changed)]

    async def record_request_refused(self, refused: Sequence[tuple[JobId, FairwayError]]) -> None:
        """Record requests that the engine refused; they are not sent again."""
        await self._lock([job for job, _ in refused])
        values = {"cluster": self._lease.cluster, "ids": [job for job, _ in refused]}
        changed = set((await self._connection.execute(_REVERT_REQUEST, values)).scalars())
        await self._add_refusals([(job, error) for job, error in refused if job in changed])

    async def cancel_unsatisfiable(self, limit: int = 1000) -> list[JobId]:
        """Cancel jobs whose dependencies can no longer be met, and cancelled ones that never arrived.

        The latter were cancelled while they were being sent. Returns those that were cancelled.
        """
        cluster = {"cluster": self._lease.cluster}
        values = cluster | {"seconds": GIVEN_UP_SECONDS, "limit": limit}
        never_sent = list((await self._connection.execute(_NEVER_SENT, values)).scalars())
        if never_sent:
            await self._cancel(dict.fromkeys(never_sent, "cancelled before it was sent"), "", None)
        ended = [JobId(id_) for id_ in never_sent]
        # Other jobs may depend on those cancelled here: a chain of dependencies ends one job at a time.
        while len(ended) < limit:
            rows = await self._connection.execute(_UNSATISFIABLE, cluster | {"limit": limit - len(ended)})
            reasons = {row.id: _dependency_reason(row) for row in rows}
            if not reasons:
                break
            await self._cancel(reasons, "DependencyFailed", EventKind.NOT_STARTED)
            ended += map(JobId, reasons)
        return ended

    async def _lock(self, ids: Sequence[int]) -> dict[int, AnyRow]:
        values = {"cluster": self._lease.cluster, "ids": list(ids)}
        return {row.id: row for row in await self._connection.execute(text(_LOCK), values)}

    async def _add_refusals(self, refused: Sequence[tuple[JobId, FairwayError]]) -> None:
        events: list[dict[str, object]] = [
            {"job": job, "kind": EventKind.REFUSED, "text": sanitize(f"{error.code}: {error.message}")}
            for job, error in refused
        ]
        await add_events(self._connection, events)

    async def _cancel(self, reasons: dict[int, str], code: str, kind: EventKind | None) -> None:
        rows = [(id_, code, reason) for id_, reason in reasons.items()]
        await self._connection.execute(_CANCEL, arrays(rows, "ids", "codes", "reasons"))
        if kind is not None:
            events = [{"job": id_, "kind": kind, "text": reason} for id_, reason in reasons.items()]
            await add_events(self._connection, events)
        await remove_dependencies(self._connection, list(reasons))
        await settle_dependencies(self._connection, list(reasons))


async def link(
    connection: AsyncConnection, lease: Lease, links: Sequence[tuple[EngineId, int, int, int, bool]]
) -> None:
    """Store which job an engine job belongs to: engine id, job, submission, attempts before, is a double."""
    if links:
        values = arrays(links, "engine_ids", "jobs", "submissions", "befores", "doubles")
        await connection.execute(_LINK, values | {"cluster": lease.cluster})


async def _with_other_nodes(connection: AsyncConnection, cluster: str, job: PendingSubmit) -> PendingSubmit:
    """Return a job that avoids no node if it could not start elsewhere: late is better than never."""
    if not job.avoid:
        return job
    values = {
        "cluster": cluster,
        "pool": job.pool,
        "slice": job.slice or NONE,
        "gpus": job.spec.gpus.count,
        "avoid": list(job.avoid),
    }
    ready: int = (await connection.execute(_READY_NODES, values)).scalar_one()
    return job if ready >= job.spec.nodes else replace(job, avoid=())


def double_event(job: int, engine_id: str) -> dict[str, object]:
    """Return the timeline event for a second engine job."""
    return {"job": job, "kind": EventKind.DOUBLE, "text": f"{engine_id} is a second engine job of it"}


def pending_submit(row: AnyRow, spec: JobSpec) -> PendingSubmit:
    """Convert a row of `ORDER_COLUMNS` to a PendingSubmit."""
    return PendingSubmit(
        id=JobId(row.id),
        submission=row.submission,
        spec=spec,
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
        avoid=tuple(NodeName(name) for name in row.avoid or ()),
    )


def _dependency_reason(row: AnyRow) -> str:
    if row.state is None:
        return f"it comes after {format_job_id(row.after)}, which does not exist"
    return f"it comes after {format_job_id(row.after)}, which did not end as it should: {row.state}"
