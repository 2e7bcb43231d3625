"""Format jobs: a list with one row for each array, one job with its timeline, why it waits. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from fairway.cli.output.fleet import condition_notes
from fairway.cli.output.format import UNKNOWN, Column, Fit, ScreenLine, TableView, count, folded, since, span
from fairway.cli.output.gpu_use import USE_TITLES, use_cells
from fairway.cli.output.messages import fold, in_context
from fairway.model.condition import ConditionType
from fairway.model.job import OPEN_JOBS, JobState
from fairway.model.text import clean
from fairway.views.jobs import (
    BAD,
    TimelineEntry,
    attempt_text,
    facts,
    gpus_text,
    headline,
    next_step,
    note,
    pool_text,
    replica_lines,
    state_text,
    tasks_text,
    timeline,
)
from fairway.views.queue import help_lines, wait_lines, waits
from fairway.views.summary import cost_text, summary_lines

if TYPE_CHECKING:
    from fairway.wire import fleet as fleet_wire
    from fairway.wire import jobs as wire


@dataclass(frozen=True, slots=True)
class JobGroup:
    """A row of the list: a single job, or an array with the number of its tasks in each state."""

    job: wire.Job
    """For an array, its newest task that was read."""
    tasks: Mapping[JobState, int] | None = None
    """None for a single job, or a task shown by itself."""

    @property
    def id(self) -> str:
        """Return the id to show: for an array, its first task's."""
        return self.job.array or self.job.id if self.tasks is not None else self.job.id


def group_jobs(jobs: Sequence[wire.Job], task_counts: Mapping[str, wire.TaskCounts]) -> list[JobGroup]:
    """Group jobs by array; `task_counts` has those of arrays of which not all tasks were read."""
    counts: dict[str, Counter[JobState]] = {}
    for job in jobs:
        if job.array is not None:
            counts.setdefault(job.array, Counter())[job.state] += 1
    groups: list[JobGroup] = []
    for job in jobs:
        if job.array is None:
            groups.append(JobGroup(job))
        elif read := counts.pop(job.array, None):
            groups.append(JobGroup(job, task_counts[job.array].counts if job.array in task_counts else read))
    return groups


def jobs_view(
    groups: Sequence[JobGroup], now: datetime, *, wide: bool, filtered: bool, more: bool
) -> TableView:
    """Return a table with one row for each job or array."""
    columns = [
        Column("JOB"),
        Column("NAME", fit=Fit.MIDDLE),
        Column("KIND", hide_if_empty=True),
        Column("STATE", fit=Fit.END),
        Column("GPUS", right=True),
        Column("POOL", fit=Fit.MIDDLE),
        Column("TEAM", fit=Fit.MIDDLE, hide_if_empty=True),
        Column("USER", fit=Fit.MIDDLE),
        *Column.numbers("AGE", "RAN"),
    ]
    rows = [_row(group, now) for group in groups]
    if wide:
        columns += [
            Column("PRIORITY", hide_if_empty=True),
            Column("ENGINE JOB"),
            Column("COST", right=True, hide_if_empty=True),
            *(Column(title, right=True, hide_if_empty=True) for title in USE_TITLES),
        ]
        for row, group in zip(rows, groups, strict=True):
            job = group.job
            cost = cost_text(job.cost) if job.cost is not None and group.tasks is None else ""
            use = use_cells(job.use if group.tasks is None else None)
            row.extend([job.priority or "", job.engine_id or UNKNOWN, cost, *use])
    # Last, because it is a sentence in the wide table.
    columns.append(Column("NOTE", fit=Fit.END, hide_if_empty=True))
    for row, group in zip(rows, groups, strict=True):
        row.append(_note(group, now, wide=wide))
    limit_text = f"Showing the newest {count(len(groups), 'row')}" if more else ""
    return TableView(
        columns,
        rows,
        empty="no jobs match" if filtered else "no jobs yet",
        hint="remove filters:  fairway get jobs"
        if filtered
        else "submit one:  fairway run --gpus 1 -- nvidia-smi",
        notes=[f"{limit_text}. Show more with  --limit {10 * len(groups)}  or  --all"] if more else [],
        alarming=frozenset(i for i, g in enumerate(groups) if _alarming(g)),
    )


