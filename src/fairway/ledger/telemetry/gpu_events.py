"""Read and write what went wrong with GPUs: one row for an event, however long it lasts.

The health loop and alerts both report events, so a report is compared with the stored rows under a lock of
the cluster's events. An event is joined to the job that held the GPU when it began.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.schema.tables import sql_list
from fairway.ledger.sql_values import AnyRow, arrays, moment, page_limit, sanitize
from fairway.model.gpu_health import (
    HELD_BEFORE_SECONDS,
    SAME_EVENT_SECONDS,
    EventClass,
    GpuSighting,
    class_of,
)
from fairway.model.job import JobId
from fairway.model.names import ClusterName, NodeName, TeamName, UserName
from fairway.policy.retry import HardwareFault, Suspect

KEEP_EVENTS_SECONDS: Final = 400 * 86_400
"""More than a year, so that a GPU that fails each winter is seen."""
TOUCH_SECONDS: Final = 60
"""An event that lasts is written again no more often than this."""
MAX_REPORTED: Final = 20_000
"""Events of one report: beyond it, it is not the GPUs that are broken."""
_REFINED_FOR_SECONDS: Final = 120.0
_MAX_DETAIL: Final = 300
_HELD_BEFORE: Final = timedelta(seconds=HELD_BEFORE_SECONDS)

_BAD: Final = sql_list((EventClass.HARDWARE, EventClass.RESET))

_COLUMNS: Final = """
    gpu_event.cluster, gpu_event.node, gpu_event.gpu, gpu_event.code, gpu_event.at, gpu_event.last_seen,
    gpu_event.class AS class_name, gpu_event.uuid, gpu_event.serial, gpu_event.model, gpu_event.detail,
    gpu_event.job, gpu_event.attempt, gpu_event.onset_known
"""

_LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended('gpu_event/' || :cluster, 0))")
_OPEN = text("""
    SELECT node, gpu, code, at, last_seen, onset_known,
        onset_known OR recorded_at < now() - make_interval(secs => :seconds) AS settled
    FROM gpu_event WHERE cluster = :cluster AND last_seen >= :since
""")
_TOUCH = text("""
    UPDATE gpu_event SET last_seen = greatest(last_seen, row.seen_at),
        detail = CASE WHEN row.detail = '' THEN gpu_event.detail ELSE row.detail END
    FROM unnest(
        CAST(:node AS text[]), CAST(:gpu AS text[]), CAST(:code AS text[]), CAST(:at AS timestamptz[]),
        CAST(:seen_at AS timestamptz[]), CAST(:detail AS text[])
    ) AS row (node, gpu, code, at, seen_at, detail)
    WHERE gpu_event.cluster = :cluster AND gpu_event.node = row.node AND gpu_event.gpu = row.gpu
        AND gpu_event.code = row.code AND gpu_event.at = row.at
""")
_ADD = text(f"""
    INSERT INTO gpu_event (
        cluster, node, gpu, code, at, last_seen, class, uuid, serial, model, detail, job, attempt, onset_known
    )
    SELECT :cluster, * FROM unnest(
        CAST(:node AS text[]), CAST(:gpu AS text[]), CAST(:code AS text[]), CAST(:at AS timestamptz[]),
        CAST(:seen_at AS timestamptz[]), CAST(:class AS text[]), CAST(:uuid AS text[]),
        CAST(:serial AS text[]), CAST(:model AS text[]), CAST(:detail AS text[]), CAST(:job AS bigint[]),
        CAST(:attempt AS int[]), CAST(:onset_known AS bool[])
    )
    ON CONFLICT DO NOTHING
    RETURNING {_COLUMNS}
