"""Store changes of jobs that have not started, and record which were made.

A request is one row, which the dispatch loop of the job's cluster makes: in the job's own row if the job was
not sent yet, otherwise on the engine first. A change that was made and not recorded is made again, which
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.errors import JobNotChanged
from fairway.ledger.jobs.dispatch import ORDER_COLUMNS, ORDER_TABLES, pending_submit
from fairway.ledger.jobs.submit import add_events, class_ids, class_of, decode_spec, encode_spec
from fairway.ledger.leases import FencedWriter
from fairway.ledger.records.jobs import ChangeableJob, DesiredState, EventKind, NewJob
from fairway.ledger.schema.tables import NONE
from fairway.ledger.sql_values import AnyRow, sanitize
from fairway.ledger.usage import metering
from fairway.model.errors import FairwayError, Refused
from fairway.model.job import NOT_STARTED_JOBS, EngineId, JobId, JobState, format_job_id
from fairway.model.job_change import SUBMIT_AGAIN
from fairway.model.names import ClusterName, PoolName, PriorityName, SliceName

_CHANGEABLE: Final = f"""
    SELECT {ORDER_COLUMNS}, job.cluster, job.state, job.engine_id, job_change.id AS change,
        job_change.spec AS new_spec, new_class.cluster AS new_cluster, new_class.priority AS new_priority,
        new_class.pool AS new_pool, new_class.slice AS new_slice
    FROM {ORDER_TABLES}
    LEFT JOIN job_change ON job_change.job = job.id
    LEFT JOIN job_class AS new_class ON new_class.id = job_change.class
"""  # noqa: S608

_ONE = text(f"{_CHANGEABLE} WHERE job.id = :id AND job.submission > 0")

# The ids are selected first, alone, so that only the index of changes is scanned.
_PENDING = text(f"""
    {_CHANGEABLE}
    WHERE job.id IN (SELECT job FROM job_change WHERE cluster = :cluster ORDER BY id LIMIT :limit)
    ORDER BY job_change.id
""")  # noqa: S608

_LOCK_JOB = text("SELECT state, wish, cluster FROM job WHERE id = :id FOR UPDATE")

_CURRENT_SPEC = text("""
    SELECT COALESCE(job_change.spec, job_spec.spec) AS spec
    FROM job_spec LEFT JOIN job_change ON job_change.job = job_spec.job WHERE job_spec.job = :id
""")

_REQUEST = text("""
    INSERT INTO job_change (
        job, cluster, class, spec, why_there, gpus, nodes, devices, time_seconds, text, requested_by
    )
    VALUES (
        :job, :cluster, :class, :spec, :why_there, :gpus, :nodes, :devices, :time_seconds, :text, :by
    )
    ON CONFLICT (job) DO UPDATE SET id = DEFAULT, class = excluded.class, spec = excluded.spec,
        why_there = CASE WHEN excluded.why_there = '' THEN job_change.why_there ELSE excluded.why_there END,
        gpus = excluded.gpus, nodes = excluded.nodes, devices = excluded.devices,
        time_seconds = excluded.time_seconds, text = excluded.text, requested_by = excluded.requested_by,
        requested_at = now()
""")

# In id order, to avoid deadlocks.
_LOCK: Final = """
    SELECT job.id, job.state, job.engine_id, job.sending_until, job.submission, job.cluster,
        job_change.id AS change, new_class.cluster AS new_cluster
    FROM job JOIN job_change ON job_change.job = job.id
    JOIN job_class AS new_class ON new_class.id = job_change.class
    WHERE job_change.cluster = :cluster {which} ORDER BY job.id FOR UPDATE OF job