def with_unfollowed(view: TableView, clusters: Sequence[fleet_wire.Cluster], now: datetime) -> TableView:
    """Add a note for each cluster whose jobs are not followed; an empty table must not say "no jobs"."""
    notes = condition_notes(clusters, now, (ConditionType.JOBS_NOT_FOLLOWED,))
    if not notes:
        return view
    if view.rows:
        return replace(view, notes=[*view.notes, *notes])
    *first, hint = notes
    return replace(view, empty="\n".join(first), hint=hint.removeprefix("  hint: "))


def name_text(group: JobGroup) -> str:
    """Format the name; for an array with its number of tasks, for a task with its index."""
    job = group.job
    if group.tasks is not None:
        return f"{job.name} x{sum(group.tasks.values())}"
    return job.name if job.array_index is None else f"{job.name}[{job.array_index}]"


def run_time(job: wire.Job, now: datetime) -> str:
    """Format how long the last attempt ran, or has been running."""
    if job.started_at is None or job.state in (JobState.QUEUED, JobState.WAITING, JobState.HELD):
        return UNKNOWN
    return span(((job.ended_at or job.last_seen_at or now) - job.started_at).total_seconds())


def _row(group: JobGroup, now: datetime) -> list[str]:
    job = group.job
    state, run_text = state_text(job), run_time(job, now)
    if group.tasks is not None:
        state, run_text = tasks_text(group.tasks), UNKNOWN
    return [
        group.id,
        name_text(group),
        clean(job.kind or ""),
        state,
        gpus_text(job),
        pool_text(job),
        job.team or "",
        job.user or UNKNOWN,
        since(job.submitted_at, now),
        run_text,
    ]


def _note(group: JobGroup, now: datetime, *, wide: bool) -> str:
    """Return the note of a row. In a narrow table, the code of a reason is all that fits."""
    job = group.job
    if group.tasks is not None:
        return ""
    if not wide and job.code and job.state in OPEN_JOBS and job.last_seen_at is None:
        return ", ".join(filter(None, (attempt_text(job), job.code)))
    return note(job, now)


def _alarming(group: JobGroup) -> bool:
    states = group.tasks if group.tasks is not None else {group.job.state: 1}
    return any(states.get(state) for state in BAD)


_LABEL: Final = 14

COLOURS: Final = {JobState.RUNNING: "green", **dict.fromkeys(BAD, "red")}

_TONES: Final = {"good": "green", "warn": "yellow", "bad": "red"}


def job_lines(
    job: wire.JobDetail,
    tasks: wire.TaskCounts | None,
    now: datetime,
    width: int | None,
    gpus: Sequence[ScreenLine] = (),
) -> list[ScreenLine]:
    """Format one job: headline, facts, what its GPUs did, timeline, next step."""
    lines = [ScreenLine(headline(job, now), COLOURS.get(job.state)), ScreenLine()]
    for label, text in facts(job, tasks):
        lines += _labelled(label, text, width)
    if job.cost is not None:
        lines += _labelled("cost", str(job.cost), width)
    if gpus:
        lines += [ScreenLine(), *gpus]
    if replicas := replica_lines(job, now):
        lines += [ScreenLine(), *(ScreenLine(f"  {text}" if n else text) for n, text in enumerate(replicas))]
    entries = timeline(job)
    if entries:
        lines += [ScreenLine(), ScreenLine("Timeline (UTC)")]
        lines += [line for entry in entries for line in _entry_lines(entry, entries[0].at, width)]
    steps = next_step(job)
    return [*lines, ScreenLine(), *(ScreenLine(in_context(text)) for text in steps)] if steps else lines


def _labelled(label: str, text: str, width: int | None) -> list[ScreenLine]:
    """Format a fact beside its label; continuation lines are indented to the same column."""
    lines = [part for line in text.split("\n") for part in _fold_text(clean(line), width)]
    return [
        ScreenLine(f"  {label if i == 0 else '':<{_LABEL}}{line}".rstrip())
        for i, line in enumerate(lines or [""])
    ]


def _fold_text(text: str, width: int | None) -> list[str]:
    if width is None or len(text) + _LABEL + 2 <= width:
        return [text]
    return [line.strip() for line in fold(text, max(30, width - _LABEL - 2))]


def _entry_lines(entry: TimelineEntry, first: datetime, width: int | None) -> list[ScreenLine]:
    day = f"{entry.at:%Y-%m-%d} " if entry.at.date() != first.date() else ""
    lines = _fold_text(entry.text, None if width is None else width - 12)
    head = f"  {day}{entry.at:%H:%M:%S}  {entry.what:<12}"
    text, *more = lines or [""]
    indented = [ScreenLine(" " * len(head) + line) for line in more]
    return [ScreenLine(head + text, _TONES.get(entry.tone or "")), *indented]


