"""Writes a whole past at once, into a ledger that has none: for the demo, and for measurements.

Jobs and attempts are copied in; what follows from them (usage and its sums, when ids were given) is made by
the same statements that make it of jobs which come one by one. Only an empty ledger takes a past: what was
really kept is never mixed with what was made up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from psycopg import AsyncConnection as Raw
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import capacity, job_specs, metering, partitions
from fairway.ledger.connection import Connections
from fairway.ledger.errors import LedgerNotEmpty
from fairway.ledger.job_classes import JobClass, numbers
from fairway.ledger.job_records import EventKind, Wish
from fairway.ledger.ledger import Ledger
from fairway.ledger.metering import Hours
from fairway.ledger.records import Lease
from fairway.model.job import Ending, JobSpec, JobState
from fairway.model.names import ClusterName
from fairway.policy.shelves import Closed, Known, Turn

SECONDS: Final = 120.0
"""How long it may take in all."""
BATCH: Final = 8000
"""Jobs that are metered in one statement."""

_LIMIT = text(f"SET LOCAL statement_timeout = '{SECONDS:g} s'")
# Nobody may add one meanwhile.
_LOCK = text("LOCK TABLE job IN EXCLUSIVE MODE")
_ANY = text("SELECT EXISTS (SELECT FROM job) OR EXISTS (SELECT FROM usage_day)")
_NEXT_ID = text("SELECT setval(pg_get_serial_sequence('job', 'id'), (SELECT max(id) FROM job))")
_CLOCK = text("""
    INSERT INTO job_clock (minute, job)
    SELECT date_trunc('minute', submitted_at), min(id) FROM job GROUP BY 1
""")
_QUEUE = text("""
    INSERT INTO to_meter (cluster, job) SELECT cluster, id FROM job WHERE attempts > 0 ORDER BY id
""")
_ANALYZE = text(
    "ANALYZE job, job_class, job_spec, engine_job, attempt, job_event, job_clock, metered, usage, usage_hour,"
    " usage_day, capacity, capacity_hour, capacity_day"
)

Tell = Callable[[float], None]
"""Hears which part is done."""


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """One run of a job. Seconds since 1970."""

    started: float
    ended: float
    ending: Ending
    nodes: tuple[str, ...]
    exit_code: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that is over. Its id is its place: the first of a past has 1."""

    kind: JobClass
    name: str
    state: JobState
    gpus: int
    nodes: int
    submitted: float
    ended: float
    engine_id: str
    attempts: tuple[PastAttempt, ...] = ()
    exit_code: int | None = None
    time_seconds: int | None = None
    reason: str = ""
    spec: JobSpec | None = None
    """Of the first task of an array; None: a native job, or a further task."""
    why_there: str = ""
    array_first: int | None = None
    array_index: int | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """What a ledger shall know of the time before it."""

    jobs: Sequence[PastJob]
    """In the order in which they were submitted."""
    closed: Sequence[tuple[str, Closed]]
    """What each cluster's pools had, stretch by stretch."""
    now: Sequence[tuple[str, Known]]
    hours: Hours
    """Of all of it."""
    upto: int


async def backfill(ledger: Ledger, past: Past, tell: Tell = lambda _part: None) -> None:
    """Keep a made-up past. Raises LedgerNotEmpty, having changed nothing, where there are jobs already."""
    await _write(ledger._connections, past, tell)


async def _write(connections: Connections, past: Past, tell: Tell) -> None:
    await partitions.ensure(connections, past.hours.starts)
    async with connections.transaction(seconds=SECONDS) as connection:
        await connection.execute(_LIMIT)
        await connection.execute(_LOCK)
        if (await connection.execute(_ANY)).scalar_one():
            raise LedgerNotEmpty(
                "LedgerNotEmpty",
                "this ledger has jobs: a made-up past is not mixed with them",
                "use an empty database",
            )
        known = await numbers(connection, {job.kind for job in past.jobs})
        await _copy_jobs(connection, past.jobs, known)
        tell(0.4)
        if past.jobs:
            await connection.execute(_NEXT_ID)
            await connection.execute(_CLOCK)
            await connection.execute(_QUEUE)
        await _meter(connection, past, tell)
        await _keep_capacity(connection, past)
    async with connections.single(seconds=SECONDS) as connection:
        await connection.execute(_ANALYZE)  # lest the first pages are planned as if there were nothing