"""
_LOCK_PENDING = text(_LOCK.format(which=""))
_LOCK_CHANGES = text(_LOCK.format(which="AND job_change.id = ANY(CAST(:changes AS bigint[]))"))

_MAKE = text("""
    WITH made AS (
        DELETE FROM job_change WHERE id = ANY(CAST(:changes AS bigint[])) RETURNING *
    ), spec AS (
        UPDATE job_spec SET spec = made.spec,
            why_there = CASE WHEN made.why_there = '' THEN job_spec.why_there ELSE made.why_there END
        FROM made WHERE job_spec.job = made.job
    ), waits AS (
        UPDATE job_after SET cluster = job_class.cluster
        FROM made JOIN job_class ON job_class.id = made.class
        WHERE job_after.job = made.job AND job_after.cluster <> job_class.cluster
    )
    UPDATE job SET class = made.class, cluster = job_class.cluster, gpus = made.gpus, nodes = made.nodes,
        devices = made.devices, time_seconds = made.time_seconds
    FROM made JOIN job_class ON job_class.id = made.class
    WHERE job.id = made.job
    RETURNING job.id, job.cluster, job.attempts, made.text
""")

_DROP = text("DELETE FROM job_change WHERE id = ANY(CAST(:changes AS bigint[])) RETURNING job")


class JobChangeStore(LedgerStore):
    """Stores requests to change jobs, and reads those that are not made yet."""

    async def one(self, number: JobId) -> ChangeableJob | None:
        """Return a job as it is and as it will be. Returns None if it is native or unknown."""
        row = await self._fetch_first(_ONE, {"id": number})
        return None if row is None else _changeable(row)

    async def pending(self, cluster: str, limit: int) -> tuple[ChangeableJob, ...]:
        """Return the jobs of a cluster with a change that is not made yet, longest pending first."""
        values = {"cluster": cluster, "limit": max(1, limit)}
        return tuple(map(_changeable, await self._fetch(_PENDING, values)))

    async def request(self, number: JobId, before: ChangeableJob, after: NewJob, what: str, by: str) -> None:
        """Request that a job is changed from what `before` wants to `after`; `what` is that in words.

        Raises JobNotChanged if it has started, has ended, or was changed meanwhile.
        """
        async with self._connections.transaction() as connection:
            row = (await connection.execute(_LOCK_JOB, {"id": number})).one()
            require_waiting(number, JobState(row.state), DesiredState(row.wish))
            spec = (await connection.execute(_CURRENT_SPEC, {"id": number})).scalar_one()
            if decode_spec(spec) != before.wanted.spec or row.cluster != before.cluster:
                raise JobNotChanged(
                    "ChangedMeanwhile",
                    f"somebody else changed {format_job_id(number)} at the same time; nothing was done",
                    f"look at it, and repeat the change:  fairway describe {format_job_id(number)}",
                )
            class_ = class_of(after)
            moved = after.placement.supply.pool != before.wanted.pool
            values = {
                "job": number,
                "cluster": row.cluster,
                "class": (await class_ids(connection, [class_]))[class_],
                "spec": encode_spec(after.spec),
                "why_there": after.placement.why if moved else "",
                "gpus": after.spec.gpus.count,
                "nodes": after.spec.nodes,
                "devices": after.spec.devices,
                "time_seconds": after.spec.time_seconds,
                "text": what,
                "by": by,
            }
            await connection.execute(_REQUEST, values)
            event = {"job": number, "kind": EventKind.CHANGE_REQUESTED, "by_whom": by, "text": what}
            await add_events(connection, [event])


class JobChangeWriter(FencedWriter):
    """Records changes of jobs of the lease's cluster that were made or refused."""

    async def settle(self) -> frozenset[ClusterName]:
        """Make the changes of jobs that were not sent, and drop those of jobs that ended.

        Returns the other clusters that jobs were moved to.
        """
        rows = (await self._connection.execute(_LOCK_PENDING, {"cluster": self._lease.cluster})).all()
        made: list[int] = []
        refused: list[tuple[JobId, int, FairwayError]] = []
        for row in rows:
            if (refusal := _refusal(row)) is not None:
                refused.append((JobId(row.id), row.change, refusal))
            elif row.engine_id is None and row.sending_until is None:
                made.append(row.change)
        clusters = await self._make(made)
        await self._refuse(refused)
        return clusters - {self._lease.cluster}

    async def record(
        self, made: Sequence[int], refused: Sequence[tuple[JobId, int, FairwayError]] = ()
    ) -> None:
        """Record changes that an engine made, by their numbers, and those it refused."""
        changes = [*made, *(change for _, change, _ in refused)]
        await self._connection.execute(_LOCK_CHANGES, {"cluster": self._lease.cluster, "changes": changes})
        await self._make(made)
        await self._refuse(refused)

    async def _make(self, changes: Sequence[int]) -> frozenset[ClusterName]:
        if not changes:
            return frozenset()
        rows = (await self._connection.execute(_MAKE, {"changes": list(changes)})).all()
        await add_events(
            self._connection,
            [{"job": row.id, "kind": EventKind.CHANGED, "text": row.text} for row in rows],
        )
        ran = [(row.id, None) for row in rows if row.attempts]  # what it used before is of its new class
        await metering.queue(self._connection, self._lease.cluster, ran)
        return frozenset(ClusterName(row.cluster) for row in rows)

    async def _refuse(self, refused: Sequence[tuple[JobId, int, FairwayError]]) -> None:
        if not refused:
            return
        changes = [change for _, change, _ in refused]
        dropped = set((await self._connection.execute(_DROP, {"changes": changes})).scalars())
        events: list[dict[str, object]] = [
            {"job": job, "kind": EventKind.REFUSED, "text": sanitize(f"{error.code}: {error.message}")}
            for job, _, error in refused
            if job in dropped
        ]
        await add_events(self._connection, events)


