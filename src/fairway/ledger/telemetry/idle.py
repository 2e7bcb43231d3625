"""Read and write what idle rules did to jobs, and until when people asked them not to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.sql_values import AnyRow, moment, page_limit, sanitize
from fairway.model.diagnosis import DiagnosisSettings
from fairway.model.gpu_use import WINDOW_SECONDS
from fairway.model.idle import IdleAction, IdleOutcome
from fairway.model.job import EngineId, JobId
from fairway.model.names import ClusterName, PoolName, PriorityName, TeamName, UserName
from fairway.policy.idle import IdleWindow, NextStep, PastStep, RunningJob

MAX_STEPS: Final = 50
"""Steps of one job that are read, the newest."""

_JOB: Final = """
    job.id, job.name, job.cluster, job.engine_id, job.devices, job.started_at,
    job_class.user_name, job_class.team, job_class.pool, job_class.priority, job_class.service
"""
# Only jobs whose last window shows hardly any work are looked at further.
_CANDIDATES = text(f"""
    SELECT {_JOB} FROM job_window
    JOIN job ON job.id = job_window.job AND job.state = 'running' AND job.wish <> 'cancel'
    JOIN job_class ON job_class.id = job.class
    WHERE job_window.cluster = :cluster AND job_window.started_at = :start
        AND job_window.busy < :below * job_window.measured AND job.engine_id IS NOT NULL
    ORDER BY job.id
""")  # noqa: S608
_ONE = text(f"""
    SELECT {_JOB} FROM job JOIN job_class ON job_class.id = job.class
    WHERE job.id = :job AND job.state = 'running' AND job.engine_id IS NOT NULL
""")  # noqa: S608
_WINDOWS = text("""
    SELECT job, array_agg(CAST(extract(epoch FROM started_at) AS bigint) ORDER BY started_at) AS starts,
        array_agg(measured ORDER BY started_at) AS measured, array_agg(busy ORDER BY started_at) AS busy,
        array_agg(gpus ORDER BY started_at) AS gpus, array_agg(idle_gpus ORDER BY started_at) AS idle_gpus
    FROM job_window WHERE job = ANY(CAST(:jobs AS bigint[])) GROUP BY job
""")
_KEEPS = text("SELECT job, until, by_whom, reason, at FROM job_keep WHERE job = ANY(CAST(:jobs AS bigint[]))")
_KEEP = text("""
    INSERT INTO job_keep (job, until, by_whom, reason) VALUES (:job, :until, :by, :reason)
    ON CONFLICT (job) DO UPDATE SET until = excluded.until, by_whom = excluded.by_whom,
        reason = excluded.reason, at = now()
""")
_STEPS = text("""
    SELECT found.* FROM unnest(CAST(:jobs AS bigint[])) AS wanted (number) CROSS JOIN LATERAL (
        SELECT * FROM idle_action WHERE idle_action.job = wanted.number ORDER BY id DESC LIMIT :limit
    ) AS found ORDER BY found.id
""")
_NEWEST = text("""
    SELECT idle_action.*, job.name, job_class.user_name, job_class.team
    FROM (SELECT * FROM idle_action WHERE id < :before ORDER BY id DESC LIMIT :limit) AS idle_action
    JOIN job ON job.id = idle_action.job JOIN job_class ON job_class.id = job.class
    ORDER BY idle_action.id DESC
""")
_OPEN = text("""
    SELECT * FROM idle_action WHERE cluster = :cluster AND outcome IS NULL ORDER BY id LIMIT :limit
""")
# A step of this stretch that is there already was recorded before a crash: it is not taken again.
_RECORD = text("""
    INSERT INTO idle_action (job, cluster, rule, action, at, idle_since, dry_run, evidence, outcome, detail)
    SELECT :job, :cluster, :rule, :action, :at, :since, :dry_run, :evidence, :outcome, :detail
    WHERE NOT EXISTS (
        SELECT FROM idle_action WHERE job = :job AND rule = :rule AND action = :action
            AND dry_run = :dry_run AND at >= :counts_from AND outcome IS DISTINCT FROM 'expired'
    ) AND NOT EXISTS (SELECT FROM job_keep WHERE job = :job AND until > :at)
    RETURNING id
""")
_FINISH = text("""
    UPDATE idle_action SET outcome = :outcome, detail = :detail
    WHERE id = :id AND cluster = :cluster AND outcome IS NULL
""")


@dataclass(frozen=True, slots=True)
class IdleCandidate:
    """A running job that may be idle, with what is needed to act on it."""

    job: RunningJob
    cluster: ClusterName
    engine_id: EngineId


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A step of an idle rule as it was recorded."""

    id: int
    job: JobId
    rule: str
    action: IdleAction
    at: datetime
    idle_since: datetime
    dry_run: bool
    evidence: str
    outcome: IdleOutcome | None
    """None: the engine has not answered yet."""
    detail: str

    def past(self) -> PastStep:
        """Return it as decisions see it."""
        return PastStep(self.rule, self.action, self.at.timestamp(), self.dry_run)


@dataclass(frozen=True, slots=True)
class ListedStep:
    """A step with the job it was for."""

    step: StoredStep
    cluster: str
    name: str
    user: str
    team: str | None


@dataclass(frozen=True, slots=True)
class Keep:
    """Until when idle rules leave a job alone."""

    until: datetime
    by: str
    reason: str
    at: datetime


