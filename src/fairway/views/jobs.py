"""Format jobs in the user's terms: identity, state, reason, timeline. Pure.

The CLI and the pages both use it, so that they show the same text.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.model.idle import DONE_WORDS
from fairway.model.job import OPEN_JOBS, Ending, JobState
from fairway.model.text import clean, count, duration_text, first_few, span
from fairway.views.gpu_use import use_text

if TYPE_CHECKING:
    from fairway.wire import jobs as wire

_ENDING_WORDS: Final = {Ending.DONE: "finished", Ending.TIMED_OUT: "timed out", Ending.NODE_LOST: "node lost"}

_MAX_NODES_NAMED: Final = 4
KEEP_SECONDS: Final = 4 * 3600
"""How long the commands that people are shown keep a job."""
_MAX_SCRIPT_LINES: Final = 8
STALE_SECONDS: Final = 20
"""Two observation periods: an older reason is shown with its age."""
MAX_REPLICAS: Final = 20
"""The most replicas of a job that are listed."""
GPU_USE: Final = "GPU use"
"""The label of what its GPUs did; the job's page has a part of its own for it."""
BAD: Final = frozenset({JobState.FAILED, JobState.TIMED_OUT, JobState.REFUSED, JobState.LOST})
"""States that need attention."""
TASK_ORDER: Final = tuple(dict.fromkeys((JobState.RUNNING, *JobState)))
"""The order in which an array's tasks are listed: running ones first."""
_STATE_PHRASES: Final[Mapping[JobState, str]] = {
    JobState.QUEUED: "has been queued for {span}",
    JobState.WAITING: "has been waiting for {span}",
    JobState.HELD: "is on hold, submitted {span} ago",
    JobState.RUNNING: "has been running for {span}",
    JobState.DONE: "finished",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.TIMED_OUT: "reached its time limit",
    JobState.REFUSED: "was refused",
    JobState.LOST: "was lost",
}
STATE_WORDS: Final[Mapping[JobState, str]] = {
    **{state: state.value for state in JobState},
    JobState.HELD: "on hold",
    JobState.DONE: "finished",
    JobState.TIMED_OUT: "timed out",
}
"""What people read for each state; JSON and filters have the values of `JobState`."""
_NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""For a number before a name that begins with one: `two 1g.10gb slices`."""


class TimelineEntry(NamedTuple):
    """One line of a job's timeline."""

    at: datetime
    what: str
    text: str
    tone: str | None = None
    rank: int = 1
    """Order of events within the same second, because the engine's times have no fractions."""


_EVENT_TONES: Final = {"gpu": "warn", "gpu-failed": "bad", "idle": "warn"}
_RANKS: Final = {"submitted": 0, "retry": 3, "sent": 4}


def headline(job: wire.Job, now: datetime) -> str:
    """Summarize a job in one sentence: name, state and reason."""
    return f"{_name_and_id(job)} {state_with_reason(job, now)}"


def state_with_reason(job: wire.Job, now: datetime) -> str:
    """Format the state and its reason, where the name is shown already."""
    text = _state_phrase(job, now)
    quiet = job.state is JobState.DONE or (job.state is JobState.RUNNING and not _lacks_replicas(job))
    explained = not quiet or job.last_seen_at is not None
    if explained and (reason := clean(why(job, now))):
        text += f": {reason}"
    return text


def name_and_state(job: wire.Job, now: datetime) -> str:
    """Format the name and the state."""
    return f"{_name_and_id(job)} {_state_phrase(job, now)}"


def name_text(job: wire.Job) -> str:
    """Format the name; for a task with its index."""
    return clean(job.name) + ("" if job.array_index is None else f"[{job.array_index}]")


def _name_and_id(job: wire.Job) -> str:
    return f"{name_text(job)} ({job.id})"