""")  # noqa: S608
_HOLDERS = text("""
    WITH event AS (
        SELECT * FROM unnest(
            CAST(:number AS int[]), CAST(:node AS text[]), CAST(:gpu AS text[]), CAST(:at AS timestamptz[])
        ) AS event (number, node, gpu, at)
    ), candidate AS (
        SELECT DISTINCT event.number, attempt_gpu.job, attempt_gpu.attempt FROM event
        JOIN attempt_gpu ON attempt_gpu.cluster = :cluster
            AND (attempt_gpu.ended_at IS NULL OR attempt_gpu.ended_at >= event.at - CAST(:before AS interval))
            AND (
                attempt_gpu.node = event.node AND event.gpu = ANY(CAST(attempt_gpu.gpus AS text[]))
                OR EXISTS (
                    SELECT FROM unnest(CAST(:named AS int[]), CAST(:holders AS text[]))
                        AS word (number, holder)
                    WHERE word.number = event.number AND word.holder = ANY(attempt_gpu.holders)
                )
            )
    )
    SELECT event.number, attempt.job, attempt.number AS attempt, attempt.ended_at, event.at
    FROM event JOIN candidate ON candidate.number = event.number
    JOIN attempt ON attempt.job = candidate.job AND attempt.number = candidate.attempt
    WHERE attempt.started_at <= event.at
        AND (attempt.ended_at IS NULL OR attempt.ended_at >= event.at - CAST(:before AS interval))
        AND event.node = ANY(attempt.nodes)
""")
_REFINE = text(f"""
    UPDATE gpu_event SET at = row.at, last_seen = greatest(last_seen, row.seen_at), uuid = row.uuid,
        serial = row.serial, model = row.model, job = row.job, attempt = row.attempt, onset_known = true
    FROM unnest(
        CAST(:node AS text[]), CAST(:gpu AS text[]), CAST(:code AS text[]), CAST(:was_at AS timestamptz[]),
        CAST(:at AS timestamptz[]), CAST(:seen_at AS timestamptz[]), CAST(:uuid AS text[]),
        CAST(:serial AS text[]), CAST(:model AS text[]), CAST(:job AS bigint[]), CAST(:attempt AS int[])
    ) AS row (node, gpu, code, was_at, at, seen_at, uuid, serial, model, job, attempt)
    WHERE gpu_event.cluster = :cluster AND gpu_event.node = row.node AND gpu_event.gpu = row.gpu
        AND gpu_event.code = row.code AND gpu_event.at = row.was_at
    RETURNING {_COLUMNS}
""")  # noqa: S608
_MARK = text("""
    INSERT INTO health_mark (cluster, read_at, settled_to) VALUES (:cluster, :read_at, :settled_to)
    ON CONFLICT (cluster) DO UPDATE SET read_at = excluded.read_at, settled_to = excluded.settled_to
""")
_FORGET = text("""
    DELETE FROM gpu_event WHERE cluster = :cluster AND last_seen < :before
""")
_SETTLED = text("""
    SELECT settled_to FROM health_mark
    WHERE cluster = :cluster AND read_at > now() - make_interval(secs => :seconds)
""")
_FAULTS = text(f"""
    SELECT suspect.job AS suspect, gpu_event.node, gpu_event.gpu, gpu_event.code, gpu_event.at,
        gpu_event.last_seen, gpu_event.job,
        COALESCE(attempt_gpu.gpus, '{{}}') = '{{}}'
            OR gpu_event.gpu = ANY(CAST(attempt_gpu.gpus AS text[])) AS may_hold
    FROM unnest(
        CAST(:job AS bigint[]), CAST(:attempt AS int[]), CAST(:node AS text[]),
        CAST(:started_at AS timestamptz[]), CAST(:ended_at AS timestamptz[])
    ) AS suspect (job, attempt, node, started_at, ended_at)
    JOIN gpu_event ON gpu_event.cluster = :cluster AND gpu_event.node = suspect.node
        AND gpu_event.class IN ({_BAD}) AND gpu_event.last_seen >= suspect.started_at
        AND gpu_event.at <= suspect.ended_at + CAST(:after AS interval)
    LEFT JOIN attempt_gpu ON attempt_gpu.job = suspect.job AND attempt_gpu.attempt = suspect.attempt
        AND attempt_gpu.node = suspect.node
    ORDER BY gpu_event.at, gpu_event.code
""")  # noqa: S608
_SPARED = text("""
    SELECT job, count(DISTINCT attempt) AS attempts FROM spared_attempt
    WHERE job = ANY(CAST(:ids AS bigint[])) GROUP BY job
