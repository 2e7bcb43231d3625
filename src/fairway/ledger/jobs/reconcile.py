"""Decide which stored jobs a batch of reported engine jobs changes. Pure: from rows and reports to changes.

Reports may arrive twice, and sometimes an old one after a newer one: an engine's records lag behind its
queue. Attempts show which is newer: they are identified by their start, and hardly ever undone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from fairway.ledger.jobs import dispatch
from fairway.ledger.jobs.attempts import (
    SAME_START,
    MergedAttempts,
    is_stale,
    merge_attempts,
    with_stored_values,
)
from fairway.ledger.jobs.replicas import has_replicas, merge_replicas
from fairway.ledger.jobs.run_times import LEARNT_ENDINGS
from fairway.ledger.jobs.store import attempt_of
from fairway.ledger.jobs.submit import JobClass
from fairway.ledger.records.jobs import DesiredState, StoredAttempt
from fairway.ledger.schema.tables import NONE
from fairway.ledger.sql_values import AnyRow, sanitize
from fairway.model.job import (
    OPEN_JOBS,
    Ending,
    EngineId,
    JobId,
    JobSpec,
    JobState,
    SeenJob,
    engine_name,
    parse_engine_name,
)
from fairway.model.labels import MAX_LABEL_LENGTH
from fairway.policy import retry

COLUMNS: Final = """
    id bigint, class int, name text, state text, wish text, asked bool, code text, reason text,
    reason_code text, engine_id text, gpus int, nodes int, devices int, submission int, failures int,
    attempts int, replicas int, started_at timestamptz, ended_at timestamptz, exit_code int, time_seconds int,
    not_before timestamptz, sending_until timestamptz, sent_at timestamptz
"""
"""The columns of a job's row that reports may change, in the order of `JobRecord`."""

NAMES: Final = tuple(column.split()[0] for column in COLUMNS.split(","))


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The mutable part of a job's row."""

    class_: int
    name: str
    state: JobState
    wish: DesiredState
    asked: bool
    code: str
    reason: str
    reason_code: str
    engine_id: str | None
    gpus: int
    nodes: int
    devices: int
    submission: int
    failures: int
    attempts: int
    replicas: int | None
    started_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    time_seconds: int | None
    not_before: datetime
    sending_until: datetime | None
    sent_at: datetime | None

    @property
    def open(self) -> bool:
        return self.state in OPEN_JOBS


@dataclass(frozen=True, slots=True)
class EngineJobLink:
    """The job that an engine job belongs to."""

    job: int
    submission: int
    attempts_before: int
    double: bool
    stored: bool = True
    """False: found by the engine job's name alone; not stored yet."""


@dataclass(slots=True)
class StoredJobs:
    """The stored rows of the jobs of a batch."""

    links: dict[str, EngineJobLink]
    rows: dict[int, AnyRow]
    attempts: dict[int, list[AnyRow]]
    classes: Mapping[JobClass, int]

    def attempts_of(self, job: int, engine_id: str) -> list[StoredAttempt]:
        return [attempt_of(row) for row in self.attempts.get(job, ()) if row.engine_id == engine_id]


