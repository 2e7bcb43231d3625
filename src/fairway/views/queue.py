"""Format why a job waits as rows: what blocks it and would remain, who is ahead, when it may start. Pure.

It imports no wire types, so that a short command starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairway.model.job import NOT_STARTED_JOBS
from fairway.model.text import clean, count
from fairway.views.expected_start import expected_lines

if TYPE_CHECKING:
    from fairway.wire import jobs as wire

TURN = "NotItsTurn"


class WaitLine(NamedTuple):
    """A row of the answer: `blocked by`, `then`, `ahead`, `expected`."""

    label: str
    text: str
    code: str = ""
    """Of a reason."""
    evidence: tuple[str, ...] = ()


class HelpLine(NamedTuple):
    """Something that would help: its effect, the command, and what it costs."""

    effect: str
    command: str
    note: str = ""


def waits(found: wire.Why) -> bool:
    """Return whether an answer is about a job that has not started."""
    return found.state in NOT_STARTED_JOBS


def wait_lines(found: wire.Why) -> list[WaitLine]:
    """Return what blocks a waiting job, what would remain without it, and who is ahead and ends first."""
    lines: list[WaitLine] = []
    for reason in found.reasons:
        if lines and found.queue is not None and reason.code == TURN:
            continue  # the row `ahead` says it
        engine = f"; the engine reports: {clean(reason.engine)}" if reason.engine else ""
        text = f"{clean(reason.text)} ({reason.code}{engine})" if reason.code else clean(reason.text)
        lines.append(
            WaitLine(
                "then" if lines else "blocked by",
                text,
                reason.code,
                tuple(clean(e) for e in reason.evidence or ()),
            )
        )
    lines += queue_lines(found)
    if found.expected is not None:
        text, rests = expected_lines(found.expected)
        lines.append(WaitLine("expected", text, evidence=(rests,) if rests else ()))
    return lines


def queue_lines(found: wire.Why) -> list[WaitLine]:
    """Return the place of a waiting job in its queue: jobs and GPUs ahead, and which jobs end first."""
    queue = found.queue
    if queue is None:
        return []
    noun = f"{found.slice} slice" if found.slice else "GPU"
    where = clean(found.pool or found.cluster)
    ahead = queue.position - 1
    if not ahead:
        rest = f"no job; {count(queue.waiting - 1, 'job')} behind" if queue.waiting > 1 else "no job"
        lines = [WaitLine("ahead", rest)]
    else:
        own = queue.team_ahead or 0
        of_team = f", {count(own, 'job')} of the same team" if 0 < own < ahead else ""
        of_team = ", all of the same team" if own and own == ahead else of_team
        jobs = f"{count(ahead, 'job')} of {queue.waiting} that wait for {where}"
        devices = f", {count(queue.devices_ahead, noun)}" if queue.devices_ahead else ""
        more = ahead - len(queue.ahead)
        names = tuple(_queued_text(job, noun) for job in queue.ahead)
        evidence = (", ".join(names) + (f" and {more} more" if more > 0 else ""),) if names else ()
        lines = [WaitLine("ahead", f"{jobs}{devices}{of_team}", evidence=evidence)]
    if queue.ending:
        names = tuple(
            f"{_queued_text(job, noun)} by {job.ends_at:%H:%M} UTC"
            for job in queue.ending
            if job.ends_at is not None
        )
        lines.append(WaitLine("ends first", f"{', '.join(names)}, by their time limits"))
    return lines


def _queued_text(job: wire.QueuedJob, noun: str) -> str:
    by = f"{clean(job.user)}, " if job.user else ""
    return f"{clean(job.name)} ({job.id}; {by}{count(job.devices, noun)})"


def help_lines(found: wire.Why) -> list[HelpLine]:
    """Return what would help, each with its effect, a command, and its price."""
    return [
        HelpLine(clean(option.effect or "starts now"), clean(option.command), clean(option.text))
        for option in found.alternatives or ()
    ]