""")
_SPARE = text("""
    INSERT INTO spared_attempt (job, attempt, node, reason)
    SELECT * FROM unnest(
        CAST(:job AS bigint[]), CAST(:attempt AS int[]), CAST(:node AS text[]), CAST(:reason AS text[])
    ) ON CONFLICT DO NOTHING
""")

_OWNERS = text("""
    SELECT job.id, job.name, job_class.user_name, job_class.team
    FROM job JOIN job_class ON job_class.id = job.class WHERE job.id = ANY(CAST(:jobs AS bigint[]))
""")

_LISTED = text(f"""
    SELECT {_COLUMNS} FROM gpu_event
    WHERE last_seen >= :since AND (CAST(:cluster AS text) IS NULL OR cluster = :cluster)
        AND (CAST(:nodes AS text[]) IS NULL OR node = ANY(CAST(:nodes AS text[])))
        AND (CAST(:uuid AS text) IS NULL OR uuid = :uuid OR serial = :uuid)
    ORDER BY at DESC, cluster, node, gpu, code LIMIT :limit
""")  # noqa: S608
_OF_POOL = text(f"""
    SELECT {_COLUMNS} FROM gpu_event
    WHERE cluster = :cluster AND last_seen >= :since AND class <> 'application'
        AND node IN (SELECT node FROM device WHERE pool = :pool AND cluster = :cluster)
    ORDER BY at DESC, node, gpu, code LIMIT :limit
""")  # noqa: S608
# Of other jobs on the node, only what may have been its own GPU.
_OF_JOB = text(f"""
    SELECT DISTINCT {_COLUMNS}
    FROM attempt JOIN job ON job.id = attempt.job
    JOIN gpu_event ON gpu_event.cluster = job.cluster AND gpu_event.node = ANY(attempt.nodes)
        AND gpu_event.at <= COALESCE(attempt.ended_at, now()) + CAST(:before AS interval)
        AND gpu_event.last_seen >= attempt.started_at
    LEFT JOIN attempt_gpu ON attempt_gpu.job = attempt.job AND attempt_gpu.attempt = attempt.number
        AND attempt_gpu.node = gpu_event.node
    WHERE attempt.job = :job AND (
        gpu_event.job = :job OR gpu_event.job IS NULL AND gpu_event.class IN ({_BAD})
            AND (
                COALESCE(attempt_gpu.gpus, '{{}}') = '{{}}'
                OR gpu_event.gpu = ANY(CAST(attempt_gpu.gpus AS text[]))
            )
    )
    ORDER BY gpu_event.at DESC LIMIT :limit
""")  # noqa: S608
_FAILING = text(f"""
    SELECT uuid, max(serial) AS serial, max(model) AS model, count(*) AS events,
        count(DISTINCT date_trunc('week', at)) AS weeks, min(at) AS first_at, max(last_seen) AS last_seen,
        (array_agg(cluster ORDER BY at DESC))[1] AS cluster, (array_agg(node ORDER BY at DESC))[1] AS node,
        (array_agg(gpu ORDER BY at DESC))[1] AS gpu, (array_agg(code ORDER BY at DESC))[1] AS code,
        count(DISTINCT job) AS jobs
    FROM gpu_event
    WHERE at >= :since AND class IN ({_BAD}) AND (CAST(:cluster AS text) IS NULL OR cluster = :cluster)
    GROUP BY uuid, CASE WHEN uuid = '' THEN cluster || '/' || node || '/' || gpu END
    ORDER BY count(DISTINCT date_trunc('week', at)) DESC, count(*) DESC, max(last_seen) DESC LIMIT :limit
