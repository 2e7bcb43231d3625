"""Decide what a batch of engine jobs changes of the stored ones. Pure: from rows and sightings to changes.

Sightings may arrive twice, and sometimes an old one after a newer one: an engine's records lag behind its
queue. Attempts show which is newer: they are identified by their start, and hardly ever undone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row

from fairway.ledger.fleet.observations import kept
from fairway.ledger.jobs import dispatch
from fairway.ledger.jobs.rows import JobClass
from fairway.ledger.jobs.store import attempt_of
from fairway.ledger.records.jobs import DesiredState
from fairway.ledger.schema.tables import NONE
from fairway.model.job import (
    OPEN_JOBS,
    Attempt,
    Ending,
    EngineId,
    JobId,
    JobSpec,
    JobState,
    SeenJob,
    engine_name,
    parse_job_id,
)
from fairway.policy import retry

SAME_START: Final = timedelta(seconds=5)
"""Starts no further apart belong to one attempt: engines correct themselves by a second or two."""


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
class NumberedAttempt:
    """An attempt with its number."""

    number: int
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class MergedAttempts:
    """The attempts of one engine job after a sighting."""

    put: tuple[NumberedAttempt, ...]
    """New or changed."""
    gone: tuple[int, ...]
    total: int
    """The number of the last attempt."""


def is_stale(known: Sequence[NumberedAttempt], seen: SeenJob) -> bool:
    """Return whether the stored attempts are certainly newer than the sighting."""
    if not known or not seen.attempts:
        return False
    last, shown = known[-1].attempt, seen.attempts[-1]
    if shown.started_at < last.started_at - SAME_START:
        # Slurm may show a start that comes to nothing, and its accounting never hears of: once the job is
        # over, after that, what it tells is all there was.
        return seen.state in OPEN_JOBS or seen.ended_at is None or seen.ended_at < last.started_at
    same = shown.started_at <= last.started_at + SAME_START
    return same and last.ended_at is not None and shown.ended_at is None


def is_over_for_good(standing: JobRecord, seen: SeenJob) -> bool:
    """Return whether the job has ended and the sighting does not show that it started again after that."""
    if standing.open or standing.state is JobState.LOST or seen.state not in OPEN_JOBS:
        return False
    if standing.ended_at is None:
        return True
    began = [seen.submitted_at, *(a.started_at for a in seen.attempts[-1:])]
    return all(moment <= standing.ended_at for moment in began)


def is_another(standing: JobRecord, seen: SeenJob) -> bool:
    """Return whether an ended job and a sighting share only the engine id: the engine reused it."""
    return (
        not standing.open
        and standing.ended_at is not None
        and seen.submitted_at > standing.ended_at
        and seen.earlier_attempts == 0
        and all(a.started_at > standing.ended_at for a in seen.attempts)
    )


def recalled(known: Sequence[NumberedAttempt], seen: SeenJob) -> SeenJob:
    """Return the sighting with stored values filled in where the engine no longer reports nodes.

    A deleted pod takes its node and start time along; what is left began a little earlier.
    """
    if all(attempt.nodes for attempt in seen.attempts):
        return seen
    return replace(seen, attempts=tuple(_recalled(known, attempt) for attempt in seen.attempts))


def _recalled(known: Sequence[NumberedAttempt], shown: Attempt) -> Attempt:
    if not shown.nodes:
        for kept_one in reversed(known):
            old = kept_one.attempt
            within = shown.ended_at is None or old.started_at <= shown.ended_at
            if old.nodes and shown.started_at <= old.started_at and within:
                return replace(shown, started_at=old.started_at, nodes=old.nodes, devices=old.devices)
    return shown


def merged(known: Sequence[NumberedAttempt], before: int, seen: SeenJob) -> MergedAttempts:
    """Merge a sighting's attempts; `before` is the number of the job's attempts before this engine job.

    Attempts the engine no longer reports stay. One that was still running is then marked as lost.
    """
    if seen.attempts:
        first = seen.attempts[0].started_at - SAME_START
        earlier = [k for k in known if k.attempt.started_at < first]
    else:
        earlier = list(known)
    offset = max([before + seen.earlier_attempts, *(k.number for k in earlier)])
    now = [NumberedAttempt(offset + place, _kept(a)) for place, a in enumerate(seen.attempts, 1)]
    if seen.attempts or seen.state is not JobState.RUNNING:
        closed = [
            replace(k, attempt=replace(k.attempt, ending=Ending.LOST))
            for k in earlier
            if k.attempt.ending is None
        ]
        now = [*closed, *now]
    old = {k.number: k.attempt for k in known}
    stays = {k.number for k in earlier} | {n.number for n in now}
    return MergedAttempts(
        put=tuple(n for n in now if old.get(n.number) != n.attempt),
        gone=tuple(number for number in old if number not in stays),
        total=offset + len(seen.attempts),
    )


def followed(standing: JobRecord, seen: SeenJob, attempts: MergedAttempts, class_: int | None) -> JobRecord:
    """Return the job's row as the engine reports it. `class_` is a native job's class, else None."""
    over = seen.state not in OPEN_JOBS
    wish, asked = _wish(standing, seen.state)
    last = seen.attempts[-1] if seen.attempts else None
    native = {} if class_ is None else _as_told(seen, class_)
    return replace(
        standing,
        state=seen.state,
        wish=wish,
        asked=asked,
        code="",
        reason=kept(seen.reason),
        reason_code=seen.reason_code,
        engine_id=seen.engine_id,
        attempts=attempts.total,
        devices=last.devices if last is not None else native.pop("devices", standing.devices),
        started_at=last.started_at if last is not None else standing.started_at,
        ended_at=seen.ended_at if over else None,
        exit_code=seen.exit_code if over else None,
        sending_until=None,
        sent_at=None if native else standing.sent_at or seen.submitted_at,
        **{name: value for name, value in native.items() if name != "devices"},
    )


def _as_told(seen: SeenJob, class_: int) -> dict[str, Any]:
    """Return the fields of a native job that only the engine knows."""
    return {
        "class_": class_,
        "name": kept(seen.name),
        "gpus": seen.gpus,
        "nodes": seen.nodes,
        "devices": seen.gpus * seen.nodes,
        "time_seconds": seen.time_seconds,
    }


def brought_back(
    standing: JobRecord, seen: SeenJob, spec: JobSpec, now: datetime
) -> tuple[JobRecord, str] | None:
    """Queue an ended job again and return it with the reason. Returns None if it is not retried."""
    if standing.wish is DesiredState.CANCEL:
        return None
    last = seen.attempts[-1].ending if seen.attempts else None
    again = retry.comes_back(
        spec, seen.state, last, failures=standing.failures, submission=standing.submission
    )
    if again is None:
        return None
    how = _how(standing, seen, last)
    ended = standing.ended_at or now
    text = f"{how}; comes back" + (f" after {again.after_seconds} s" if again.after_seconds else " at once")
    back = replace(
        standing,
        state=JobState.HELD if standing.wish is DesiredState.HOLD else JobState.QUEUED,
        asked=False,
        code="Retry",
        reason=kept(text),
        reason_code="",
        engine_id=None,
        submission=standing.submission + 1,
        failures=again.failures,
        ended_at=None,
        exit_code=None,
        not_before=ended + timedelta(seconds=again.after_seconds),
        sent_at=None,
    )
    return back, text


def _wish(standing: JobRecord, state: JobState) -> tuple[DesiredState, bool]:
    """Return the current wish, and whether it is still to be done, given the engine's state.

    A user who holds or releases a job with the engine's own tool also changes the wish.
    """
    wish, asked = standing.wish, standing.asked
    if state not in OPEN_JOBS:
        return wish, False
    if wish is DesiredState.CANCEL:
        return wish, True
    if state is JobState.HELD:
        return (wish, asked) if wish is DesiredState.RUN and asked else (DesiredState.HOLD, False)
    if wish is DesiredState.HOLD:
        return (wish, True) if asked else (DesiredState.RUN, False)
    # A hold that was taken back may still be on its way to the engine; only what follows it tells.
    passed = state is JobState.RUNNING or standing.state is JobState.HELD
    return wish, asked and not passed


def _how(standing: JobRecord, seen: SeenJob, last: Ending | None) -> str:
    if last is Ending.PREEMPTED:
        return f"attempt {standing.attempts} was preempted"
    if last is Ending.NODE_LOST:
        return f"attempt {standing.attempts} was lost with its node"
    if seen.state is JobState.TIMED_OUT:
        return f"attempt {standing.attempts} ran out of time"
    code = "" if seen.exit_code is None else f" with exit code {seen.exit_code}"
    return f"attempt {standing.attempts} failed{code}"


def _kept(attempt: Attempt) -> Attempt:
    reason = kept(attempt.reason)
    return attempt if reason == attempt.reason else replace(attempt, reason=reason)


COLUMNS: Final = """
    id bigint, class int, name text, state text, wish text, asked bool, code text, reason text,
    reason_code text, engine_id text, gpus int, nodes int, devices int, submission int, failures int,
    attempts int, started_at timestamptz, ended_at timestamptz, exit_code int, time_seconds int,
    not_before timestamptz, sending_until timestamptz, sent_at timestamptz
