"""Build the rows of the Jobs page: one for each job, or for a whole array. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from fairway.ledger.records.jobs import JobRow
from fairway.model.job import OPEN_JOBS, JobState, format_job_id
from fairway.model.text import clean
from fairway.views.jobs import BAD, TASK_ORDER, gpus_text, name_text, note, pool_text, state_text
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


def badge(state: JobState, text: str) -> StateBadge:
    """Build the badge of a state."""
    return StateBadge(SIGNS[state], text, tone(state))


def task_badges(tasks: Mapping[JobState, int], order: Iterable[JobState]) -> list[StateBadge]:
    """Build a badge with the number of tasks for each state that has any."""
    return [badge(state, f"{tasks[state]:,} {state.value}") for state in order if tasks.get(state)]


def job_row(
    row: JobRow,
    job: wire.Job,
    tasks: Mapping[JobState, int] | None,
    now: datetime,
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
        time=time_text(row, now) if tasks is None else f"since {duration(now - row.submitted_at)}",
        note="" if tasks is not None else clean(note(job)),
        cost=job.cost.amount if job.cost is not None and tasks is None else None,
    )


def time_text(row: JobRow, now: datetime) -> str:
    """Format how long the job has waited, runs or ran."""
    if row.state is JobState.RUNNING and row.started_at is not None:
        return f"runs {duration(now - row.started_at)}"
    if row.state in OPEN_JOBS:
        return f"waits {duration(now - row.submitted_at)}"
    if row.started_at is not None and row.ended_at is not None:
        return f"ran {duration(row.ended_at - row.started_at)}"
    return "never ran"