@dataclass(slots=True)
class JobChanges:
    """The changes of a batch."""

    jobs: dict[int, JobRecord] = field(default_factory=dict)
    attempts: list[tuple[int, MergedAttempts]] = field(default_factory=list)
    located: list[tuple[int, StoredAttempt]] = field(default_factory=list)
    """Attempts that are as they were, with the GPUs that the engine tells now."""
    replicas: dict[int, tuple[StoredAttempt, ...]] = field(default_factory=dict)
    """The replicas that run of jobs of which none changed."""
    links: list[tuple[EngineId, int, int, int, bool]] = field(default_factory=list)
    failed: list[tuple[int, SeenJob]] = field(default_factory=list)
    """Fairway's jobs that ended and were open: they may be retried."""
    ended: list[int] = field(default_factory=list)
    new: list[SeenJob] = field(default_factory=list)
    doubles: list[EngineId] = field(default_factory=list)
    events: list[dict[str, object]] = field(default_factory=list)

    @property
    def touched(self) -> set[int]:
        return {*self.jobs, *(job for job, _ in self.attempts), *(link[1] for link in self.links)}

    def defer(self, job: int) -> None:
        """Take out what would be written of a job that ended."""
        self.jobs.pop(job, None)
        self.attempts = [(id_, merged) for id_, merged in self.attempts if id_ != job]
        self.failed = [(id_, report) for id_, report in self.failed if id_ != job]
        self.ended.remove(job)

    def to_meter(self, stored: StoredJobs) -> set[tuple[int, int | None]]:
        """Return the attempts whose usage may have changed, by job and number; None: all of a job.

        A job's usage changes with its attempts, with its class, and when it ends.
        """
        merged_by_job = dict(self.attempts)
        moved = {
            job
            for job, now in self.jobs.items()
            if (before := record_of(stored.rows[job])).class_ != now.class_ or before.open != now.open
        }
        found: set[tuple[int, int | None]] = set()
        for job in moved | merged_by_job.keys():
            merged = merged_by_job.get(job)
            replicas = self.replicas.get(job) if merged is None else merged.running
            if replicas is None:
                found.add((job, None))
                continue
            changed = () if merged is None else (*merged.gone, *(put.number for put in merged.put))
            found.update((job, number) for number in changed)
            if job in moved:
                found.update((job, one.number) for one in replicas)
        return found

    def to_learn(self, stored: StoredJobs) -> set[tuple[int, int]]:
        """Return the attempts that ended by themselves now, by job and number: their run times are learnt."""
        found: set[tuple[int, int]] = set()
        for job, merged in self.attempts:
            before = {row.number: row.ending for row in stored.attempts.get(job, ())}
            found.update(
                (job, put.number)
                for put in merged.put
                if put.attempt.ending in LEARNT_ENDINGS
                and before.get(put.number) not in LEARNT_ENDINGS
                and not put.attempt.replica
            )
        return found


def decide(reports: Sequence[SeenJob], stored: StoredJobs) -> JobChanges:
    """Compute what to write, so that the ledger matches what the engine reports."""
    changes = JobChanges()
    linked: set[int] = set()
    for report in reports:
        link = stored.links.get(report.engine_id)
        row = None if link is None else stored.rows.get(link.job)
        if link is None or row is None:
            changes.new.append(report)
            continue
        has_another = row.engine_id not in {None, report.engine_id} or row.id in linked
        if not row.native and (has_another or link.double or link.submission < row.submission):
            _add_double(report, link, row, stored, changes)
            continue
        _update(report, link, row, stored, changes)
        if not link.stored:
            linked.add(row.id)
            changes.links.append((report.engine_id, row.id, link.submission, link.attempts_before, False))
    return changes


def _update(
    report: SeenJob, link: EngineJobLink, row: AnyRow, stored: StoredJobs, changes: JobChanges
) -> None:
    record = record_of(row)
    attempts = stored.attempts_of(row.id, report.engine_id)
    if row.native and _is_reused_id(record, report):
        changes.new.append(report)
        return
    # A job that was cancelled or refused before its engine job was known has one after all.
    unknown = not row.native and row.engine_id is None
    if not unknown and _has_ended(record, report):
        return
    if has_replicas(report, record.replicas):
        merged = merge_replicas(attempts, record.attempts, report, row.complete_at)
    else:
        report = with_stored_values(attempts, report)
        if is_stale(attempts, report):
            return
        merged = merge_attempts(attempts, link.attempts_before, report, row.complete_at)
    class_ = stored.classes[native_class(report, row.cluster, row)] if row.native else None
    now = updated(record, report, merged, class_)
    if now != record:
        changes.jobs[row.id] = now
        if record.open and not now.open:
            changes.ended.append(row.id)
            if not row.native:
                changes.failed.append((row.id, report))
    if merged.put or merged.gone:
        changes.attempts.append((row.id, merged))
    elif merged.running is not None:
        changes.replicas[row.id] = merged.running
    changes.located += [(row.id, attempt) for attempt in merged.located]


def _add_double(
    report: SeenJob, link: EngineJobLink, row: AnyRow, stored: StoredJobs, changes: JobChanges
) -> None:
    """Record a second engine job of an order, or one of an order that a newer submission replaced.

    The latter has ended; only if it was started again does it run beside its successor.
    """
    is_open = report.state in OPEN_JOBS
    if is_open and link.stored and not link.double:
        is_open = any(
            new.ended_at is not None or new.started_at > old.attempt.started_at + SAME_START
            for new in report.attempts[-1:]
            for old in stored.attempts_of(row.id, report.engine_id)[-1:]
        )
    if is_open:
        changes.doubles.append(report.engine_id)
    if not link.stored:
        changes.links.append((report.engine_id, row.id, link.submission, 0, True))
        changes.events.append(dispatch.double_event(row.id, report.engine_id))