"""
"""Of a job's row, what sightings may change, in the order of `JobRecord`."""

NAMES: Final = tuple(column.split()[0] for column in COLUMNS.split(","))


@dataclass(frozen=True, slots=True)
class EngineJobLink:
    """The job that an engine job belongs to."""

    job: int
    submission: int
    attempts_before: int
    double: bool
    kept: bool = True
    """False: known by its name alone; not stored yet."""


@dataclass(slots=True)
class StoredJobs:
    """The stored rows of the jobs of a batch."""

    links: dict[str, EngineJobLink]
    rows: dict[int, Row[*tuple[Any, ...]]]
    attempts: dict[int, list[Row[*tuple[Any, ...]]]]
    classes: Mapping[JobClass, int]

    def attempts_of(self, job: int, engine_id: str) -> list[NumberedAttempt]:
        return [
            NumberedAttempt(row.number, attempt_of(row))
            for row in self.attempts.get(job, ())
            if row.engine_id == engine_id
        ]


@dataclass(slots=True)
class JobChanges:
    """The changes of a batch."""

    jobs: dict[int, JobRecord] = field(default_factory=dict)
    attempts: list[tuple[int, str, MergedAttempts]] = field(default_factory=list)
    links: list[tuple[EngineId, int, int, int, bool]] = field(default_factory=list)
    failed: list[tuple[int, SeenJob]] = field(default_factory=list)
    """Fairway's jobs that ended and were open: they may be retried."""
    ended: list[int] = field(default_factory=list)
    new: list[SeenJob] = field(default_factory=list)
    doubles: list[EngineId] = field(default_factory=list)
    events: list[dict[str, object]] = field(default_factory=list)

    @property
    def touched(self) -> set[int]:
        return {*self.jobs, *(job for job, _, _ in self.attempts), *(link[1] for link in self.links)}

    def to_meter(self, known: StoredJobs) -> set[int]:
        """Return jobs whose usage may have changed: by their attempts, their class, or because they ended."""
        moved = {
            job
            for job, now in self.jobs.items()
            if (before := standing_of(known.rows[job])).class_ != now.class_ or before.open != now.open
        }
        return moved | {job for job, _, _ in self.attempts}