""")  # noqa: S608


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """Something that went wrong with a GPU."""

    cluster: ClusterName
    node: NodeName
    gpu: str
    code: str
    at: datetime
    last_seen: datetime
    class_: EventClass
    uuid: str
    serial: str
    model: str
    detail: str
    job: JobId | None
    """Who held it when it began, as far as that is known."""
    attempt: int | None
    onset_known: bool


@dataclass(frozen=True, slots=True)
class JobOwner:
    """Whose job held a GPU."""

    name: str
    user: UserName
    team: TeamName | None


@dataclass(frozen=True, slots=True)
class FailingGpu:
    """The history of one GPU, wherever it was."""

    uuid: str
    serial: str
    model: str
    cluster: ClusterName
    node: NodeName
    """Where it was at its last event."""
    gpu: str
    code: str
    """Of the last event."""
    events: int
    weeks: int
    """In how many weeks it failed."""
    jobs: int
    first_at: datetime
    last_seen: datetime


class GpuEventStore(LedgerStore):
    """Reads events of GPUs, and writes those that alerts report."""

    async def report(self, cluster: str, sightings: Sequence[GpuSighting]) -> tuple[GpuEvent, ...]:
        """Store what an alert reports. Returns the events that are new."""
        async with self._connections.transaction() as connection:
            return await _record(connection, cluster, sightings)

    async def is_read(self, cluster: str, seconds: float) -> bool:
        """Return whether the health loop has read the cluster's metrics within `seconds`."""
        async with self._connections.single() as connection:
            return await settled_to(connection, cluster, seconds) is not None

    async def holders(self, cluster: str, sightings: Sequence[GpuSighting]) -> dict[int, JobId]:
        """Return the job that held the GPU of each sighting when it began, by its place in the sequence."""
        async with self._connections.single() as connection:
            found = await _holders(connection, cluster, sightings)
        return {number: JobId(job) for number, (job, _) in found.items()}

    async def known(self, cluster: str, now: float) -> frozenset[tuple[str, str, str]]:
        """Return node, GPU and code of the events that still last, and need not be looked at more closely.

        An alert does not tell when an event began: for a while after it, that may still be found out.
        """
        since = moment(now - SAME_EVENT_SECONDS)
        values = {"cluster": cluster, "since": since, "seconds": _REFINED_FOR_SECONDS}
        rows = await self._fetch(_OPEN, values)
        return frozenset((row.node, row.gpu, row.code) for row in rows if row.settled)

    async def listed(
        self,
        since: datetime,
        *,
        cluster: str | None = None,
        nodes: Collection[str] | None = None,
        uuid: str | None = None,
        limit: int = 200,
    ) -> tuple[GpuEvent, ...]:
        """Return the newest events; `uuid` may be a serial number."""
        values = {
            "since": since,
            "cluster": cluster,
            "nodes": None if nodes is None else list(nodes),
            "uuid": uuid,
            "limit": page_limit(limit),
        }
        return tuple(_event(row) for row in await self._fetch(_LISTED, values))

    async def of_pool(
        self, cluster: str, pool: str, since: datetime, limit: int = 20
    ) -> tuple[GpuEvent, ...]:
        """Return the newest events on nodes of a pool that are no program's own fault."""
        values = {"cluster": cluster, "pool": pool, "since": since, "limit": page_limit(limit)}
        return tuple(_event(row) for row in await self._fetch(_OF_POOL, values))

    async def of_job(self, job: JobId, limit: int = 50) -> tuple[GpuEvent, ...]:
        """Return the newest events on GPUs that a job held, or may have held."""
        values = {"job": job, "limit": page_limit(limit), "before": _HELD_BEFORE}
        return tuple(_event(row) for row in await self._fetch(_OF_JOB, values))

    async def failing(
        self, since: datetime, cluster: str | None = None, limit: int = 100
    ) -> tuple[FailingGpu, ...]:
        """Return the GPUs with broken hardware, those that fail in most weeks first."""
        values = {"since": since, "cluster": cluster, "limit": page_limit(limit)}
        return tuple(
            FailingGpu(
                row.uuid,
                row.serial,
                row.model,
                ClusterName(row.cluster),
                NodeName(row.node),
                row.gpu,
                row.code,
                row.events,
                row.weeks,
                row.jobs,
                row.first_at,
                row.last_seen,
            )
            for row in await self._fetch(_FAILING, values)
        )


