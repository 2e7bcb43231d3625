"""One job with all that is known of it, and how many are open."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Row, text

from fairway.ledger import job_specs
from fairway.ledger.connection import Connections
from fairway.ledger.job_pages import ROW, row_of
from fairway.ledger.job_records import EventKind, JobCount, JobDetail, JobEvent, KeptAttempt
from fairway.model.job import OPEN_JOBS, Attempt, Ending, EngineId, JobId, JobState, engine_name
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName, TeamName

MOST_EVENTS: Final = 200

_ONE = text(f"{ROW} WHERE job.id = :id")

_MORE = text("""
    SELECT job.submission, job.sent_at, job_spec.spec, job_spec.why_there, job_spec.submitted_by,
        ledger_mark.mark
    FROM job CROSS JOIN ledger_mark
    LEFT JOIN job_spec ON job_spec.job = COALESCE(job.array_first, job.id)
    WHERE job.id = :id
""")

_ATTEMPTS = text("SELECT * FROM attempt WHERE job = :id ORDER BY number")

_EVENTS = text("SELECT at, kind, by_whom, text FROM job_event WHERE job = :id ORDER BY id DESC LIMIT :limit")

_COUNTS: Final = f"""
    SELECT open.cluster, job_class.team, job_class.pool, job_class.slice, open.state,
        sum(open.jobs) AS jobs, sum(open.devices) AS devices
    FROM (
        SELECT cluster, class, state, count(*) AS jobs, sum(devices) AS devices FROM job
        WHERE state IN ({", ".join(f"'{state.value}'" for state in OPEN_JOBS)}) {{of_cluster}}
        GROUP BY cluster, class, state
    ) AS open JOIN job_class ON job_class.id = open.class
    GROUP BY open.cluster, job_class.team, job_class.pool, job_class.slice, open.state
    ORDER BY open.cluster, job_class.team, job_class.pool, job_class.slice, open.state
"""  # noqa: S608
_ALL_COUNTS = text(_COUNTS.format(of_cluster=""))
_CLUSTER_COUNTS = text(_COUNTS.format(of_cluster="AND cluster = :cluster"))


async def one(connections: Connections, number: JobId) -> JobDetail | None:
    async with connections.transaction() as connection:
        row = (await connection.execute(_ONE, {"id": number})).first()
        if row is None:
            return None
        more = (await connection.execute(_MORE, {"id": number})).one()
        attempts = (await connection.execute(_ATTEMPTS, {"id": number})).all()
        events = (await connection.execute(_EVENTS, {"id": number, "limit": MOST_EVENTS})).all()
    ours = more.spec is not None and not row.native
    return JobDetail(
        row=row_of(row),
        spec=job_specs.decoded(more.spec) if ours else None,
        why_there=more.why_there if ours else "",
        engine_name=engine_name(more.mark, number, more.submission, row.name) if ours else None,
        submission=more.submission,
        attempts=tuple(_attempt(a) for a in attempts),
        events=_timeline(row, more, events),
    )


async def counts(connections: Connections, cluster: str | None) -> tuple[JobCount, ...]:
    wanted = _ALL_COUNTS if cluster is None else _CLUSTER_COUNTS
    async with connections.single() as connection:
        rows = (await connection.execute(wanted, {} if cluster is None else {"cluster": cluster})).all()
    return tuple(
        JobCount(
            cluster=ClusterName(row.cluster),
            team=TeamName(row.team) if row.team else None,
            pool=PoolName(row.pool) if row.pool else None,
            slice=SliceName(row.slice) if row.slice else None,
            state=JobState(row.state),
            jobs=int(row.jobs),
            devices=int(row.devices),
        )
        for row in rows
    )


def _timeline(row: Row[*tuple[Any, ...]], more: Row[*tuple[Any, ...]], events: Any) -> tuple[JobEvent, ...]:
    """That it was submitted, and last sent, is told by its row."""
    told = [JobEvent(e.at, EventKind(e.kind), e.by_whom, e.text) for e in reversed(events)]
    if more.sent_at is not None:
        told.append(JobEvent(more.sent_at, EventKind.SENT, "", row.engine_id or ""))
    told.sort(key=lambda event: event.at)
    first = JobEvent(row.submitted_at, EventKind.SUBMITTED, more.submitted_by or row.user_name, "")
    return (first, *told)[-MOST_EVENTS:]


def _attempt(row: Row[*tuple[Any, ...]]) -> KeptAttempt:
    return KeptAttempt(row.number, EngineId(row.engine_id), attempt_of(row))


def attempt_of(row: Row[*tuple[Any, ...]]) -> Attempt:
    """As the engine told of it."""
    return Attempt(
        started_at=row.started_at,
        nodes=tuple(NodeName(name) for name in row.nodes),
        devices=row.devices,
        ended_at=row.ended_at,
        ending=None if row.ending is None else Ending(row.ending),
        exit_code=row.exit_code,
        signal=row.signal,
        reason=row.reason,
    )