def link_of(
    job: SeenJob,
    link: EngineJobLink | None,
    order: tuple[int, int] | None,
    rows: Mapping[int, Row[*tuple[Any, ...]]],
    prefix: str,
) -> EngineJobLink | None:
    """Find an engine job's job, by its stored link or its name. Returns None if it is a new native one."""
    row = None if link is None else rows.get(link.job)
    if row is not None and (row.native or _is_of(job, row, prefix)):
        return link
    # Unknown, or the engine gave the number of one of ours to another job.
    row = None if order is None else rows.get(order[0])
    if order is None or row is None or order[1] > row.submission or not _is_of(job, row, prefix):
        return None
    return EngineJobLink(*order, row.attempts, False, kept=False)


def decide(seen: Sequence[SeenJob], known: StoredJobs) -> JobChanges:
    """Compute what to write, so that the ledger matches what the engine reports."""
    changes = JobChanges()
    found: set[int] = set()
    for job in seen:
        link = known.links.get(job.engine_id)
        row = None if link is None else known.rows.get(link.job)
        if link is None or row is None:
            changes.new.append(job)
            continue
        another = row.engine_id not in {None, job.engine_id} or row.id in found
        if not row.native and (another or link.double or link.submission < row.submission):
            _double(job, link, row, known, changes)
            continue
        _follow(job, link, row, known, changes)
        if not link.kept:
            found.add(row.id)
            changes.links.append((job.engine_id, row.id, link.submission, link.attempts_before, False))
    return changes