def _state_phrase(job: wire.Job, now: datetime) -> str:
    if job.last_seen_at is not None:
        ago = span((now - job.last_seen_at).total_seconds())
        return f"was {STATE_WORDS[job.state]} when it was last seen {ago} ago"
    text = _STATE_PHRASES[job.state]
    if job.state in OPEN_JOBS:
        began = job.started_at if job.state is JobState.RUNNING and job.started_at else job.submitted_at
        text = text.format(span=span((now - began).total_seconds()))
        if job.state is JobState.RUNNING and job.replicas is not None:
            text += f" with {job.replicas} of {count(job.nodes, _replica_noun(job))}"
    elif job.ended_at is not None:
        text += f" {span((now - job.ended_at).total_seconds())} ago"
    if job.state is JobState.FAILED and job.exit_code is not None:
        text += f" with exit code {job.exit_code}"
    if job.state in OPEN_JOBS and job.desired_state == "cancel":
        text += ", and is being cancelled"
    return text


def _lacks_replicas(job: wire.Job) -> bool:
    """Return whether fewer replicas run than the job wants."""
    return job.replicas is not None and job.replicas < job.nodes


def _replica_noun(job: wire.Job) -> str:
    return "replica" if job.service else "pod"


def replicas_text(job: wire.Job) -> str:
    """Format the replicas that run, and how many the job wants: `3/4 replicas`. Empty without replicas."""
    if job.replicas is None or job.state not in OPEN_JOBS or job.state is JobState.HELD:
        return ""
    return f"{job.replicas}/{job.nodes} {_replica_noun(job)}{'' if job.nodes == 1 else 's'}"


def why(job: wire.Job, now: datetime | None = None) -> str:
    """Return why the job waits or how it ended. Returns an empty string if there is no reason."""
    if job.reason or job.code or job.state is not JobState.QUEUED:
        return reason_text(job, now)
    spec: wire.JobSpec | None = getattr(job, "spec", None)  # of a JobDetail
    return f"Depends on {', '.join(a.job for a in spec.after)}" if spec and spec.after else ""


def timeline(job: wire.JobDetail) -> list[TimelineEntry]:
    """Merge Fairway's events and the engine's attempts, each after what caused it.

    Fairway may learn late that an engine accepted a job, or that an attempt ended: such an event is shown at
    the time that its consequence proves.
    """
    starts = _first_starts(job)
    entries = [
        TimelineEntry(_caused_at(e, job, starts), e.kind, _event(e), _EVENT_TONES.get(e.kind), _rank(e.kind))
        for e in job.events
    ]
    if not any(m.what == "submitted" for m in entries):
        by = f"by {job.user}" if job.user else ""
        entries.append(TimelineEntry(job.submitted_at, "submitted", f"{by} on {job.cluster}".strip(), rank=0))
    for a in job.attempts if job.replicas is None else job.attempts[-MAX_REPLICAS:]:
        where = f"{attempt_name(a)} on {nodes_text(a.nodes)}, {count(a.devices, _noun(job))}"
        entries.append(TimelineEntry(a.started_at, "started", where, "good", rank=5))
        if a.ended_at is not None:
            # An attempt ends before what follows from it; one of less than a second ends after it started.
            rank = 6 if a.ended_at - a.started_at < timedelta(seconds=1) else 2
            tone = _ending_tone(a.ending)
            entries.append(TimelineEntry(a.ended_at, a.ending or "ended", _ended(a), tone, rank))
    return sorted(entries, key=lambda m: (m.at.replace(microsecond=0), m.rank))


def _first_starts(job: wire.JobDetail) -> dict[str, datetime]:
    """Return when the first attempt of each engine job started."""
    starts: dict[str, datetime] = {}
    for a in job.attempts:
        starts[a.engine_id] = min(a.started_at, starts.get(a.engine_id, a.started_at))
    return starts


def _caused_at(event: wire.Event, job: wire.JobDetail, starts: Mapping[str, datetime]) -> datetime:
    """Return when an event happened at the latest: before the attempt that it led to."""
    if event.kind == "submitted":
        return min([event.at, *starts.values()])
    if event.kind == "sent":
        return max(min(event.at, starts.get(event.text, event.at)), min(job.submitted_at, event.at))
    return event.at


