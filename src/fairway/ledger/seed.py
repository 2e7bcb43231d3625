"""Write a whole generated history into an empty ledger: for the demo and for benchmarks.

Jobs and attempts are copied in; what derives from them (usage and its sums, when ids were assigned) is made
by the same statements as for jobs that arrive one by one. Only an empty ledger accepts a history: real
records are never mixed with generated ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import chain
from typing import Any, Final

from psycopg import AsyncConnection as Raw
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.cost.budgets import BudgetWriter
from fairway.ledger.errors import LedgerNotEmpty
from fairway.ledger.jobs.submit import JobClass, class_ids, encode_spec
from fairway.ledger.ledger import Ledger
from fairway.ledger.policy.applies import encoded_changes
from fairway.ledger.records.costs import StoredBudgetStatus
from fairway.ledger.records.fleet import Lease
from fairway.ledger.records.jobs import DesiredState, EventKind
from fairway.ledger.records.policy import StoredChange
from fairway.ledger.schema.costs import budget_event
from fairway.ledger.schema.tables import apply, fleet_revision, intervention
from fairway.ledger.sql_values import moment
from fairway.ledger.telemetry.seed import PastUses, write_uses
from fairway.ledger.usage.capacity import CapacityWriter
from fairway.ledger.usage.metering import Hours, MeteringWriter
from fairway.ledger.usage.partitions import PartitionStore
from fairway.model.apply import ApplyKind, ApplyState
from fairway.model.job import Ending, JobSpec, JobState
from fairway.model.names import ClusterName, TeamName
from fairway.policy.capacity import CapacitySpan, CapacityUpdate, StoredCapacity
from fairway.policy.objects import Change

SECONDS: Final = 120.0
"""Time limit for the whole import."""

USES_SECONDS: Final = 600.0
"""Time limit for what GPUs did: it is written beside the start of a server, which may be slow."""

BATCH: Final = 8000
"""Jobs that are metered in one statement."""

_LIMIT = text(f"SET LOCAL statement_timeout = '{SECONDS:g} s'")
_USES_LIMIT = text(f"SET LOCAL statement_timeout = '{USES_SECONDS:g} s'")

# No server may add a job meanwhile.
_LOCK = text("LOCK TABLE job IN EXCLUSIVE MODE")

_ANY_JOB = text("SELECT EXISTS (SELECT FROM job) OR EXISTS (SELECT FROM usage_day)")

_NEXT_ID = text("SELECT setval(pg_get_serial_sequence('job', 'id'), (SELECT max(id) FROM job))")

_CLOCK = text("""
    INSERT INTO job_clock (minute, job)
    SELECT date_trunc('minute', submitted_at), min(id) FROM job GROUP BY 1
""")

_QUEUE = text("""
    INSERT INTO to_meter (cluster, job) SELECT cluster, id FROM job WHERE attempts > 0 ORDER BY id
""")

_LEARN = text("UPDATE run_time_mark SET next_job = 0")

# As the meter samples it: the devices that jobs waited for, from their submission to their first start.
_WAITED = text("""
    INSERT INTO queue_hour (hour, cluster, pool, slice, seconds, device_seconds)
    SELECT hour, cluster, pool, slice, 3600, COALESCE(device_seconds, 0) FROM capacity_hour LEFT JOIN (
        SELECT hour, waited.cluster, pool, slice, CAST(sum(devices * extract(
            epoch FROM least(began, hour + interval '1 hour') - greatest(submitted_at, hour)
        )) AS bigint) AS device_seconds
        FROM (
            SELECT cluster, class, devices, submitted_at, COALESCE(
                (SELECT min(started_at) FROM attempt WHERE attempt.job = job.id), ended_at
            ) AS began FROM job
        ) AS waited JOIN job_class ON job_class.id = waited.class
        CROSS JOIN LATERAL generate_series(
            date_trunc('hour', submitted_at), began, interval '1 hour'
        ) AS hour
        GROUP BY hour, waited.cluster, pool, slice
    ) AS of_jobs USING (hour, cluster, pool, slice)
""")

_ANALYZE = text(
    "ANALYZE job, job_class, job_spec, engine_job, attempt, job_event, job_clock, metered, usage, usage_hour,"
    " usage_day, usage_team_day, capacity, capacity_hour, capacity_day, queue_hour"
)

_ANALYZE_USES = text("ANALYZE job_use, gpu_use, use_hour, use_day, node_use")

_ANY_POLICY = text("SELECT EXISTS (SELECT FROM apply) OR EXISTS (SELECT FROM fleet_revision)")

# The changes are passed as text, as a real apply passes them.
_APPLY_CLUSTER = text("""
    INSERT INTO apply_cluster (
        apply, cluster, state, fingerprint, changes, total, done, started_at, finished_at
    )
    VALUES (
        :apply, :cluster, :state, :fingerprint, CAST(:changes AS jsonb), :total, :total, :started, :finished
    )
