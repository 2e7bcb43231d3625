"""How jobs look: a list with arrays as one line each, and one job with its timeline. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from fairway.api import job_wire as wire
from fairway.api.job_words import BAD, gpus_text, note, pool_text, state_text, tasks_text
from fairway.cli.layout import Column, Fit
from fairway.cli.views import View
from fairway.cli.words import UNKNOWN, count, since, span
from fairway.model.job import JobState


@dataclass(frozen=True, slots=True)
class Group:
    """A line of the list: a job, or an array with how many of its tasks are in which state."""

    job: wire.Job
    """Of an array its newest task that was read."""
    tasks: Mapping[JobState, int] | None = None
    """None: a single job, or a task shown by itself."""

    @property
    def id(self) -> str:
        """What to call it by: an array by its first task."""
        return self.job.array or self.job.id if self.tasks is not None else self.job.id


def grouped(jobs: Sequence[wire.Job], whole: Mapping[str, wire.TaskCounts]) -> list[Group]:
    """One entry for each single job and each array; `whole` has the counts of arrays not read to the end."""
    counts: dict[str, Counter[JobState]] = {}
    for job in jobs:
        if job.array is not None:
            counts.setdefault(job.array, Counter())[job.state] += 1
    groups: list[Group] = []
    for job in jobs:
        if job.array is None:
            groups.append(Group(job))
        elif seen := counts.pop(job.array, None):
            groups.append(Group(job, whole[job.array].counts if job.array in whole else seen))
    return groups


def jobs_view(groups: Sequence[Group], now: datetime, *, wide: bool, filtered: bool, more: bool) -> View:
    """One row a job or array."""
    columns = [
        Column("JOB"),
        Column("NAME", fit=Fit.MIDDLE),
        Column("STATE", fit=Fit.END),
        Column("GPUS", right=True),
        Column("POOL", fit=Fit.MIDDLE),
        Column("TEAM", fit=Fit.MIDDLE, hide_if_empty=True),
        Column("USER", fit=Fit.MIDDLE),
        Column("AGE", right=True),
        Column("RAN", right=True),
        Column("NOTE", fit=Fit.END, hide_if_empty=True),
    ]
    rows = [_row(group, now) for group in groups]
    if wide:
        columns += [
            Column("CLUSTER"),
            Column("PRIORITY"),
            Column("ATTEMPTS", right=True),
            Column("ENGINE JOB"),
        ]
        for row, group in zip(rows, groups, strict=True):
            job = group.job
            row += [job.cluster, job.priority or "", str(job.attempts), job.engine_id or UNKNOWN]
    shown = f"the newest {count(len(groups), 'line')}" if more else ""
    return View(
        columns,
        rows,
        empty="no job fits" if filtered else "no jobs yet",
        hint="ask for more:  fairway get jobs --all"
        if filtered
        else "submit one:  fairway run --gpus 1 -- nvidia-smi",
        notes=[f"{shown}; more with  --most {10 * len(groups)}  or  --all"] if more else [],
        alarming=frozenset(i for i, g in enumerate(groups) if _alarming(g)),
    )


def name_text(group: Group) -> str:
    """Its name; of an array with the number of its tasks, of a task with its index."""
    job = group.job
    if group.tasks is not None:
        return f"{job.name} x{sum(group.tasks.values())}"
    return job.name if job.array_index is None else f"{job.name}[{job.array_index}]"


def ran(job: wire.Job, now: datetime) -> str:
    """How long its last attempt ran, or runs."""
    if job.started_at is None or job.state in (JobState.QUEUED, JobState.WAITING, JobState.HELD):
        return UNKNOWN
    return span(((job.ended_at or now) - job.started_at).total_seconds())


def _row(group: Group, now: datetime) -> list[str]:
    job = group.job
    state, spent = state_text(job), ran(job, now)
    if group.tasks is not None:
        state, spent = tasks_text(group.tasks), UNKNOWN
    return [
        group.id,
        name_text(group),
        state,
        gpus_text(job),
        pool_text(job),
        job.team or "",
        job.user or UNKNOWN,
        since(job.submitted_at, now),
        spent,
        "" if group.tasks is not None else note(job),
    ]


def _alarming(group: Group) -> bool:
    states = group.tasks if group.tasks is not None else {group.job.state: 1}
    return any(states.get(state) for state in BAD)