def _rank(kind: str) -> int:
    return _RANKS.get(kind, 1)


def facts(job: wire.JobDetail, tasks: wire.TaskCounts | None) -> Iterator[tuple[str, str]]:
    """Generate the facts of a job as pairs of label and text: request, owner, placement."""
    who = job.user or "unknown user (the engine does not report it)"
    team = f"team {job.team}" if job.team else "no team of the fleet"
    yield "owner", ", ".join(filter(None, (who, team, job.priority and f"priority {job.priority}")))
    if job.project:
        yield "project", clean(job.project)
    labels = job.labels if job.spec is None else job.spec.labels
    if labels:
        yield "labels", ", ".join(f"{clean(key)}={clean(value)}" for key, value in labels.items())
    if job.kind:
        yield "kind", f"{clean(job.kind)}, a service" if job.service else clean(job.kind)
    yield "GPUs", request_text(job)
    if job.replicas is not None and job.state in OPEN_JOBS:
        yield f"{_replica_noun(job)}s", f"{job.replicas} of {job.nodes} running"
    if job.time_seconds is not None:
        yield "time limit", duration_text(job.time_seconds)
    if job.use is not None:
        yield GPU_USE, use_text(job.use)
    yield "where", f"cluster {job.cluster}; {job.placement_reason or pool_text(job)}"
    if job.engine_id is not None:
        native = (
            ", submitted outside Fairway"
            if job.native
            else f" ({job.engine_name})"
            if job.engine_name
            else ""
        )
        yield "engine job", f"{job.engine_id}{native}"
    if job.counts:
        yield "done so far", ", ".join(f"{total:,} {unit}" for unit, total in job.counts.items())
    if idle := idle_text(job):
        yield "idle", idle
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
        more = [f"… {len(lines) - _MAX_SCRIPT_LINES} more lines"] if len(lines) > _MAX_SCRIPT_LINES else []
        yield "script", "\n".join([*lines[:_MAX_SCRIPT_LINES], *more])
    if spec.manifest is not None:
        yield "manifest", f"{spec.manifest.get('apiVersion')} {spec.manifest.get('kind')}"
    for label, value in (("image", spec.image), ("setup", spec.setup), ("directory", spec.workdir)):
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


def request_text(job: wire.Job) -> str:
    """Format the request: `8 GPUs`, `two 1g.10gb slices`, `8 GPUs on each of 2 nodes, 16 in all`."""
    number = _NUMBERS[job.gpus] if job.slice and job.gpus < len(_NUMBERS) else str(job.gpus)
    each = f"{number} {_noun(job)}{'' if job.gpus == 1 else 's'}"
    if job.replicas is not None:
        total = job.gpus * job.nodes
        return f"{each} in each of {count(job.nodes, _replica_noun(job))}, {total} in all"
    return each if job.nodes == 1 else f"{each} on each of {job.nodes} nodes, {job.devices} in all"


def _noun(job: wire.Job) -> str:
    return f"{job.slice} slice" if job.slice else "GPU"


def _event(e: wire.Event) -> str:
    by = f"by {e.by}" if e.by else ""
    return clean(": ".join(filter(None, (by, e.text))))


def nodes_text(nodes: Sequence[str]) -> str:
    """Format node names, the first few and the number of others: `gpu001, gpu002 and 3 more`."""
    return first_few(nodes, _MAX_NODES_NAMED) or "an unknown node"


def attempt_name(a: wire.Attempt) -> str:
    """Format which attempt it is: `attempt 2`, or `replica llm-7d9f-x2b`."""
    return f"replica {clean(a.replica)}" if a.replica else f"attempt {a.number}"