def find_link(
    report: SeenJob,
    link: EngineJobLink | None,
    order: tuple[int, int] | None,
    rows: Mapping[int, AnyRow],
    prefix: str,
) -> EngineJobLink | None:
    """Find an engine job's job, by its stored link or its name. Returns None if it is a new native one."""
    row = None if link is None else rows.get(link.job)
    if row is not None and (row.native or _belongs_to(report, row, prefix)):
        return link
    # Unknown, or the engine gave the number of one of Fairway's to another job.
    row = None if order is None else rows.get(order[0])
    if order is None or row is None or order[1] > row.submission or not _belongs_to(report, row, prefix):
        return None
    return EngineJobLink(*order, row.attempts, False, stored=False)


def _belongs_to(report: SeenJob, row: AnyRow, prefix: str) -> bool:
    """Return whether an engine job is Fairway's: the whole name matches, and no other user created it."""
    order = parse_engine_name(report.name, prefix)
    return (
        order is not None
        and not row.native
        and report.name == engine_name(prefix, JobId(row.id), order[1], row.name)
        and report.user in {"", row.user_name}
    )


def _has_ended(record: JobRecord, report: SeenJob) -> bool:
    """Return whether the job has ended and the report does not show that it started again after that."""
    if record.open or record.state is JobState.LOST or report.state not in OPEN_JOBS:
        return False
    if record.ended_at is None:
        return True
    starts = [report.submitted_at, *(a.started_at for a in report.attempts)]
    return all(start <= record.ended_at for start in starts)


def _is_reused_id(record: JobRecord, report: SeenJob) -> bool:
    """Return whether an ended job and a report share only the engine id: the engine reused it."""
    return (
        not record.open
        and record.ended_at is not None
        and report.submitted_at > record.ended_at
        and report.earlier_attempts == 0
        and all(a.started_at > record.ended_at for a in report.attempts)
    )


def updated(record: JobRecord, report: SeenJob, attempts: MergedAttempts, class_: int | None) -> JobRecord:
    """Return the job's row as the engine reports it. `class_` is a native job's class, else None."""
    over = report.state not in OPEN_JOBS
    wish, asked = _desired_state(record, report.state)
    native: dict[str, Any] = {}
    if class_ is not None:  # only the engine knows these fields of a native job
        native = {
            "class_": class_,
            "name": sanitize(report.name),
            "time_seconds": report.time_seconds,
        }
    if native or report.service:  # which anybody may scale with the engine's own tools
        record = replace(record, gpus=report.gpus, nodes=report.nodes, devices=requested_devices(report))
    held = _held_by_replicas if attempts.running is not None else _held_by_last
    return replace(
        record,
        state=report.state,
        wish=wish,
        asked=asked,
        code="",
        reason=sanitize(report.reason),
        reason_code=report.reason_code,
        engine_id=report.engine_id,
        attempts=attempts.total,
        ended_at=report.ended_at if over else None,
        exit_code=report.exit_code if over else None,
        sending_until=None,
        sent_at=None if native else record.sent_at or report.submitted_at,
        **native,
        **held(record, report, attempts),
    )


def _held_by_last(record: JobRecord, report: SeenJob, _attempts: MergedAttempts) -> dict[str, Any]:
    """Return what the last attempt of a job holds or held, and since when."""
    last = report.attempts[-1] if report.attempts else None
    if last is None:
        return {}
    return {"devices": last.devices, "started_at": last.started_at}


def _held_by_replicas(record: JobRecord, report: SeenJob, attempts: MergedAttempts) -> dict[str, Any]:
    """Return what the replicas that run hold together, and when the first one of all started."""
    running = attempts.running or ()
    known = () if record.started_at is None else (record.started_at,)
    return {
        "replicas": len(running),
        "devices": sum(one.attempt.devices for one in running) or record.devices,
        "started_at": min((*known, *(one.started_at for one in report.attempts)), default=None),
    }


def requested_devices(report: SeenJob) -> int:
    """Return the GPUs or slices that a job requests on all nodes."""
    return report.gpus * report.nodes if report.devices is None else report.devices


def _desired_state(record: JobRecord, state: JobState) -> tuple[DesiredState, bool]:
    """Return the desired state, and whether it is still to be requested, given the engine's state.

    A user who holds or releases a job with the engine's own tool also changes the desired state.
    """
    wish, asked = record.wish, record.asked
    if state not in OPEN_JOBS:
        return wish, False
    if wish is DesiredState.CANCEL:
        return wish, True
    if state is JobState.HELD:
        return (wish, asked) if wish is DesiredState.RUN and asked else (DesiredState.HOLD, False)
    if wish is DesiredState.HOLD:
        return (wish, True) if asked else (DesiredState.RUN, False)
    # A hold that was released may still be on its way to the engine; only a later state shows that it is not.
    passed = state is JobState.RUNNING or record.state is JobState.HELD
    return wish, asked and not passed