async def _copy_jobs(
    connection: AsyncConnection, jobs: Sequence[PastJob], classes: dict[JobClass, int]
) -> None:
    raw = await _raw(connection)
    placed = list(enumerate(jobs, 1))
    await _copy(raw, "job", _JOB, (_job(id_, job, classes[job.kind]) for id_, job in placed))
    specs = (
        (id_, job_specs.encoded(job.spec), job.why_there, job.kind.user) for id_, job in placed if job.spec
    )
    await _copy(raw, "job_spec", ("job", "spec", "why_there", "submitted_by"), specs)
    links = ((job.kind.cluster, job.engine_id, id_, 0 if job.kind.native else 1) for id_, job in placed)
    await _copy(raw, "engine_job", ("cluster", "engine_id", "job", "submission"), links)
    attempts = (row for id_, job in placed for row in _attempts(id_, job))
    await _copy(raw, "attempt", _ATTEMPT, attempts)
    cancelled = (
        (id_, _moment(job.ended), EventKind.CANCELLED.value, job.kind.user)
        for id_, job in placed
        if job.state is JobState.CANCELLED and not job.kind.native
    )
    await _copy(raw, "job_event", ("job", "at", "kind", "by_whom"), cancelled)


_JOB: Final = (
    "id",
    "class",
    "cluster",
    "name",
    "state",
    "wish",
    "reason",
    "engine_id",
    "array_first",
    "array_index",
    "gpus",
    "nodes",
    "devices",
    "submission",
    "failures",
    "attempts",
    "submitted_at",
    "started_at",
    "ended_at",
    "exit_code",
    "time_seconds",
    "not_before",
    "sent_at",
)
_ATTEMPT: Final = (
    "job",
    "number",
    "engine_id",
    "started_at",
    "ended_at",
    "ending",
    "exit_code",
    "devices",
    "nodes",
    "reason",
)


def _job(id_: int, job: PastJob, class_: int) -> tuple[object, ...]:
    native = job.kind.native
    submitted = _moment(job.submitted)
    ours_cancelled = job.state is JobState.CANCELLED and not native
    return (
        id_,
        class_,
        job.kind.cluster,
        job.name,
        job.state.value,
        (Wish.CANCEL if ours_cancelled else Wish.RUN).value,
        job.reason,
        job.engine_id,
        job.array_first,
        job.array_index,
        job.gpus,
        job.nodes,
        job.gpus * job.nodes,
        0 if native else 1,
        1 if job.state in (JobState.FAILED, JobState.TIMED_OUT) and not native else 0,
        len(job.attempts),
        submitted,
        _moment(job.attempts[-1].started) if job.attempts else None,
        _moment(job.ended),
        job.exit_code,
        job.time_seconds,
        submitted,
        None if native else submitted,
    )


def _attempts(id_: int, job: PastJob) -> Iterable[tuple[object, ...]]:
    for number, one in enumerate(job.attempts, 1):
        yield (
            id_,
            number,
            job.engine_id,
            _moment(one.started),
            _moment(one.ended),
            one.ending.value,
            one.exit_code,
            job.gpus * job.nodes,
            list(one.nodes),
            one.reason,
        )


async def _meter(connection: AsyncConnection, past: Past, tell: Tell) -> None:
    """As the meter does, with the same statement."""
    done = 0
    for cluster in sorted({job.kind.cluster for job in past.jobs}):
        lease = _nobodys(cluster)
        while (batch := await metering.meter(connection, lease, past.hours, BATCH)).taken:
            done += batch.taken
            tell(0.4 + 0.5 * done / len(past.jobs))


async def _keep_capacity(connection: AsyncConnection, past: Past) -> None:
    for cluster in sorted({cluster for cluster, _ in (*past.closed, *past.now)}):
        closed = tuple(one for where, one in past.closed if where == cluster)
        now = tuple(one for where, one in past.now if where == cluster)
        await capacity.keep(connection, _nobodys(cluster), Turn(closed, now, ()), past.hours)


def _nobodys(cluster: str) -> Lease:
    """No loop runs on an empty ledger's past: nobody can be fenced off."""
    return Lease("backfill", ClusterName(cluster), "backfill", 0, SECONDS, datetime.now(UTC))


async def _raw(connection: AsyncConnection) -> Raw[Any]:
    """The driver's own connection, in the same transaction: SQLAlchemy has no word for COPY."""
    found = (await connection.get_raw_connection()).driver_connection
    if not isinstance(found, Raw):
        raise TypeError("the ledger speaks psycopg")
    return found


async def _copy(
    raw: Raw[Any], table: str, columns: Sequence[str], rows: Iterable[tuple[object, ...]]
) -> None:
    names = ", ".join(f'"{name}"' for name in columns)
    async with raw.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
        for row in rows:
            await copy.write_row(row)


def _moment(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)