class GpuEventWriter(FencedWriter):
    """Writes the events of the lease's cluster."""

    async def record(
        self, sightings: Sequence[GpuSighting], *, read_at: float, settled_to: float
    ) -> tuple[GpuEvent, ...]:
        """Store what is wrong at `read_at`, and up to when all is known. Returns the events that are new."""
        cluster = self._lease.cluster
        new = await _record(self._connection, cluster, sightings)
        mark = {"cluster": cluster, "read_at": moment(read_at), "settled_to": moment(settled_to)}
        await self._connection.execute(_MARK, mark)
        old = {"cluster": cluster, "before": moment(read_at - KEEP_EVENTS_SECONDS)}
        await self._connection.execute(_FORGET, old)
        return new

    async def owners(self, events: Sequence[GpuEvent]) -> dict[JobId, JobOwner]:
        """Return the owners of the jobs that held the GPUs of events."""
        jobs = sorted({event.job for event in events if event.job is not None})
        if not jobs:
            return {}
        return {
            JobId(row.id): JobOwner(
                row.name, UserName(row.user_name), TeamName(row.team) if row.team else None
            )
            for row in await self._connection.execute(_OWNERS, {"jobs": jobs})
        }


async def _record(
    connection: AsyncConnection, cluster: str, sightings: Sequence[GpuSighting]
) -> tuple[GpuEvent, ...]:
    seen = list({sighting.key: sighting for sighting in sightings}.values())[:MAX_REPORTED]
    if not seen:
        return ()
    await connection.execute(_LOCK, {"cluster": cluster})
    since = min(sighting.at for sighting in seen) - SAME_EVENT_SECONDS
    last: dict[tuple[str, str, str], AnyRow] = {}
    values = {"cluster": cluster, "since": moment(since), "seconds": _REFINED_FOR_SECONDS}
    for row in await connection.execute(_OPEN, values):
        key = (row.node, row.gpu, row.code)
        if key not in last or last[key].last_seen < row.last_seen:
            last[key] = row
    new: list[GpuSighting] = []
    refined: list[tuple[GpuSighting, datetime]] = []
    touched: list[tuple[object, ...]] = []
    for one in seen:
        known = last.get(one.key)
        if known is None or known.last_seen.timestamp() < one.at - SAME_EVENT_SECONDS:
            new.append(one)
        elif one.onset_known and not known.onset_known:
            refined.append((one, known.at))
        elif known.last_seen.timestamp() < one.seen_at - TOUCH_SECONDS:
            touched.append((*one.key, known.at, moment(one.seen_at), sanitize(one.detail, _MAX_DETAIL)))
    if touched:
        columns = arrays(touched, "node", "gpu", "code", "at", "seen_at", "detail")
        await connection.execute(_TOUCH, columns | {"cluster": cluster})
    better = await _refine(connection, cluster, refined) if refined else ()
    return (*better, *(await _add(connection, cluster, new) if new else ()))


async def _refine(
    connection: AsyncConnection, cluster: str, refined: Sequence[tuple[GpuSighting, datetime]]
) -> tuple[GpuEvent, ...]:
    """Store when events began and who held the GPUs, that were known by an alert only."""
    holders = await _holders(connection, cluster, [one for one, _ in refined])
    rows = [
        (
            *one.key,
            was_at,
            moment(one.at),
            moment(one.seen_at),
            *(sanitize(word, _MAX_DETAIL) for word in (one.uuid, one.serial, one.model)),
            *holders.get(number, (None, None)),
        )
        for number, (one, was_at) in enumerate(refined)
    ]
    names = ("node", "gpu", "code", "was_at", "at", "seen_at", "uuid", "serial", "model", "job", "attempt")
    values = arrays(rows, *names) | {"cluster": cluster}
    return tuple(_event(row) for row in await connection.execute(_REFINE, values))


