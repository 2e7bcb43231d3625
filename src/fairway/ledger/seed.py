"""Write a whole generated history into an empty ledger: for the demo and for benchmarks.

Jobs and attempts are copied in; what derives from them (usage and its sums, when ids were assigned) is made
by the same statements as for jobs that arrive one by one. Only an empty ledger accepts a history: real
records are never mixed with generated ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

from psycopg import AsyncConnection as Raw
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.cost.budgets import BudgetWriter
from fairway.ledger.errors import LedgerNotEmpty
from fairway.ledger.jobs import rows as job_rows
from fairway.ledger.jobs.rows import JobClass, numbers
from fairway.ledger.ledger import Ledger
from fairway.ledger.policy.applies import encoded_changes
from fairway.ledger.records.costs import StoredBudgetStatus
from fairway.ledger.records.fleet import Lease
from fairway.ledger.records.jobs import DesiredState, EventKind
from fairway.ledger.records.policy import ApplyKind, ApplyState, StoredChange
from fairway.ledger.schema.costs import budget_event
from fairway.ledger.schema.tables import apply, fleet_revision
from fairway.ledger.usage.capacity import CapacityWriter
from fairway.ledger.usage.metering import Hours, MeteringWriter
from fairway.ledger.usage.partitions import PartitionStore
from fairway.model.job import Ending, JobSpec, JobState
from fairway.model.names import ClusterName, TeamName
from fairway.policy.capacity import CapacitySpan, CapacityUpdate, StoredCapacity
from fairway.policy.objects import Change

SECONDS: Final = 120.0
"""Time limit for the whole import."""

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
"""Receives the fraction that is done."""


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """One run of a job. Times are seconds since 1970."""

    started: float
    ended: float
    ending: Ending
    nodes: tuple[str, ...]
    exit_code: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PastJob:
    """An ended job. Its id is its position: the first job of a history has 1."""

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
    """Of the first task of an array; None for a native job or a further task."""
    placement_reason: str = ""
    array_first: int | None = None
    array_index: int | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """The generated history of a ledger."""

    jobs: Sequence[PastJob]
    """In order of submission."""
    closed: Sequence[tuple[str, CapacitySpan]]
    """The past capacity of each cluster's pools, one period at a time."""
    now: Sequence[tuple[str, StoredCapacity]]
    hours: Hours
    """The hours that cover all of it."""
    upto: int


async def backfill(ledger: Ledger, past: Past, tell: Tell = lambda _part: None) -> None:
    """Write a generated history. Raises LedgerNotEmpty, having changed nothing, if there are jobs already."""
    await _write(ledger._connections, past, tell)


async def _write(connections: Connections, past: Past, tell: Tell) -> None:
    await PartitionStore(connections).ensure(past.hours.starts)
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
        (id_, job_rows.encoded(job.spec), job.placement_reason, job.kind.user)
        for id_, job in placed
        if job.spec
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
        (DesiredState.CANCEL if ours_cancelled else DesiredState.RUN).value,
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
    """Meter the jobs, with the same statement as the meter loop."""
    done = 0
    for cluster in sorted({job.kind.cluster for job in past.jobs}):
        writer = MeteringWriter(connection, _nobodys(cluster))
        while (batch := await writer.meter(past.hours, BATCH)).taken:
            done += batch.taken
            tell(0.4 + 0.5 * done / len(past.jobs))


async def _keep_capacity(connection: AsyncConnection, past: Past) -> None:
    for cluster in sorted({cluster for cluster, _ in (*past.closed, *past.now)}):
        closed = tuple(one for where, one in past.closed if where == cluster)
        now = tuple(one for where, one in past.now if where == cluster)
        await CapacityWriter(connection, _nobodys(cluster)).keep(CapacityUpdate(closed, now, ()), past.hours)


def _nobodys(cluster: str) -> Lease:
    """Return a placeholder lease: no loop runs on an empty ledger, so there is nobody to fence off."""
    return Lease("backfill", ClusterName(cluster), "backfill", 0, SECONDS, datetime.now(UTC))


async def _raw(connection: AsyncConnection) -> Raw[Any]:
    """Return the driver's own connection, in the same transaction: SQLAlchemy does not support COPY."""
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


_ANY_POLICY = text("SELECT EXISTS (SELECT FROM apply) OR EXISTS (SELECT FROM fleet_revision)")


# The changes as text: what is kept by an apply that really is made comes in the same way.
_CLUSTER = text("""
    INSERT INTO apply_cluster (
        apply, cluster, state, fingerprint, changes, total, done, started_at, finished_at
    )
    VALUES (
        :apply, :cluster, :state, :fingerprint, CAST(:changes AS jsonb), :total, :total, :started, :finished
    )
""")


_CLOSED_AT = text("UPDATE closed_month SET closed_at = :at WHERE month = :month")


@dataclass(frozen=True, slots=True)
class PastApply:
    """A fleet file that was applied, and what it changed on each cluster."""

    text: str
    digest: str
    by: str
    at: datetime
    finished: datetime
    changes: Mapping[ClusterName, tuple[str, Sequence[Change]]]
    """The fingerprint of the plan, and its changes."""


async def write_applies(ledger: Ledger, applies: Sequence[PastApply]) -> None:
    """Write past applies, in order of time. Raises LedgerNotEmpty if anything was applied already."""
    async with ledger._connections.transaction() as connection:
        if (await connection.execute(_ANY_POLICY)).scalar_one():
            raise LedgerNotEmpty(
                "LedgerNotEmpty", "this ledger has a fleet: its past is not made up", "use an empty database"
            )
        for one in applies:
            await _write_apply(connection, one)


async def date_closing(ledger: Ledger, month: date, at: datetime) -> None:
    """Set the time at which a month was closed."""
    async with ledger._connections.transaction() as connection:
        await connection.execute(_CLOSED_AT, {"month": month, "at": at})


async def write_budgets(
    ledger: Ledger, standings: Sequence[StoredBudgetStatus], events: Sequence[tuple[datetime, TeamName, str]]
) -> None:
    """Write the current state of budgets, and their past events."""
    async with ledger._connections.transaction() as connection:
        await BudgetWriter(connection, _nobodys("")).keep(standings)
        if events:
            rows = [{"at": at, "team": team, "text": said} for at, team, said in events]
            await connection.execute(insert(budget_event), rows)


async def _write_apply(connection: AsyncConnection, one: PastApply) -> None:
    revision = insert(fleet_revision).values(
        created_at=one.at, created_by=one.by, digest=one.digest, text=one.text
    )
    number = (await connection.execute(revision.returning(fleet_revision.c.id))).scalar_one()
    made = insert(apply).values(
        kind=ApplyKind.APPLY.value, created_at=one.at, created_by=one.by, revision=number, force=False
    )
    apply_id = (await connection.execute(made.returning(apply.c.id))).scalar_one()
    for cluster, (fingerprint, changes) in one.changes.items():
        values = {
            "apply": apply_id,
            "cluster": cluster,
            "state": ApplyState.DONE.value,
            "fingerprint": fingerprint,
            "changes": encoded_changes([StoredChange(change, True) for change in changes]),
            "total": len(changes),
            "started": one.at,
            "finished": one.finished,
        }
        await connection.execute(_CLUSTER, values)
