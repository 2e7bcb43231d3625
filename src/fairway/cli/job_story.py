"""One job as people read it: what was asked, where it went and why, and all that happened, in order. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from fairway.api import job_wire as wire
from fairway.cli.job_views import BAD, gpus_text, pool_text, tasks_text
from fairway.cli.layout import Line, clean, fold
from fairway.cli.words import count, span
from fairway.model.duration import duration_text
from fairway.model.job import OPEN_JOBS, Ending, JobState

_LABEL: Final = 14
_NODES_NAMED: Final = 4
_LINES_OF_SCRIPT: Final = 8

_SAID: Final[Mapping[JobState, str]] = {
    JobState.QUEUED: "is queued",
    JobState.WAITING: "waits",
    JobState.HELD: "is held",
    JobState.RUNNING: "runs",
    JobState.DONE: "is done",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.TIMED_OUT: "ran out of time",
    JobState.REFUSED: "was refused",
    JobState.LOST: "is lost",
}
_COLOURS: Final = {JobState.RUNNING: "green", **dict.fromkeys(BAD, "red")}


class Moment(NamedTuple):
    """One line of the timeline."""

    at: datetime
    what: str
    text: str
    colour: str | None = None
    rank: int = 1
    """Of the same second, what comes first: times are the engine's, to the second."""


_RANKS: Final = {"submitted": 0, "retry": 3, "sent": 4}


def story(job: wire.JobDetail, tasks: wire.TaskCounts | None, now: datetime, width: int | None) -> list[Line]:
    """The whole screen."""
    lines = [Line(headline(job, now), _COLOURS.get(job.state)), Line()]
    for label, text in _facts(job, tasks):
        lines += _labelled(label, text, width)
    happened = timeline(job)
    if happened:
        lines += [Line(), Line("Timeline (UTC)")]
        lines += [line for m in happened for line in _moment(m, happened[0].at, width)]
    helpful = _next(job)
    return [*lines, Line(), *(Line(text) for text in helpful)] if helpful else lines


def headline(job: wire.Job, now: datetime) -> str:
    """What it is and how it stands, in one sentence."""
    name = f"{clean(job.name)}[{job.array_index}]" if job.array_index is not None else clean(job.name)
    said = _SAID[job.state]
    since = _since(job)
    if job.state in OPEN_JOBS:
        said += f" since {span((now - since).total_seconds())}"
    elif job.ended_at is not None:
        said += f" {span((now - job.ended_at).total_seconds())} ago"
    if job.state is JobState.FAILED and job.exit_code is not None:
        said += f" with exit code {job.exit_code}"
    if job.state in OPEN_JOBS and job.wish == "cancel":
        said += ", and is being cancelled"
    if job.state not in (JobState.RUNNING, JobState.DONE) and (why := clean(_why(job))):
        said += f": {why}"
    return f"{name} ({job.id}) {said}"


def _why(job: wire.Job) -> str:
    if job.reason or job.code or job.state is not JobState.QUEUED:
        return job.reason or job.code
    spec = job.spec if isinstance(job, wire.JobDetail) else None
    return f"it comes after {', '.join(a.job for a in spec.after)}" if spec and spec.after else ""


def timeline(job: wire.JobDetail) -> list[Moment]:
    """Fairway's events and the engine's attempts, in the order they happened."""
    moments = [Moment(e.at, e.kind, _event(e), rank=_RANKS.get(e.kind, 1)) for e in job.events]
    if not any(m.what == "submitted" for m in moments):
        by = f"by {job.user}" if job.user else ""
        moments.append(Moment(job.submitted_at, "submitted", f"{by} on {job.cluster}".strip(), rank=0))
    for a in job.each_attempt:
        where = f"attempt {a.number} on {_nodes(a.nodes)}, {count(a.devices, _noun(job))}"
        moments.append(Moment(a.started_at, "started", where, "green", rank=5))
        if a.ended_at is not None:
            # An attempt ends before what follows from it; one of less than a second ends after it started.
            rank = 6 if a.ended_at == a.started_at else 2
            colour = _ending_colour(a.ending)
            moments.append(Moment(a.ended_at, a.ending or "ended", _ended(a), colour, rank))
    return sorted(moments, key=lambda m: (m.at.replace(microsecond=0), m.rank))


def _facts(job: wire.JobDetail, tasks: wire.TaskCounts | None) -> Iterator[tuple[str, str]]:
    who = job.user or "somebody the engine does not tell"
    team = f"team {job.team}" if job.team else "no team of the fleet"
    yield "asked by", ", ".join(filter(None, (who, team, job.priority and f"priority {job.priority}")))
    yield "GPUs", _gpus(job)
    if job.time_seconds is not None:
        yield "time limit", duration_text(job.time_seconds)
    yield "where", f"cluster {job.cluster}; {job.why_there or pool_text(job)}"
    if job.engine_id is not None:
        native = (
            ", made without Fairway" if job.native else f" ({job.engine_name})" if job.engine_name else ""
        )
        yield "engine job", f"{job.engine_id}{native}"
    if tasks is not None and job.array is not None:
        yield "array", f"{job.array}: {tasks_text(tasks.counts)}"
    if job.spec is not None:
        yield from _spec(job.spec)
    elif not job.native:
        yield "command", f"not shown: {job.spec_note}"