def _follow(
    job: SeenJob, link: EngineJobLink, row: Row[*tuple[Any, ...]], known: StoredJobs, changes: JobChanges
) -> None:
    standing = standing_of(row)
    attempts = known.attempts_of(row.id, job.engine_id)
    if row.native and is_another(standing, job):
        changes.new.append(job)
        return
    job = recalled(attempts, job)
    # One that was cancelled or refused before anybody knew of an engine job has one after all.
    unknown = not row.native and row.engine_id is None
    if is_stale(attempts, job) or (not unknown and is_over_for_good(standing, job)):
        return
    all_attempts = merged(attempts, link.attempts_before, job)
    class_ = known.classes[class_of(job, row.cluster)] if row.native else None
    now = followed(standing, job, all_attempts, class_)
    if now != standing:
        changes.jobs[row.id] = now
        if standing.open and not now.open:
            changes.ended.append(row.id)
            if not row.native:
                changes.failed.append((row.id, job))
    if all_attempts.put or all_attempts.gone:
        changes.attempts.append((row.id, job.engine_id, all_attempts))


def _double(
    job: SeenJob, link: EngineJobLink, row: Row[*tuple[Any, ...]], known: StoredJobs, changes: JobChanges
) -> None:
    """Record a second engine job of an order, or one of an order that a newer submission replaced.

    The latter has ended; only if it was started again does it run beside its successor.
    """
    is_open = job.state in OPEN_JOBS
    if is_open and link.kept and not link.double:
        last = known.attempts_of(row.id, job.engine_id)[-1:]
        shown = job.attempts[-1:]
        is_open = any(
            new.ended_at is not None or new.started_at > old.attempt.started_at + SAME_START
            for new in shown
            for old in last
        )
    if is_open:
        changes.doubles.append(job.engine_id)
    if not link.kept:
        changes.links.append((job.engine_id, row.id, link.submission, 0, True))
        changes.events.append(dispatch.double_event(row.id, job.engine_id))


def order_in(name: str, prefix: str) -> tuple[int, int] | None:
    """Parse job and submission from an engine job's name. Returns None if it is not this ledger's."""
    found = re.search(f"-fw{prefix}-([0-9a-z]{{4,12}})-([0-9]{{1,9}})$", name)
    number = None if found is None else parse_job_id(found[1])
    return None if found is None or number is None else (number, int(found[2]))


def _is_of(job: SeenJob, row: Row[*tuple[Any, ...]], prefix: str) -> bool:
    """Return whether an engine job is Fairway's: the whole name matches, and no other user created it."""
    order = order_in(job.name, prefix)
    return (
        order is not None
        and not row.native
        and job.name == engine_name(prefix, JobId(row.id), order[1], row.name)
        and job.user in {"", row.user_name}
    )


def class_of(job: SeenJob, cluster: str) -> JobClass:
    """Return the class of a native job."""
    pool, slice_ = (job.supply.pool, job.supply.slice) if job.supply is not None else (NONE, None)
    return JobClass(cluster, job.user, job.team or NONE, pool, slice_ or NONE, job.priority or NONE, True)


def newborn(job: SeenJob, class_: int) -> JobRecord:
    """Return the initial row of a native job."""
    return JobRecord(
        class_=class_,
        name=kept(job.name),
        state=JobState.WAITING,
        wish=DesiredState.RUN,
        asked=False,
        code="",
        reason="",
        reason_code="",
        engine_id=job.engine_id,
        gpus=job.gpus,
        nodes=job.nodes,
        devices=job.gpus * job.nodes,
        submission=0,
        failures=0,
        attempts=0,
        started_at=None,
        ended_at=None,
        exit_code=None,
        time_seconds=None,
        not_before=job.submitted_at,
        sending_until=None,
        sent_at=None,
    )


def standing_of(row: Row[*tuple[Any, ...]]) -> JobRecord:
    """Convert a row to a Standing."""
    _, class_, name, state, wish, *rest = row[: len(NAMES)]
    return JobRecord(class_, name, JobState(state), DesiredState(wish), *rest)


def columns_of(id_: int, standing: JobRecord) -> dict[str, object]:
    """Convert a Standing to the columns of a row."""
    values: dict[str, object] = {name: getattr(standing, name) for name in NAMES[2:]}
    return {"id": id_, "class": standing.class_} | values