def requeued(
    record: JobRecord,
    report: SeenJob,
    spec: JobSpec,
    now: datetime,
    fault: retry.HardwareFault | None = None,
    spared: int = 0,
) -> tuple[JobRecord, str] | None:
    """Queue an ended job again and return it with the reason. Returns None if it is not retried.

    `fault` is what broke under it, and `spared` how often that happened before.
    """
    if record.wish is DesiredState.CANCEL:
        return None
    last = report.attempts[-1].ending if report.attempts else None
    resubmission = retry.decide_resubmission(
        spec,
        report.state,
        last,
        failures=record.failures,
        submission=record.submission,
        hardware=fault is not None,
        spared=spared,
    )
    if resubmission is None:
        return None
    delay = resubmission.after_seconds
    why = f": {fault.text(report.ended_at or now)}" if fault is not None else ""
    free = "; uses up no retry" if fault is not None and resubmission.failures == record.failures else ""
    reason = f"{_ending_text(record, report, last)}{why}{free}; comes back" + (
        f" after {delay} s" if delay else " at once"
    )
    queued = replace(
        record,
        state=JobState.HELD if record.wish is DesiredState.HOLD else JobState.QUEUED,
        asked=False,
        code="Retry",
        reason=sanitize(reason),
        reason_code="",
        engine_id=None,
        submission=record.submission + 1,
        failures=resubmission.failures,
        ended_at=None,
        exit_code=None,
        not_before=(record.ended_at or now) + timedelta(seconds=delay),
        sent_at=None,
    )
    return queued, reason


def _ending_text(record: JobRecord, report: SeenJob, last: Ending | None) -> str:
    if last is Ending.PREEMPTED:
        return f"attempt {record.attempts} was preempted"
    if last is Ending.NODE_LOST:
        return f"attempt {record.attempts} was lost with its node"
    if report.state is JobState.TIMED_OUT:
        return f"attempt {record.attempts} ran out of time"
    code = "" if report.exit_code is None else f" with exit code {report.exit_code}"
    return f"attempt {record.attempts} failed{code}"


def native_class(report: SeenJob, cluster: str, stored: AnyRow | None) -> JobClass:
    """Return the class of a native job; `stored` is its row, if it has one."""
    pool, slice_ = (report.supply.pool, report.supply.slice) if report.supply is not None else (NONE, None)
    if report.supply is None and stored is not None and has_replicas(report, stored.replicas):
        pool, slice_ = stored.pool, stored.slice  # no pod is there to tell: it was scaled to 0, or ended
    team, priority = report.team or NONE, report.priority or NONE
    of = (cluster, report.user, team, pool, slice_ or NONE, priority)
    # What the engine does not tell, e.g. in the records of ended jobs, is as it was.
    project, labels = report.project, report.labels
    if project is None:
        project = stored.project if stored is not None else NONE
    if labels is None:
        labels = tuple(sorted(stored.labels.items())) if stored is not None else ()
    return JobClass(
        *of,
        native=True,
        kind=sanitize(report.kind),
        service=report.service,
        project=sanitize(project, MAX_LABEL_LENGTH),
        labels=labels,
    )


def new_native_record(report: SeenJob, class_: int) -> JobRecord:
    """Return the initial row of a native job."""
    return JobRecord(
        class_=class_,
        name=sanitize(report.name),
        state=JobState.WAITING,
        wish=DesiredState.RUN,
        asked=False,
        code="",
        reason="",
        reason_code="",
        engine_id=report.engine_id,
        gpus=report.gpus,
        nodes=report.nodes,
        devices=requested_devices(report),
        submission=0,
        failures=0,
        attempts=0,
        replicas=None,
        started_at=None,
        ended_at=None,
        exit_code=None,
        time_seconds=None,
        not_before=report.submitted_at,
        sending_until=None,
        sent_at=None,
    )


def record_of(row: AnyRow) -> JobRecord:
    """Convert a row to a JobRecord."""
    _, class_, name, state, wish, *rest = row[: len(NAMES)]
    return JobRecord(class_, name, JobState(state), DesiredState(wish), *rest)


def columns_of(id_: int, record: JobRecord) -> dict[str, object]:
    """Convert a JobRecord to the columns of a row."""
    values: dict[str, object] = {name: getattr(record, name) for name in NAMES[2:]}
    return {"id": id_, "class": record.class_} | values