def listed_replicas(job: wire.JobDetail) -> list[wire.Attempt]:
    """Return the replicas to list, at most MAX_REPLICAS: those that run first, then the newest that ended."""
    if job.replicas is None:
        return []
    return sorted(job.attempts, key=lambda a: (a.ending is not None, -a.number))[:MAX_REPLICAS]


def replica_lines(job: wire.JobDetail, now: datetime) -> list[str]:
    """Format a job's replicas under a heading: those that run first, then the newest that ended."""
    shown = listed_replicas(job)
    if not shown:
        return []
    names = [clean(a.replica) or str(a.number) for a in shown]
    width = max(map(len, names))
    nodes = [nodes_text(a.nodes) for a in shown]
    node_width = max(map(len, nodes))
    lines = [
        f"{name:<{width}}  {node:<{node_width}}  {_replica_state(a, now)}"
        for name, node, a in zip(names, nodes, shown, strict=True)
    ]
    total = job.attempt_count
    heading = f"{_replica_noun(job).capitalize()}s"
    more = f" ({len(shown)} of {total}; those that run first, then the newest)" if total > len(shown) else ""
    return [f"{heading}{more}", *lines]


def _replica_state(a: wire.Attempt, now: datetime) -> str:
    if a.ending is None:
        return f"running for {span((now - a.started_at).total_seconds())}"
    ran = "" if a.ended_at is None else f" after {span((a.ended_at - a.started_at).total_seconds())}"
    ago = "" if a.ended_at is None else f", {span((now - a.ended_at).total_seconds())} ago"
    return f"{ending_text(a)}{ran}{ago}"


def _ended(a: wire.Attempt) -> str:
    parts = [attempt_name(a)]
    if a.ended_at is not None:
        parts[0] += f" after {span((a.ended_at - a.started_at).total_seconds())}"
    if a.exit_code is not None and a.ending is not Ending.DONE:
        parts.append(f"exit code {a.exit_code}")
    if a.signal:
        parts.append(f"signal {a.signal}")
    text = ", ".join(parts)
    return f"{text}: {_cause(a)}" if a.reason else text


def ending_text(a: wire.Attempt) -> str:
    """Format how an attempt ended: `failed, exit code 1`, `preempted by a job with a higher priority`."""
    if a.ending is None:
        return ""
    parts = [_ENDING_WORDS.get(a.ending, a.ending.value)]
    if a.exit_code:
        parts.append(f"exit code {a.exit_code}")
    if a.signal:
        parts.append(f"signal {a.signal}")
    text, cause = ", ".join(parts), _cause(a)
    if not cause:
        return text
    continues = cause != clean(a.reason) and len(parts) == 1
    return f"{text} {cause}" if continues else f"{text}: {cause}"


def _cause(a: wire.Attempt) -> str:
    """Return the reason of an end without the word that says how it ended, if it begins with that."""
    reason, word = clean(a.reason), f"{a.ending.value} " if a.ending else ""
    return reason[len(word) :] if word and reason.lower().startswith(word) else reason


def _ending_tone(ending: Ending | None) -> str | None:
    if ending in (Ending.FAILED, Ending.TIMED_OUT, Ending.NODE_LOST, Ending.LOST):
        return "bad"
    return "warn" if ending in (Ending.PREEMPTED, Ending.REQUEUED) else None


def gpus_text(job: wire.Job) -> str:
    """Format the number of GPUs: `8`, or `2x8` on two nodes or in two replicas."""
    if job.replicas is not None and not job.nodes:
        return "0"
    return f"{job.nodes}x{job.gpus}" if job.nodes > 1 else str(job.gpus)


def pool_text(job: wire.Job) -> str:
    """Format the pool: `hpc-a100`, `hpc-mig/1g.10gb`, or the cluster in parentheses if it has none."""
    if job.pool is None:
        return f"({job.cluster})"
    return f"{job.pool}/{job.slice}" if job.slice else job.pool


