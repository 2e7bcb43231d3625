"""Store the engine jobs that engines report: a few statements per batch, and only rows that changed.

The batch is first compared with the stored rows, without locks: usually little has changed. Only rows that
changed are locked, in id order to avoid deadlocks, and decided again if they were written meanwhile: the
dispatch loop writes the same rows at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import LedgerStore
from fairway.ledger.jobs import dispatch, run_times
from fairway.ledger.jobs.attempts import SAME_START, MergedAttempts, merge_attempts
from fairway.ledger.jobs.reconcile import (
    COLUMNS,
    NAMES,
    EngineJobLink,
    JobChanges,
    StoredJobs,
    columns_of,
    decide,
    find_link,
    native_class,
    new_native_record,
    requeued,
    updated,
)
from fairway.ledger.jobs.replicas import has_replicas, merge_replicas
from fairway.ledger.jobs.store import LATE
from fairway.ledger.jobs.submit import (
    JobClass,
    add_events,
    class_ids,
    decode_spec,
    ledger_mark,
    new_ids,
    settle_dependencies,
)
from fairway.ledger.leases import FencedWriter
from fairway.ledger.records.jobs import DesiredState, EventKind, MirrorResult, StoredAttempt
from fairway.ledger.schema.jobs import OPEN_JOBS_SQL
from fairway.ledger.sql_values import AnyRow, arrays, json_rows, seconds
from fairway.ledger.telemetry import gpu_events
from fairway.ledger.usage import metering
from fairway.model.job import (
    EngineId,
    JobId,
    JobSpec,
    JobState,
    NodeGpus,
    SeenJob,
    parse_engine_name,
)
from fairway.model.names import ClusterName
from fairway.policy.retry import MAX_WAIT, SEEN_LATE, Suspect, blame, may_be_hardware, must_wait

_MARK = text("SELECT mark FROM mirror_mark WHERE cluster = :cluster")

_COMPLETE_AT = text("SELECT at FROM mirror_mark WHERE cluster = :cluster")

_ALL_COMPLETE_AT = text("SELECT cluster, at FROM mirror_mark")

_SET_MARK = text("""
    INSERT INTO mirror_mark (cluster, mark, at) VALUES (:cluster, :mark, now())
    ON CONFLICT (cluster) DO UPDATE SET mark = excluded.mark,
        at = CASE WHEN :complete THEN excluded.at ELSE mirror_mark.at END
""")

_LINKS = text("""
    SELECT engine_id, job, submission, attempts_before, double FROM engine_job
    WHERE cluster = :cluster AND engine_id = ANY(CAST(:ids AS text[]))
""")

# In the order of `JobRecord`.
_READ = text(f"""
    SELECT {", ".join(f"job.{name}" for name in NAMES)}, job.cluster, job_class.user_name, job_class.native,
        job_class.pool, job_class.slice, job_class.project, job_class.labels,
        CAST(job.xmin AS text) AS version, now() AS moment,
        (SELECT date_trunc('second', at) FROM mirror_mark WHERE cluster = :cluster) AS complete_at
    FROM job JOIN job_class ON job_class.id = job.class
    WHERE job.cluster = :cluster AND job.id = ANY(CAST(:ids AS bigint[]))
""")  # noqa: S608

_LOCK = text("""
    SELECT id, CAST(xmin AS text) AS version FROM job
    WHERE cluster = :cluster AND id = ANY(CAST(:ids AS bigint[])) ORDER BY id FOR UPDATE
""")

_ATTEMPTS = text("SELECT * FROM attempt WHERE job = ANY(CAST(:ids AS bigint[])) ORDER BY job, number")

# Of jobs with replicas, of which there may have been very many: those that run, and of each reported name
# those since the first start that is reported of it.
_REPLICAS = text("""
    SELECT attempt.* FROM unnest(CAST(:ids AS bigint[])) AS asked (job) CROSS JOIN LATERAL (
        SELECT * FROM attempt
        WHERE attempt.job = asked.job AND attempt.replica <> '' AND attempt.ending IS NULL OFFSET 0
    ) AS attempt
    UNION
    SELECT attempt.* FROM unnest(
        CAST(:jobs AS bigint[]), CAST(:names AS text[]), CAST(:since AS timestamptz[])
    ) AS named (job, name, since) CROSS JOIN LATERAL (
        SELECT * FROM attempt
        WHERE attempt.job = named.job AND attempt.replica <> ''
            AND attempt.replica = named.name COLLATE "C" AND attempt.started_at >= named.since OFFSET 0
    ) AS attempt
    ORDER BY job, number
