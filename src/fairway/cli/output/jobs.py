"""Format jobs: a list with one row for each array, one job with its timeline, why it waits. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fairway.cli.output.format import UNKNOWN, count, since, span
from fairway.cli.output.table import Column, Fit, ScreenLine, TableView, fold, folded
from fairway.model.job import JobState
from fairway.model.text import clean
from fairway.views.jobs import (
    BAD,
    Moment,
    facts,
    gpus_text,
    headline,
    next_step,
    note,
    pool_text,
    state_text,
    tasks_text,
    timeline,
)
from fairway.wire import jobs as wire


@dataclass(frozen=True, slots=True)
class Group:
    """A row of the list: a single job, or an array with the number of its tasks in each state."""

    job: wire.Job
    """For an array, its newest task that was read."""
    tasks: Mapping[JobState, int] | None = None
    """None for a single job, or a task shown by itself."""

    @property
    def id(self) -> str:
        """Return the id to show: for an array, its first task's."""
        return self.job.array or self.job.id if self.tasks is not None else self.job.id


def grouped(jobs: Sequence[wire.Job], whole: Mapping[str, wire.TaskCounts]) -> list[Group]:
    """Group jobs by array; `whole` has the counts of arrays of which not all tasks were read."""
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


def jobs_view(groups: Sequence[Group], now: datetime, *, wide: bool, filtered: bool, more: bool) -> TableView:
    """Return a table with one row for each job or array."""
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
            row += [job.cluster, job.priority or "", str(job.attempt_count), job.engine_id or UNKNOWN]
    shown = f"the newest {count(len(groups), 'line')}" if more else ""
    return TableView(
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
    """Format the name; for an array with its number of tasks, for a task with its index."""
    job = group.job
    if group.tasks is not None:
        return f"{job.name} x{sum(group.tasks.values())}"
    return job.name if job.array_index is None else f"{job.name}[{job.array_index}]"


def ran(job: wire.Job, now: datetime) -> str:
    """Format how long the last attempt ran, or has been running."""
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


_LABEL: Final = 14

COLOURS: Final = {JobState.RUNNING: "green", **dict.fromkeys(BAD, "red")}

_TONES: Final = {"good": "green", "warn": "yellow", "bad": "red"}


def story(
    job: wire.JobDetail, tasks: wire.TaskCounts | None, now: datetime, width: int | None
) -> list[ScreenLine]:
    """Format one job: headline, facts, timeline, next step."""
    lines = [ScreenLine(headline(job, now), COLOURS.get(job.state)), ScreenLine()]
    for label, text in facts(job, tasks):
        lines += _labelled(label, text, width)
    happened = timeline(job)
    if happened:
        lines += [ScreenLine(), ScreenLine("Timeline (UTC)")]
        lines += [line for m in happened for line in _moment(m, happened[0].at, width)]
    helpful = next_step(job)
    return [*lines, ScreenLine(), *(ScreenLine(text) for text in helpful)] if helpful else lines


def _labelled(label: str, text: str, width: int | None) -> list[ScreenLine]:
    """Format a fact beside its label; continuation lines are indented to the same column."""
    lines = [part for line in text.split("\n") for part in _folded_event(clean(line), width)]
    return [
        ScreenLine(f"  {label if i == 0 else '':<{_LABEL}}{line}".rstrip())
        for i, line in enumerate(lines or [""])
    ]


def _folded_event(text: str, width: int | None) -> list[str]:
    if width is None or len(text) + _LABEL + 2 <= width:
        return [text]
    return [line.strip() for line in fold(text, max(30, width - _LABEL - 2))]


def _moment(m: Moment, first: datetime, width: int | None) -> list[ScreenLine]:
    day = f"{m.at:%Y-%m-%d} " if m.at.date() != first.date() else ""
    lines = _folded_event(m.text, None if width is None else width - 12)
    head = f"  {day}{m.at:%H:%M:%S}  {m.what:<12}"
    return [
        ScreenLine((head if i == 0 else " " * len(head)) + line, _TONES.get(m.tone or "") if i == 0 else None)
        for i, line in enumerate(lines or [""])
    ]


def answer(found: wire.Why, width: int | None) -> list[ScreenLine]:
    """Format the answer of `fairway why`: the state, then each reason with code, engine evidence and hint."""
    lines = folded(found.summary, width, COLOURS.get(found.state))
    for reason in found.reasons:
        lines.append(ScreenLine())
        lines += folded(reason.text + _evidence(reason), width)
        if reason.hint:
            lines += folded(f"hint: {reason.hint}", width)
    return lines


def _evidence(reason: wire.WhyReason) -> str:
    """Format the evidence of a reason: ` (TeamAtCeiling; the engine says: AssocGrpGRES)`."""
    said = f"the engine says: {reason.engine}" if reason.engine else ""
    parts = "; ".join(filter(None, (reason.code, said)))
    return f" ({parts})" if parts else ""