class IdleStore(LedgerStore):
    """Reads what idle rules decide on and did, and writes what people ask for."""

    async def candidates(
        self, cluster: str, read_to: int, below: float, settings: DiagnosisSettings
    ) -> list[IdleCandidate]:
        """Return running jobs that were busy for less than `below` of the last window."""
        values = {"cluster": cluster, "start": moment(read_to - WINDOW_SECONDS), "below": below}
        return [_candidate(row, settings) for row in await self._fetch(_CANDIDATES, values)]

    async def candidate(self, job: JobId, settings: DiagnosisSettings) -> IdleCandidate | None:
        """Return a job if it runs on an engine."""
        row = await self._fetch_first(_ONE, {"job": job})
        return None if row is None else _candidate(row, settings)

    async def windows(self, jobs: Sequence[JobId]) -> Mapping[JobId, tuple[IdleWindow, ...]]:
        """Return the stored windows of each job, at most a day of them, oldest first."""
        rows = await self._fetch(_WINDOWS, {"jobs": list(jobs)}) if jobs else ()
        return {
            JobId(row.job): tuple(
                map(IdleWindow, row.starts, row.measured, row.busy, row.gpus, row.idle_gpus)
            )
            for row in rows
        }

    async def keeps(self, jobs: Sequence[JobId]) -> Mapping[JobId, Keep]:
        """Return until when each of these jobs is kept, also if that is over."""
        rows = await self._fetch(_KEEPS, {"jobs": list(jobs)}) if jobs else ()
        return {JobId(row.job): Keep(row.until, row.by_whom, row.reason, row.at) for row in rows}

    async def steps(self, jobs: Sequence[JobId]) -> Mapping[JobId, tuple[StoredStep, ...]]:
        """Return the newest steps of each job, oldest first."""
        found: dict[JobId, list[StoredStep]] = {}
        for row in await self._fetch(_STEPS, {"jobs": list(jobs), "limit": MAX_STEPS}) if jobs else ():
            found.setdefault(JobId(row.job), []).append(_step(row))
        return {job: tuple(steps) for job, steps in found.items()}

    async def newest(self, limit: int, before: int | None = None) -> list[ListedStep]:
        """Return the newest steps of all jobs, newest first."""
        values = {"limit": page_limit(limit), "before": 2**62 if before is None else before}
        return [
            ListedStep(_step(row), row.cluster, row.name, row.user_name, row.team or None)
            for row in await self._fetch(_NEWEST, values)
        ]

    async def open_steps(self, cluster: str, limit: int) -> list[StoredStep]:
        """Return the steps whose outcome is not recorded yet, oldest first."""
        return [_step(row) for row in await self._fetch(_OPEN, {"cluster": cluster, "limit": limit})]

    async def keep(self, jobs: Sequence[JobId], until: datetime, by: str, reason: str) -> None:
        """Have idle rules leave jobs alone until then; replaces what was asked for before."""
        async with self._connections.transaction() as connection:
            for job in sorted(jobs):
                values = {"job": job, "until": until, "by": by, "reason": sanitize(reason)}
                await connection.execute(_KEEP, values)


class IdleWriter(FencedWriter):
    """Writes the steps of idle rules on the lease's cluster."""

    async def record(
        self, job: JobId, step: NextStep, now: float, outcome: IdleOutcome | None, detail: str = ""
    ) -> int | None:
        """Record a step before it is taken. Returns None if it was recorded before, or the job is kept."""
        values = {
            "job": job,
            "cluster": self._lease.cluster,
            "rule": step.rule.name,
            "action": step.step.action,
            "at": moment(now),
            "since": moment(step.idle_since),
            "counts_from": moment(step.counts_from),
            "dry_run": step.rule.dry_run,
            "evidence": sanitize(step.evidence),
            "outcome": outcome,
            "detail": sanitize(detail),
        }
        row = (await self._connection.execute(_RECORD, values)).first()
        return None if row is None else int(row.id)

    async def finish(self, step: int, outcome: IdleOutcome, detail: str = "") -> None:
        """Record how a step ended."""
        values = {"id": step, "cluster": self._lease.cluster, "outcome": outcome, "detail": sanitize(detail)}
        await self._connection.execute(_FINISH, values)


def past_steps(steps: Sequence[StoredStep]) -> Iterator[PastStep]:
    """Yield the steps that count for the next decision."""
    return (step.past() for step in steps if step.outcome is not IdleOutcome.EXPIRED)


def _candidate(row: AnyRow, settings: DiagnosisSettings) -> IdleCandidate:
    return IdleCandidate(
        RunningJob(
            JobId(row.id),
            row.name,
            UserName(row.user_name),
            TeamName(row.team) if row.team else None,
            PoolName(row.pool) if row.pool else None,
            PriorityName(row.priority) if row.priority else None,
            row.devices,
            row.started_at.timestamp() if row.started_at is not None else 2.0**40,
            row.service or settings.is_service(row.name, row.engine_id),
        ),
        ClusterName(row.cluster),
        EngineId(row.engine_id),
    )


def _step(row: AnyRow) -> StoredStep:
    return StoredStep(
        row.id,
        JobId(row.job),
        row.rule,
        IdleAction(row.action),
        row.at,
        row.idle_since,
        row.dry_run,
        row.evidence,
        None if row.outcome is None else IdleOutcome(row.outcome),
        row.detail,
    )