""")

_SPECS = text("""
    SELECT job.id, job_spec.spec FROM job JOIN job_spec ON job_spec.job = COALESCE(job.array_first, job.id)
    WHERE job.id = ANY(CAST(:ids AS bigint[]))
""")

_ARRAYS = text("""
    SELECT engine_id, job FROM engine_array
    WHERE cluster = :cluster AND engine_id = ANY(CAST(:ids AS text[]))
""")

_NEW_ARRAYS = text("""
    INSERT INTO engine_array (cluster, engine_id, job)
    SELECT :cluster, * FROM unnest(CAST(:ids AS text[]), CAST(:jobs AS bigint[]))
    ON CONFLICT DO NOTHING
""")

_UPDATE = text(f"""
    UPDATE job SET {", ".join(f"{name} = now.{name}" for name in NAMES[1:])}
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS now ({COLUMNS})
    WHERE job.id = now.id
""")  # noqa: S608

_INSERT = text(f"""
    INSERT INTO job (cluster, submitted_at, late, array_first, array_index, {", ".join(NAMES)})
    SELECT :cluster, submitted_at, submitted_at < now() - CAST(:late AS interval), array_first, array_index,
        {", ".join(NAMES)}
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS now (
        submitted_at timestamptz, array_first bigint, array_index int, {COLUMNS}
    )
    ORDER BY id
""")  # noqa: S608

_LOCK_LOST = text(f"""
    SELECT job.id FROM job JOIN engine_job ON engine_job.job = job.id
    WHERE job.cluster = :cluster AND engine_job.cluster = :cluster
        AND engine_job.engine_id = ANY(CAST(:ids AS text[])) AND job.engine_id = engine_job.engine_id
        AND job.state IN ({OPEN_JOBS_SQL})
    ORDER BY job.id FOR UPDATE OF job
""")  # noqa: S608

# It was last seen when the mirror was last complete. Usage counts until then.
_LOST = text("""
    WITH last_seen AS MATERIALIZED (
        SELECT date_trunc('second', COALESCE(max(at), now())) AS at FROM mirror_mark WHERE cluster = :cluster
    ), ended AS (
        UPDATE attempt SET ending = 'lost', ended_at = greatest(started_at, last_seen.at)
        FROM last_seen WHERE job = ANY(CAST(:ids AS bigint[])) AND ending IS NULL
        RETURNING job, number, ended_at
    ), left_gpus AS (
        UPDATE attempt_gpu SET ended_at = ended.ended_at
        FROM ended WHERE attempt_gpu.job = ended.job AND attempt_gpu.attempt = ended.number
    )
    UPDATE job SET state = 'lost', code = 'Lost', asked = false,
        replicas = CASE WHEN replicas IS NOT NULL THEN 0 END,
        reason = 'the engine knows nothing of it any more', reason_code = '',
        ended_at = greatest(COALESCE(job.started_at, job.submitted_at), last_seen.at)
    FROM last_seen WHERE id = ANY(CAST(:ids AS bigint[]))
""")

_PUT_ATTEMPTS = text("""
    INSERT INTO attempt (
        job, number, engine_id, started_at, ended_at, ending, exit_code, signal, devices, nodes, reason,
        replica
    )
    SELECT job, number, engine_id, started_at, ended_at, ending, exit_code, signal, devices,
        ARRAY(SELECT jsonb_array_elements_text(nodes)), reason, replica
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS reported (
        job bigint, number int, engine_id text, started_at timestamptz, ended_at timestamptz, ending text,
        exit_code int, signal int, devices int, nodes jsonb, reason text,
        replica text
    )
    ON CONFLICT (job, number) DO UPDATE SET
        engine_id = excluded.engine_id, started_at = excluded.started_at, ended_at = excluded.ended_at,
        ending = excluded.ending, exit_code = excluded.exit_code, signal = excluded.signal,
        devices = excluded.devices, nodes = excluded.nodes, reason = excluded.reason