async def _add(connection: AsyncConnection, cluster: str, new: Sequence[GpuSighting]) -> tuple[GpuEvent, ...]:
    holders = await _holders(connection, cluster, new)
    rows = [
        (
            sanitize(one.node, _MAX_DETAIL),
            sanitize(one.gpu, _MAX_DETAIL),
            one.code,
            moment(one.at),
            moment(max(one.at, one.seen_at)),
            class_of(one.code).value,
            *(sanitize(word, _MAX_DETAIL) for word in (one.uuid, one.serial, one.model, one.detail)),
            *holders.get(number, (None, None)),
            one.onset_known,
        )
        for number, one in enumerate(new)
    ]
    names = ("node", "gpu", "code", "at", "seen_at", "class", "uuid", "serial", "model", "detail")
    values = arrays(rows, *names, "job", "attempt", "onset_known") | {"cluster": cluster}
    return tuple(_event(row) for row in await connection.execute(_ADD, values))


async def _holders(
    connection: AsyncConnection, cluster: str, new: Sequence[GpuSighting]
) -> dict[int, tuple[int, int]]:
    """Return job and attempt that held the GPU of each event; of a GPU that several hold, none."""
    begun = [(n, one.node, one.gpu, moment(one.at)) for n, one in enumerate(new) if one.onset_known]
    if not begun:
        return {}
    named = [(number, holder) for number, one in enumerate(new) for holder in sorted(one.holders)]
    values = arrays(begun, "number", "node", "gpu", "at") | arrays(named, "named", "holders")
    found: dict[int, list[AnyRow]] = {}
    for row in await connection.execute(_HOLDERS, values | {"cluster": cluster, "before": _HELD_BEFORE}):
        found.setdefault(row.number, []).append(row)
    holders: dict[int, tuple[int, int]] = {}
    for number, rows in found.items():
        # One that held it at that very time comes before one that had just ended.
        then = [row for row in rows if row.ended_at is None or row.ended_at >= row.at] or rows
        if len({row.job for row in then}) == 1:
            holders[number] = (then[0].job, then[0].attempt)
    return holders


async def settled_to(connection: AsyncConnection, cluster: str, seconds: float) -> datetime | None:
    """Return up to when a cluster's events are known. None: nobody has read them for `seconds`."""
    row = (await connection.execute(_SETTLED, {"cluster": cluster, "seconds": float(seconds)})).first()
    return None if row is None else row.settled_to


async def faults(
    connection: AsyncConnection, cluster: str, suspects: Sequence[Suspect], after: timedelta
) -> dict[JobId, list[HardwareFault]]:
    """Return the broken hardware on the nodes of attempts that ended, up to `after` their end."""
    rows = [
        (one.job, one.attempt, node, one.started_at, one.ended_at) for one in suspects for node in one.nodes
    ]
    if not rows:
        return {}
    values = arrays(rows, "job", "attempt", "node", "started_at", "ended_at")
    found: dict[JobId, list[HardwareFault]] = {}
    for row in await connection.execute(_FAULTS, values | {"cluster": cluster, "after": after}):
        holder = None if row.job is None else JobId(row.job)
        if row.may_hold:
            fault = HardwareFault(NodeName(row.node), row.gpu, row.code, row.at, row.last_seen, holder)
            found.setdefault(JobId(row.suspect), []).append(fault)
    return found


async def spared(connection: AsyncConnection, jobs: Collection[int]) -> Mapping[int, int]:
    """Return how many failures of each job used up no retry."""
    rows = await connection.execute(_SPARED, {"ids": list(jobs)})
    return {row.job: row.attempts for row in rows}


async def spare(connection: AsyncConnection, rows: Sequence[tuple[int, int, str, str]]) -> None:
    """Record failures that use up no retry: job, attempt, node to avoid, reason."""
    if rows:
        await connection.execute(_SPARE, arrays(rows, "job", "attempt", "node", "reason"))


def _event(row: AnyRow) -> GpuEvent:
    return GpuEvent(
        ClusterName(row.cluster),
        NodeName(row.node),
        row.gpu,
        row.code,
        row.at,
        row.last_seen,
        EventClass(row.class_name),
        row.uuid,
        row.serial,
        row.model,
        row.detail,
        None if row.job is None else JobId(row.job),
        row.attempt,
        row.onset_known,
    )