""")

_CLOSED_AT = text("UPDATE closed_month SET closed_at = :at WHERE month = :month")

ProgressCallback = Callable[[float], None]
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
class PastIntervention:
    """An intervention that was made, and when, in seconds since 1970."""

    cluster: ClusterName
    at: float
    promise: str
    verb: str
    job: str
    why: str


@dataclass(frozen=True, slots=True)
class GeneratedHistory:
    """The generated history of a ledger."""

    jobs: Sequence[PastJob]
    """In order of submission."""
    closed: Sequence[tuple[str, CapacitySpan]]
    """The past capacity of each cluster's pools, one period at a time."""
    now: Sequence[tuple[str, StoredCapacity]]
    hours: Hours
    """The hours that cover all of it."""
    interventions: Sequence[PastIntervention] = ()
    """In order of time."""


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


async def backfill(
    ledger: Ledger, history: GeneratedHistory, progress: ProgressCallback = lambda _fraction: None
) -> None:
    """Write a generated history. Raises LedgerNotEmpty, having changed nothing, if there are jobs already."""
    connections = ledger._connections
    await PartitionStore(connections).ensure(history.hours.starts)
    async with connections.transaction(seconds=SECONDS) as connection:
        await connection.execute(_LIMIT)
        await connection.execute(_LOCK)
        if (await connection.execute(_ANY_JOB)).scalar_one():
            raise LedgerNotEmpty(
                "LedgerNotEmpty",
                "the ledger already has jobs: a simulated history is only written to an empty ledger",
                "use an empty database",
            )
        await _copy_jobs(connection, history.jobs)
        progress(0.4)
        if history.jobs:
            await connection.execute(_NEXT_ID)
            await connection.execute(_CLOCK)
            await connection.execute(_QUEUE)
            await connection.execute(_LEARN)
        await _meter(connection, history, progress)
        await _write_capacity(connection, history)
        if history.interventions:
            await connection.execute(insert(intervention), [_intervention(i) for i in history.interventions])
        await connection.execute(_WAITED)
    async with connections.single(seconds=SECONDS) as connection:
        await connection.execute(_ANALYZE)  # lest the first pages are planned for empty tables


async def backfill_uses(ledger: Ledger, uses: PastUses, hours: Hours) -> None:
    """Write what the GPUs of a history did that `backfill` has written."""
    async with ledger._connections.transaction(seconds=USES_SECONDS) as connection:
        await connection.execute(_USES_LIMIT)
        await write_uses(connection, await _raw(connection), uses, hours.starts[:-1], hours.days)
    async with ledger._connections.single(seconds=SECONDS) as connection:
        await connection.execute(_ANALYZE_USES)


async def write_applies(ledger: Ledger, applies: Sequence[PastApply]) -> None:
    """Write past applies, in order of time. Raises LedgerNotEmpty if anything was applied already."""
    async with ledger._connections.transaction() as connection:
        if (await connection.execute(_ANY_POLICY)).scalar_one():
            raise LedgerNotEmpty(
                "LedgerNotEmpty",
                "the ledger already has a fleet: a simulated history is only written to an empty ledger",
                "use an empty database",
            )
        for one in applies:
            await _write_apply(connection, one)


async def set_closed_at(ledger: Ledger, month: date, at: datetime) -> None:
    """Set the time at which a month was closed."""
    async with ledger._connections.transaction() as connection:
        await connection.execute(_CLOSED_AT, {"month": month, "at": at})


async def write_budgets(
    ledger: Ledger, statuses: Sequence[StoredBudgetStatus], events: Sequence[tuple[datetime, TeamName, str]]
) -> None:
    """Write the current state of budgets, and their past events."""
    async with ledger._connections.transaction() as connection:
        await BudgetWriter(connection, _placeholder_lease("")).write(statuses)
        if events:
            rows = [{"at": at, "team": team, "text": message} for at, team, message in events]
            await connection.execute(insert(budget_event), rows)


async def _copy_jobs(connection: AsyncConnection, jobs: Sequence[PastJob]) -> None:
    classes = await class_ids(connection, {job.kind for job in jobs})
    raw = await _raw(connection)
    by_id = list(enumerate(jobs, 1))
    await _copy(raw, "job", (_job(id_, job, classes[job.kind]) for id_, job in by_id))
    specs = (
        {
            "job": id_,
            "spec": encode_spec(job.spec),
            "why_there": job.placement_reason,
            "submitted_by": job.kind.user,
        }
        for id_, job in by_id
        if job.spec
    )
    await _copy(raw, "job_spec", specs)
    links = (
        {
            "cluster": job.kind.cluster,
            "engine_id": job.engine_id,
            "job": id_,
            "submission": 0 if job.kind.native else 1,
        }
        for id_, job in by_id
    )
    await _copy(raw, "engine_job", links)
    await _copy(raw, "attempt", (row for id_, job in by_id for row in _attempts(id_, job)))
    cancelled = (
        {
            "job": id_,
            "at": moment(job.ended),
            "kind": EventKind.CANCELLED.value,
            "by_whom": job.kind.user,
        }
        for id_, job in by_id
        if job.state is JobState.CANCELLED and not job.kind.native
    )
    await _copy(raw, "job_event", cancelled)