""")

_DELETE_ATTEMPTS = text("""
    WITH gone AS MATERIALIZED (
        SELECT * FROM unnest(CAST(:jobs AS bigint[]), CAST(:numbers AS int[])) AS gone (job, number)
    ), left_gpus AS (
        DELETE FROM attempt_gpu USING gone WHERE attempt_gpu.job = gone.job AND attempt = gone.number
    )
    DELETE FROM attempt USING gone WHERE attempt.job = gone.job AND attempt.number = gone.number
""")

# An engine tells a running attempt's GPUs, of an ended one maybe no more.
_PUT_GPUS = text("""
    WITH reported AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS reported (
            job bigint, attempt int, node text, holders jsonb, gpus jsonb, ended_at timestamptz
        )
    ), moved AS (
        DELETE FROM attempt_gpu USING (SELECT DISTINCT job, attempt FROM reported) AS now
        WHERE attempt_gpu.job = now.job AND attempt_gpu.attempt = now.attempt AND NOT EXISTS (
            SELECT FROM reported WHERE reported.job = attempt_gpu.job
                AND reported.attempt = attempt_gpu.attempt AND reported.node = attempt_gpu.node
        )
    )
    INSERT INTO attempt_gpu (job, attempt, node, cluster, holders, gpus, ended_at)
    SELECT job, attempt, node, :cluster, ARRAY(SELECT jsonb_array_elements_text(holders)),
        ARRAY(SELECT CAST(jsonb_array_elements_text(gpus) AS int)), ended_at
    FROM reported ORDER BY job, attempt, node
    ON CONFLICT (job, attempt, node) DO UPDATE SET holders = excluded.holders, ended_at = excluded.ended_at,
        gpus = CASE WHEN excluded.gpus = '{}' THEN attempt_gpu.gpus ELSE excluded.gpus END
""")

_FORGET_GPUS = text("""
    DELETE FROM attempt_gpu WHERE cluster = :cluster AND ended_at < now() - CAST(:kept AS interval)