def state_text(job: wire.Job) -> str:
    """Format the state, and a pending cancel or hold; without tracking, the state is a past one."""
    if job.last_seen_at is not None:
        return f"{STATE_WORDS[job.state]}, untracked"
    if job.state in OPEN_JOBS:
        if job.desired_state == "cancel":
            return "cancelling"
        if job.desired_state == "hold" and job.state is not JobState.HELD:
            return f"{STATE_WORDS[job.state]}, hold"
    return ", ".join(filter(None, (STATE_WORDS[job.state], replicas_text(job))))


def tasks_text(tasks: Mapping[JobState, int]) -> str:
    """Format the number of tasks in each state: `3 running, 97 waiting`."""
    return ", ".join(f"{tasks[state]} {STATE_WORDS[state]}" for state in TASK_ORDER if tasks.get(state))


def note(job: wire.Job, now: datetime | None = None) -> str:
    """Return a short note for the list: attempt, exit code or reason."""
    quiet = job.state is JobState.DONE or (job.state is JobState.RUNNING and not _lacks_replicas(job))
    reason = "" if quiet and job.last_seen_at is None else reason_text(job, now)
    if job.state is JobState.FAILED and job.exit_code is not None:
        reason = f"exit code {job.exit_code}"
    return ", ".join(filter(None, (attempt_text(job), reason)))


def attempt_text(job: wire.Job) -> str:
    """Format which attempt of a job it is: `attempt 2`. Empty for the first one, and with replicas."""
    return f"attempt {job.attempt_count}" if job.attempt_count > 1 and job.replicas is None else ""


def reason_text(job: wire.Job, now: datetime | None = None) -> str:
    """Format the reason, with the engine's own in brackets if it differs, and its age if it is old."""
    engine = job.engine_reason if job.engine_reason != job.reason else ""
    text = f"{job.reason} [{engine}]" if engine else job.reason or job.code
    age = (now - job.reason_at).total_seconds() if now and job.reason_at else 0
    return f"{text} (as of {span(age)} ago)" if age > STALE_SECONDS else text


def idle_step(job: wire.JobDetail) -> str | None:
    """Return what an idle rule does next and how to postpone it. Returns None if there is nothing to say."""
    idle = job.idle
    if idle is None or idle.action is None or idle.due_at is None or idle.dry_run:
        return None
    longest = duration_text(min(KEEP_SECONDS, idle.longest_keep_seconds))
    done = DONE_WORDS[idle.action]
    unless = f"unless it uses its GPUs again or you run:  fairway keep {job.id} --for {longest}"
    return f"It will be {done} at {idle.due_at:%H:%M} UTC {unless}"


def idle_text(job: wire.JobDetail) -> str:
    """Describe what idle rules do to a job; empty if nothing."""
    idle = job.idle
    if idle is None:
        return ""
    parts = []
    if idle.kept_until is not None:
        why = f" ({clean(idle.kept_for)})" if idle.kept_for else ""
        parts.append(f"kept until {idle.kept_until:%Y-%m-%d %H:%M} UTC by {clean(idle.kept_by)}{why}")
    if idle.action is not None and idle.due_at is not None:
        done = DONE_WORDS[idle.action]
        would = f"would be {done}, but the rule is in dry run" if idle.dry_run else f"will be {done}"
        parts.append(f"{idle.evidence}; {would} at {idle.due_at:%H:%M} UTC or later (rule {idle.rule})")
    return "; ".join(parts)


def next_step(job: wire.JobDetail) -> list[str]:
    """Return the next command to run, or the job's hint."""
    if job.hint:
        return [f"hint: {clean(job.hint)}"]
    if (idle := idle_step(job)) is not None:
        return [idle]
    if job.state is JobState.HELD:
        return [f"Release it with:  fairway release {job.id}"]
    if job.state is JobState.WAITING or job.state is JobState.QUEUED:
        return [f"Find out why with:  fairway why {job.id}"]
    if job.attempts and not job.native:
        follow = " -f" if job.state in OPEN_JOBS else ""
        return [f"Show its output with:  fairway logs {job.id}{follow}"]
    return []
