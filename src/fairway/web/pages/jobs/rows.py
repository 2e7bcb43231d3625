"""Build the rows of the Jobs page: one for each job, or for a whole array. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from fairway.ledger.records.jobs import JobRow, JobSortKey
from fairway.model.job import OPEN_JOBS, JobState, format_job_id
from fairway.model.text import clean
from fairway.views.cost_records import Record
from fairway.views.jobs import BAD, STATE_WORDS, TASK_ORDER, gpus_text, name_text, note, pool_text, state_text
from fairway.web.format import duration
from fairway.wire import jobs as wire

SIGNS: Final[Mapping[JobState, str]] = {
    JobState.QUEUED: "○",
    JobState.WAITING: "◔",
    JobState.HELD: "‖",
    JobState.RUNNING: "▶",
    JobState.DONE: "✓",
    JobState.FAILED: "✗",
    JobState.CANCELLED: "–",
    JobState.TIMED_OUT: "◷",
    JobState.REFUSED: "⊘",
    JobState.LOST: "?",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the list."""

    name: str
    """Its CSS class, and its name in what a browser remembers."""
    title: str
    sort: JobSortKey | None = None
    numeric: bool = False
    fixed: bool = False
    """Whether it is always shown."""


COLUMNS: Final = (
    Column("id", "Job", JobSortKey.SUBMITTED, fixed=True),
    Column("name", "Name and reason", JobSortKey.NAME, fixed=True),
    Column("states", "State", JobSortKey.STATE, fixed=True),
    Column("gpus", "GPUs", JobSortKey.GPUS, numeric=True),
    Column("pool", "Pool", JobSortKey.POOL),
    Column("team", "Team", JobSortKey.TEAM),
    Column("user", "User", JobSortKey.USER),
    Column("priority", "Priority", JobSortKey.PRIORITY),
    Column("submitted", "Submitted", JobSortKey.SUBMITTED),
    Column("time", "Time", JobSortKey.TIME),
    Column("cost", "Cost", numeric=True),
)
"""The columns in their order."""


def tone(state: JobState) -> str:
    """Return the colour class of a state."""
    if state in BAD:
        return "bad"
    if state is JobState.RUNNING or state is JobState.DONE:
        return "good"
    return "warn" if state in OPEN_JOBS else "dim"


@dataclass(frozen=True, slots=True)
class StateBadge:
    """A state as shown: sign, word, colour class; for an array with the number of tasks."""

    sign: str
    word: str
    tone: str


@dataclass(frozen=True, slots=True)
class JobListRow:
    """One row of the list."""

    job: wire.Job
    """The job that represents it: an array whose tasks are in several pools has a row for each."""
    id: str
    name: str
    tasks: int
    """The number of tasks of an array; 0 for a single job, or a task by itself."""
    states: tuple[StateBadge, ...]
    gpus: str
    pool: str
    time: str
    note: str
    cost: Decimal | None
    selectable: bool
    """Whether the reader may hold, release or cancel it."""


def badge(state: JobState, text: str) -> StateBadge:
    """Build the badge of a state."""
    return StateBadge(SIGNS[state], text, tone(state))


def task_badges(tasks: Mapping[JobState, int], order: Iterable[JobState]) -> list[StateBadge]:
    """Build a badge with the number of tasks for each state that has any."""
    return [badge(state, f"{tasks[state]:,} {STATE_WORDS[state]}") for state in order if tasks.get(state)]


def job_row(
    row: JobRow,
    job: wire.Job,
    tasks: Mapping[JobState, int] | None,
    now: datetime,
    *,
    may_change: bool,
) -> JobListRow:
    """Build a row; `job` is `row` as the API returns it, with its budget; `tasks` the counts of an array."""
    states = [badge(row.state, state_text(job))] if tasks is None else task_badges(tasks, TASK_ORDER)
    return JobListRow(
        job=job,
        id=format_job_id(row.array) if tasks is not None and row.array is not None else job.id,
        name=name_text(job) if tasks is None else clean(job.name),
        tasks=sum(tasks.values()) if tasks is not None else 0,
        states=tuple(states),
        gpus=gpus_text(job).replace("x", " × "),
        pool=clean(pool_text(job)),
        time=time_text(row, now) if tasks is None else "",
        note="" if tasks is not None else clean(note(job, now)),
        cost=job.cost.amount if job.cost is not None and tasks is None else None,
        selectable=may_change and any(state in OPEN_JOBS for state in tasks or (row.state,)),
    )


def job_record(job: wire.Job) -> Record:
    """Build the record of a job in a CSV file."""
    return {
        "id": job.id,
        "name": name_text(job),
        "kind": job.kind,
        "state": job.state.value,
        "code": job.code,
        "reason": clean(job.reason),
        "gpus": job.devices,
        "nodes": job.nodes,
        "replicas": "" if job.replicas is None else job.replicas,
        "slice": job.slice or "",
        "pool": job.pool or "",
        "cluster": job.cluster,
        "team": job.team or "",
        "user": job.user,
        "priority": job.priority or "",
        "submitted": moment_text(job.submitted_at),
        "started": moment_text(job.started_at),
        "ended": moment_text(job.ended_at),
        "exit_code": "" if job.exit_code is None else job.exit_code,
        "engine_id": job.engine_id or "",
        "cost": "" if job.cost is None else job.cost.amount,
        "currency": "" if job.cost is None else job.cost.currency,
    }


def moment_text(value: datetime | None) -> str:
    """Format a time for a file, empty if there is none."""
    return "" if value is None else value.strftime("%Y-%m-%dT%H:%M:%SZ")


def time_text(row: JobRow, now: datetime) -> str:
    """Format how long the job has waited, has been running or ran."""
    if row.state is JobState.RUNNING and row.started_at is not None:
        return f"running {duration(now - row.started_at)}"
    if row.state in OPEN_JOBS:
        return f"waiting {duration(now - row.submitted_at)}"
    if row.started_at is not None and row.ended_at is not None:
        return f"ran {duration(row.ended_at - row.started_at)}"
    return "did not run"