""")
KEEP_GPUS: Final = timedelta(days=31)
"""How long it is known where an ended attempt ran: longer than Prometheus usually keeps samples."""


class MirrorStore(LedgerStore):
    """Reads the mirror mark of a cluster."""

    async def mark(self, cluster: str) -> str | None:
        """Return where the mirror of a cluster resumes. Returns None if it has not run yet."""
        row = await self._fetch_first(_MARK, {"cluster": cluster})
        return None if row is None else str(row.mark)

    async def complete_at(self, cluster: str) -> int | None:
        """Return when every job of a cluster was last seen. Returns None if the mirror has not run yet."""
        row = await self._fetch_first(_COMPLETE_AT, {"cluster": cluster})
        return None if row is None else seconds(row.at)

    async def complete_times(self) -> dict[ClusterName, datetime]:
        """Return when every job of each cluster was last seen: their reasons are as of then."""
        return {ClusterName(row.cluster): row.at for row in await self._fetch(_ALL_COMPLETE_AT)}


class MirrorWriter(FencedWriter):
    """Writes the engine jobs of the lease's cluster."""

    async def write_jobs(
        self, jobs: Sequence[SeenJob], mark: str | None = None, *, complete: bool = True
    ) -> MirrorResult:
        """Store these engine jobs, and the mark at which the mirror resumes.

        With `complete`, every other open job of the cluster is as it was, and so last seen now. Rows that did
        not change are not written. A failed job that has retries left is queued again.
        """
        reports = list({job.engine_id: job for job in jobs}.values())  # of duplicates, the last
        changes = JobChanges()
        ended: list[JobId] = []
        deferred: list[EngineId] = []
        if reports:
            prefix = await ledger_mark(self._connection)
            stored = await self._load(reports, prefix)
            changes = decide(reports, stored)
            if not await self._lock_unchanged(stored, changes.touched):
                stored = await self._load(reports, prefix)
                changes = decide(reports, stored)
            deferred = await self._requeue(stored, changes)
            ended = [*await self._write(stored, changes), *map(JobId, changes.ended)]
        if mark is not None:
            values = {"cluster": self._lease.cluster, "mark": mark, "complete": complete}
            await self._connection.execute(_SET_MARK, values)
        return MirrorResult(tuple(ended), tuple(changes.doubles), tuple(deferred))

    async def mark_lost(self, ids: Sequence[EngineId]) -> list[JobId]:
        """Mark jobs as lost, ended when they were last seen: the engine does not know them. Returns them."""
        values = {"cluster": self._lease.cluster, "ids": list(ids)}
        lost = [JobId(id_) for id_ in (await self._connection.execute(_LOCK_LOST, values)).scalars()]
        if lost:
            await self._connection.execute(_LOST, {"cluster": self._lease.cluster, "ids": lost})
            await metering.queue(self._connection, self._lease.cluster, [(job, None) for job in lost])
            await settle_dependencies(self._connection, lost)
        return lost

    async def _lock_unchanged(self, stored: StoredJobs, touched: Collection[int]) -> bool:
        """Lock the rows to change. Returns whether none was written since it was read."""
        if not touched:
            return True
        values = {"cluster": self._lease.cluster, "ids": sorted(touched)}
        locked = await self._connection.execute(_LOCK, values)
        return all(stored.rows[row.id].version == row.version for row in locked)

    async def _load(self, reports: Sequence[SeenJob], prefix: str) -> StoredJobs:
        values: dict[str, object] = {
            "cluster": self._lease.cluster,
            "ids": [report.engine_id for report in reports],
        }
        links = {
            row.engine_id: EngineJobLink(row.job, row.submission, row.attempts_before, row.double)
            for row in await self._connection.execute(_LINKS, values)
        }
        orders = {
            report.engine_id: order
            for report in reports
            if (order := parse_engine_name(report.name, prefix)) is not None
        }
        values["ids"] = sorted({link.job for link in links.values()} | {job for job, _ in orders.values()})
        rows = {row.id: row for row in await self._connection.execute(_READ, values)}
        classes: list[JobClass] = []
        for report in reports:
            id_ = report.engine_id
            link = find_link(report, links.get(id_), orders.get(id_), rows, prefix)
            if link is None:
                links.pop(id_, None)
            else:
                links[id_] = link
            row = None if link is None else rows[link.job]
            if row is None or row.native:
                # Of a reused id, a class as of a new job too.
                classes += [native_class(report, self._lease.cluster, one) for one in (row, None)]
        attempts = await self._load_attempts(reports, links, rows)
        return StoredJobs(links, rows, attempts, await class_ids(self._connection, classes))

    async def _load_attempts(
        self, reports: Sequence[SeenJob], links: Mapping[str, EngineJobLink], rows: Mapping[int, AnyRow]
    ) -> dict[int, list[AnyRow]]:
        """Load the attempts of the jobs of a batch; of replicas, only those that the reports may change."""
        replicated = {row.id for row in rows.values() if row.replicas is not None}
        found: list[AnyRow] = []
        if started := [row.id for row in rows.values() if row.attempts and row.id not in replicated]:
            found += await self._connection.execute(_ATTEMPTS, {"ids": started})
        if replicated:
            since: dict[tuple[int, str], datetime] = {}
            for report in reports:
                link = links.get(report.engine_id)
                if link is None or link.job not in replicated:
                    continue
                for attempt in report.attempts:
                    key, start = (link.job, attempt.replica), attempt.started_at - SAME_START
                    since[key] = min(start, since.get(key, start))
            named = [(job, name, start) for (job, name), start in since.items()]
            values = arrays(named, "jobs", "names", "since") | {"ids": sorted(replicated)}
            found += await self._connection.execute(_REPLICAS, values)
        attempts: dict[int, list[AnyRow]] = {}
        for row in found:
            attempts.setdefault(row.job, []).append(row)
        return attempts

    async def _requeue(self, stored: StoredJobs, changes: JobChanges) -> list[EngineId]:
        """Queue Fairway's jobs again that ended now and are to be retried.

        Returns those that cannot be decided yet, and takes them out of the changes.
        """
        failed = [
            (id_, report)
            for id_, report in changes.failed
            if report.state is not JobState.DONE and changes.jobs[id_].wish is not DesiredState.CANCEL
        ]
        if not failed:
            return []
        rows = await self._connection.execute(_SPECS, {"ids": [id_ for id_, _ in failed]})
        specs = {row.id: decode_spec(row.spec) for row in rows}
        suspects = _suspects(failed, specs, changes)
        deferred: list[EngineId] = []
        settled = (
            await gpu_events.settled_to(self._connection, self._lease.cluster, MAX_WAIT.total_seconds())
            if suspects
            else None
        )
        faults = await gpu_events.faults(
            self._connection, self._lease.cluster, tuple(suspects.values()), SEEN_LATE
        )
        spared = await gpu_events.spared(self._connection, faults) if faults else {}
        spare: list[tuple[int, int, str, str]] = []
        for id_, report in failed:
            suspect, now = suspects.get(id_), stored.rows[id_].moment
            fault = None if suspect is None else blame(suspect, faults.get(JobId(id_), ()))
            if suspect is not None and fault is None and must_wait(settled, suspect.ended_at, now):
                changes.defer(id_)
                deferred.append(report.engine_id)
                continue
            queued = requeued(changes.jobs[id_], report, specs[id_], now, fault, spared.get(id_, 0))
            if queued is None:
                continue
            sent_at = changes.jobs[id_].sent_at
            if suspect is not None and fault is not None:
                spare.append((id_, suspect.attempt, fault.node, fault.text(suspect.ended_at)))
            changes.jobs[id_], reason = queued
            changes.ended.remove(id_)
            changes.events += [
                {"job": id_, "at": sent_at, "kind": EventKind.SENT, "text": report.engine_id},
                {"job": id_, "kind": EventKind.RETRY, "text": reason},
            ]
        await gpu_events.spare(self._connection, spare)
        return deferred

    async def _write(self, stored: StoredJobs, changes: JobChanges) -> list[JobId]:
        """Write what changed. Returns new jobs that have ended already."""
        ended = await self._insert_new(stored, changes)
        if changes.jobs:
            rows = [columns_of(id_, record) for id_, record in changes.jobs.items()]
            await self._connection.execute(_UPDATE, {"rows": json_rows(rows)})
        await _write_attempts(self._connection, changes.attempts)
        await self._write_gpus(changes)
        await metering.queue(self._connection, self._lease.cluster, changes.to_meter(stored))
        await run_times.queue(self._connection, changes.to_learn(stored))
        await dispatch.link(self._connection, self._lease, changes.links)
        await add_events(self._connection, changes.events)
        await settle_dependencies(self._connection, sorted(changes.ended))
        return ended

    async def _write_gpus(self, changes: JobChanges) -> None:
        """Write where exporters show attempts that changed or were found on their GPUs."""
        put = [(job, attempt) for job, merged in changes.attempts for attempt in merged.put]
        rows = [row for job, attempt in (*put, *changes.located) for row in _gpu_rows(job, attempt)]
        if rows:
            cluster = {"cluster": self._lease.cluster}
            await self._connection.execute(_PUT_GPUS, {"rows": json_rows(rows)} | cluster)
            await self._connection.execute(_FORGET_GPUS, {"kept": KEEP_GPUS} | cluster)

    async def _insert_new(self, stored: StoredJobs, changes: JobChanges) -> list[JobId]:
        """Insert native jobs, in order of submission, so that ids reflect it as far as possible.

        Returns those that have ended already.
        """
        reports = sorted(changes.new, key=lambda report: (report.submitted_at, report.array_index or 0))
        if not reports:
            return []
        new = list(zip(await new_ids(self._connection, len(reports)), reports, strict=True))
        firsts = await self._first_tasks(new)
        rows: list[dict[str, object]] = []
        ended: list[JobId] = []
        for id_, report in new:
            merge = merge_replicas if has_replicas(report, None) else merge_attempts
            attempts = merge((), 0, report)
            class_ = stored.classes[native_class(report, self._lease.cluster, None)]
            record = updated(new_native_record(report, class_), report, attempts, class_)
            fixed = {
                "submitted_at": report.submitted_at,
                "array_first": None if report.array_id is None else firsts[report.array_id],
                "array_index": report.array_index,
            }
            rows.append(columns_of(id_, record) | fixed)
            changes.links.append((report.engine_id, id_, 0, 0, False))
            if not record.open:
                ended.append(JobId(id_))
            if attempts.put:
                changes.attempts.append((id_, attempts))
        values = {"cluster": self._lease.cluster, "rows": json_rows(rows), "late": LATE}
        await self._connection.execute(_INSERT, values)
        return ended

    async def _first_tasks(self, new: Collection[tuple[int, SeenJob]]) -> dict[EngineId, int]:
        """Return the first job of each native array."""
        firsts: dict[EngineId, int] = {}
        for id_, report in new:
            if report.array_id is not None:
                firsts.setdefault(report.array_id, id_)
        if firsts:
            ids = {"cluster": self._lease.cluster, "ids": list(firsts), "jobs": list(firsts.values())}
            await self._connection.execute(_NEW_ARRAYS, ids)
            rows = await self._connection.execute(_ARRAYS, ids)
            firsts |= {EngineId(row.engine_id): row.job for row in rows}
        return firsts