def waits_view(sums: Sequence[wire.WaitSum], *, pool: str | None, team: str | None) -> TableView:
    """Return a table of what keeps jobs from starting, the most GPU-hours first."""
    of = " and ".join(f"{kind} {name}" for kind, name in (("pool", pool), ("team", team)) if name)
    first = next((reason for reason in sums if reason.code), None)
    return TableView(
        [
            Column("REASON"),
            *Column.numbers("JOBS", "GPUS", "GPU-HOURS"),
            Column("LARGEST", fit=Fit.END),
            Column("MEANING", fit=Fit.END),
        ],
        [
            [
                reason.code or UNKNOWN,
                f"{reason.jobs:,}",
                f"{reason.devices:,}",
                f"{reason.gpu_hours:,.1f}",
                " ".join(reason.largest),
                reason.text,
            ]
            for reason in sums
        ],
        empty=f"no jobs of {of} are waiting",
        hint="list those that run:  fairway get jobs --state running",
        notes=["GPU-HOURS: GPUs requested times the hours since the submission."]
        + ([f"{first.code}: {first.hint}"] if first else []),
    )


def why_lines(found: wire.Why, width: int | None) -> list[ScreenLine]:
    """Format the answer of `fairway why`: state, reasons in binding order, queue, and what would help."""
    lines = folded(found.summary, width, COLOURS.get(found.state))
    if waits(found):
        return lines + _wait_lines(found, width) + advice_lines(found, width)
    for reason in found.reasons:
        lines.append(ScreenLine())
        lines += folded(reason.text + _evidence(reason), width)
        if reason.hint:
            lines += folded(f"hint: {in_context(reason.hint)}", width)
    return lines + advice_lines(found, width)


def _wait_lines(found: wire.Why, width: int | None) -> list[ScreenLine]:
    """Format why a job has not started: a table of labels and texts, then what would help, or a hint."""
    lines = [ScreenLine()]
    for row in wait_lines(found):
        lines += _labelled(row.label, "\n".join([row.text, *row.evidence]), width)
    if options := help_lines(found):
        lines += [ScreenLine(), ScreenLine("What would help")]
        commands = [in_context(option.command) for option in options]
        effects = max(len(option.effect) for option in options)
        widest = max(len(command) for command in commands)
        for option, command in zip(options, commands, strict=True):
            text = f"  {option.effect:<{effects}}    {command:<{widest}}    {option.note}".rstrip()
            if width is None or len(text) <= width:
                lines.append(ScreenLine(text))
            else:
                lines += [ScreenLine(f"  {option.effect:<{effects}}    {command}")]
                note = _fold_text(option.note, None if width is None else width - effects)
                lines += [ScreenLine(f"  {'':<{effects}}    {part}") for part in note]
    elif found.reasons and found.reasons[0].hint:
        lines += [ScreenLine(), *folded(f"hint: {in_context(found.reasons[0].hint)}", width)]
    return lines if len(lines) > 1 else []


def advice_lines(found: wire.Why, width: int | None) -> list[ScreenLine]:
    """Format what a job that is over used and cost, what limits it, and what to request next time."""
    lines: list[ScreenLine] = []
    for text in summary_lines(found):
        lines += [ScreenLine(), *folded(text, width)]
    if found.diagnosis is not None:
        lines += [ScreenLine(), *_diagnosis_lines(found.diagnosis, width)]
    if found.right_size is not None:
        lines += [ScreenLine(), *folded(f"Next time: {found.right_size.text}.", width)]
    return lines


def _diagnosis_lines(found: wire.Diagnosis, width: int | None) -> list[ScreenLine]:
    """Format a diagnosis: what it means with code and confidence, evidence, remedy."""
    lines = folded(f"{found.text} ({found.code}, {found.confidence} confidence)", width, "yellow")
    for text in found.evidence:
        lines += folded(f"  {text}", width)
    return lines + folded(f"hint: {in_context(found.hint)}", width)


def _evidence(reason: wire.WhyReason) -> str:
    """Format the evidence of a reason: ` (TeamAtCeiling; the engine says: AssocGrpGRES)`."""
    engine = f"the engine reports: {reason.engine}" if reason.engine else ""
    parts = "; ".join(filter(None, (reason.code, engine)))
    return f" ({parts})" if parts else ""