def _job(id_: int, job: PastJob, class_: int) -> dict[str, object]:
    native = job.kind.native
    submitted = moment(job.submitted)
    cancelled = job.state is JobState.CANCELLED and not native
    return {
        "id": id_,
        "class": class_,
        "cluster": job.kind.cluster,
        "name": job.name,
        "state": job.state.value,
        "wish": (DesiredState.CANCEL if cancelled else DesiredState.RUN).value,
        "reason": job.reason,
        "engine_id": job.engine_id,
        "array_first": job.array_first,
        "array_index": job.array_index,
        "gpus": job.gpus,
        "nodes": job.nodes,
        "devices": job.gpus * job.nodes,
        "submission": 0 if native else 1,
        "failures": 1 if job.state in (JobState.FAILED, JobState.TIMED_OUT) and not native else 0,
        "attempts": len(job.attempts),
        "submitted_at": submitted,
        "started_at": moment(job.attempts[-1].started) if job.attempts else None,
        "ended_at": moment(job.ended),
        "exit_code": job.exit_code,
        "time_seconds": job.time_seconds,
        "not_before": submitted,
        "sent_at": None if native else submitted,
    }


def _attempts(id_: int, job: PastJob) -> Iterator[dict[str, object]]:
    for number, attempt in enumerate(job.attempts, 1):
        yield {
            "job": id_,
            "number": number,
            "engine_id": job.engine_id,
            "started_at": moment(attempt.started),
            "ended_at": moment(attempt.ended),
            "ending": attempt.ending.value,
            "exit_code": attempt.exit_code,
            "devices": job.gpus * job.nodes,
            "nodes": list(attempt.nodes),
            "reason": attempt.reason,
        }


async def _meter(connection: AsyncConnection, history: GeneratedHistory, progress: ProgressCallback) -> None:
    """Meter the jobs, with the same statement as the meter loop."""
    done = 0
    for cluster in sorted({job.kind.cluster for job in history.jobs}):
        writer = MeteringWriter(connection, _placeholder_lease(cluster))
        while (batch := await writer.meter(history.hours, BATCH)).taken:
            done += batch.taken
            progress(0.4 + 0.5 * done / len(history.jobs))


async def _write_capacity(connection: AsyncConnection, history: GeneratedHistory) -> None:
    for cluster in sorted({cluster for cluster, _ in (*history.closed, *history.now)}):
        closed = tuple(span for of_cluster, span in history.closed if of_cluster == cluster)
        now = tuple(stored for of_cluster, stored in history.now if of_cluster == cluster)
        writer = CapacityWriter(connection, _placeholder_lease(cluster))
        await writer.write(CapacityUpdate(closed, now, ()), history.hours)


def _intervention(past: PastIntervention) -> dict[str, object]:
    return {
        "cluster": past.cluster,
        "at": moment(past.at),
        "promise": past.promise,
        "verb": past.verb,
        "job": past.job,
        "why": past.why,
    }


def _placeholder_lease(cluster: str) -> Lease:
    """Return a placeholder lease: no loop runs on an empty ledger, so no other writer must be fenced off."""
    return Lease("backfill", ClusterName(cluster), "backfill", 0, SECONDS, datetime.now(UTC))


async def _raw(connection: AsyncConnection) -> Raw[Any]:
    """Return the driver's own connection, in the same transaction: SQLAlchemy does not support COPY."""
    driver = (await connection.get_raw_connection()).driver_connection
    if not isinstance(driver, Raw):
        raise TypeError("the ledger speaks psycopg")
    return driver


async def _copy(raw: Raw[Any], table: str, rows: Iterator[Mapping[str, object]]) -> None:
    """Copy rows into a table; all have the columns of the first."""
    first = next(rows, None)
    if first is None:
        return
    names = ", ".join(f'"{name}"' for name in first)
    async with raw.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
        for row in chain((first,), rows):
            await copy.write_row(tuple(row.values()))


async def _write_apply(connection: AsyncConnection, past: PastApply) -> None:
    revision = insert(fleet_revision).values(
        created_at=past.at, created_by=past.by, digest=past.digest, text=past.text
    )
    number = (await connection.execute(revision.returning(fleet_revision.c.id))).scalar_one()
    request = insert(apply).values(
        kind=ApplyKind.APPLY.value, created_at=past.at, created_by=past.by, revision=number, force=False
    )
    apply_id = (await connection.execute(request.returning(apply.c.id))).scalar_one()
    for cluster, (fingerprint, changes) in past.changes.items():
        values = {
            "apply": apply_id,
            "cluster": cluster,
            "state": ApplyState.DONE.value,
            "fingerprint": fingerprint,
            "changes": encoded_changes([StoredChange(change, True) for change in changes]),
            "total": len(changes),
            "started": past.at,
            "finished": past.finished,
        }
        await connection.execute(_APPLY_CLUSTER, values)