def require_waiting(number: JobId, state: JobState, wish: DesiredState) -> None:
    """Raise JobNotChanged if a job has started, has ended, or is being cancelled."""
    word = format_job_id(number)
    if state in NOT_STARTED_JOBS and wish is not DesiredState.CANCEL:
        return
    if state is JobState.RUNNING:
        raise JobNotChanged(
            "JobStarted",
            f"{word} is running, and only jobs that have not started can be changed; nothing was done",
            f"submit it again with the change, and cancel this one:  fairway submit --again {word}",
        )
    how = "is being cancelled" if state in NOT_STARTED_JOBS else f"has ended ({state})"
    raise JobNotChanged(
        "JobEnded",
        f"{word} {how}, so it cannot be changed",
        f"submit it again with the change:  fairway submit --again {word}",
    )


def other_cluster(row_cluster: str, new_cluster: str) -> Refused:
    """Return the refusal to move a job that one cluster has already to another."""
    return Refused(
        "OtherCluster",
        f"the job was sent to {row_cluster} already, and cannot be moved to {new_cluster}",
        "submit it again there, and cancel this one:  fairway submit --again JOB --pool POOL",
    )


def _refusal(row: AnyRow) -> Refused | None:
    """Return why a pending change can no longer be made. Returns None if it can, or if its engine decides."""
    if row.state not in {*NOT_STARTED_JOBS, JobState.RUNNING}:
        return Refused("JobEnded", "the job ended before the change was made", SUBMIT_AGAIN)
    sent = row.engine_id is not None or row.submission > 1
    if row.new_cluster != row.cluster and sent:
        return other_cluster(row.cluster, row.new_cluster)
    return None


def _changeable(row: AnyRow) -> ChangeableJob:
    current = wanted = pending_submit(row, decode_spec(row.spec))
    if row.change is not None:
        wanted = replace(
            current,
            spec=decode_spec(row.new_spec),
            priority=PriorityName(row.new_priority),
            pool=PoolName(row.new_pool),
            slice=None if row.new_slice == NONE else SliceName(row.new_slice),
        )
    return ChangeableJob(
        current=current,
        wanted=wanted,
        change=row.change,
        cluster=ClusterName(row.cluster),
        wanted_cluster=ClusterName(row.new_cluster or row.cluster),
        state=JobState(row.state),
        engine_id=None if row.engine_id is None else EngineId(row.engine_id),
    )