def _suspects(
    failed: Sequence[tuple[int, SeenJob]], specs: Mapping[int, JobSpec], changes: JobChanges
) -> dict[int, Suspect]:
    """Return the last attempts of failed jobs that would be retried otherwise if hardware ended them."""
    suspects: dict[int, Suspect] = {}
    for id_, report in failed:
        last = report.attempts[-1] if report.attempts else None
        if last is None or not last.nodes or not may_be_hardware(specs[id_], report.state, last.ending):
            continue
        ended_at = last.ended_at or report.ended_at
        if ended_at is not None:
            attempt = changes.jobs[id_].attempts
            suspects[id_] = Suspect(JobId(id_), attempt, last.nodes, last.started_at, ended_at)
    return suspects


async def _write_attempts(
    connection: AsyncConnection, attempts: Sequence[tuple[int, MergedAttempts]]
) -> None:
    """Write changed attempts: job, what to insert or update and what to delete."""
    gone = [(job, number) for job, merged in attempts for number in merged.gone]
    if gone:
        await connection.execute(_DELETE_ATTEMPTS, arrays(gone, "jobs", "numbers"))
    rows: list[dict[str, object]] = [
        {
            "job": job,
            "number": put.number,
            "engine_id": put.engine_id,
            "started_at": put.attempt.started_at,
            "ended_at": put.attempt.ended_at,
            "ending": put.attempt.ending,
            "exit_code": put.attempt.exit_code,
            "signal": put.attempt.signal,
            "devices": put.attempt.devices,
            "nodes": put.attempt.nodes,
            "reason": put.attempt.reason,
            "replica": put.attempt.replica,
        }
        for job, merged in attempts
        for put in merged.put
    ]
    if rows:
        await connection.execute(_PUT_ATTEMPTS, {"rows": json_rows(rows)})


def _gpu_rows(job: int, stored: StoredAttempt) -> list[dict[str, object]]:
    """Return a row for each node; exporters call a job by the engine's id, unless the engine tells more."""
    attempt = stored.attempt
    ended_at = None if attempt.ending is None else attempt.ended_at or attempt.started_at
    gpus = attempt.gpus or tuple(NodeGpus(node, (stored.engine_id,)) for node in attempt.nodes)
    return [
        {
            "job": job,
            "attempt": stored.number,
            "node": here.node,
            "holders": here.holders,
            "gpus": here.indices,
            "ended_at": ended_at,
        }
        for here in gpus
        if attempt.devices
    ]