def _spec(spec: wire.JobSpec) -> Iterator[tuple[str, str]]:
    if spec.command:
        yield "command", shlex.join(spec.command)
    if spec.script is not None:
        lines = spec.script.rstrip("\n").split("\n")
        more = [f"… {len(lines) - _LINES_OF_SCRIPT} more lines"] if len(lines) > _LINES_OF_SCRIPT else []
        yield "script", "\n".join([*lines[:_LINES_OF_SCRIPT], *more])
    for label, value in (("image", spec.image), ("setup", spec.setup), ("in folder", spec.workdir)):
        if value:
            yield label, value
    if spec.env:
        yield "environment", ", ".join(sorted(spec.env))
    if spec.after:
        yield "after", ", ".join(a.job if a.when == "ok" else f"{a.job} ({a.when})" for a in spec.after)
    if spec.retries.count:
        first = duration_text(spec.retries.first_seconds)
        yield "retries", f"{spec.retries.count}, the first after {first}"
    if spec.tolerates:
        yield "tolerates", ", ".join(spec.tolerates)


def _gpus(job: wire.Job) -> str:
    if job.nodes == 1:
        return f"{gpus_text(job)} {_noun(job)}{'' if job.gpus == 1 else 's'}"
    each = count(job.gpus, _noun(job))
    return f"{each} on each of {job.nodes} nodes, {job.devices} in all"


def _noun(job: wire.Job) -> str:
    return f"{job.slice} slice" if job.slice else "GPU"


def _since(job: wire.Job) -> datetime:
    return job.started_at if job.state is JobState.RUNNING and job.started_at else job.submitted_at


def _event(e: wire.Event) -> str:
    by = f"by {e.by}" if e.by else ""
    return clean(": ".join(filter(None, (by, e.text))))


def _nodes(nodes: Sequence[str]) -> str:
    named = ", ".join(nodes[:_NODES_NAMED])
    more = f" and {len(nodes) - _NODES_NAMED} more" if len(nodes) > _NODES_NAMED else ""
    return f"{named}{more}" or "a node the engine does not name"


def _ended(a: wire.Attempt) -> str:
    parts = [f"attempt {a.number}"]
    if a.ended_at is not None:
        parts[0] += f" after {span((a.ended_at - a.started_at).total_seconds())}"
    if a.exit_code is not None and a.ending is not Ending.DONE:
        parts.append(f"exit code {a.exit_code}")
    if a.signal:
        parts.append(f"signal {a.signal}")
    text = ", ".join(parts)
    return f"{text}: {clean(a.reason)}" if a.reason else text


def _ending_colour(ending: Ending | None) -> str | None:
    if ending in (Ending.FAILED, Ending.TIMED_OUT, Ending.NODE_LOST, Ending.LOST):
        return "red"
    return "yellow" if ending in (Ending.PREEMPTED, Ending.REQUEUED) else None


def _labelled(label: str, text: str, width: int | None) -> list[Line]:
    """A fact beside its label; what does not fit goes on beneath itself."""
    lines = [part for line in text.split("\n") for part in _folded(clean(line), width)]
    return [
        Line(f"  {label if i == 0 else '':<{_LABEL}}{line}".rstrip()) for i, line in enumerate(lines or [""])
    ]


def _folded(text: str, width: int | None) -> list[str]:
    if width is None or len(text) + _LABEL + 2 <= width:
        return [text]
    return [line.strip() for line in fold(text, max(30, width - _LABEL - 2))]


def _moment(m: Moment, first: datetime, width: int | None) -> list[Line]:
    day = f"{m.at:%Y-%m-%d} " if m.at.date() != first.date() else ""
    lines = _folded(m.text, None if width is None else width - 12)
    head = f"  {day}{m.at:%H:%M:%S}  {m.what:<12}"
    return [
        Line((head if i == 0 else " " * len(head)) + line, m.colour if i == 0 else None)
        for i, line in enumerate(lines or [""])
    ]


def _next(job: wire.JobDetail) -> list[str]:
    if job.hint:
        return [f"hint: {clean(job.hint)}"]
    if job.state is JobState.HELD:
        return [f"Let it go on with:  fairway release {job.id}"]
    if job.each_attempt and not job.native:
        follow = " -f" if job.state in OPEN_JOBS else ""
        return [f"What it prints:  fairway logs {job.id}{follow}"]
    return []
