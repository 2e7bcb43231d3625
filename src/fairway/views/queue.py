"""Format the place of a waiting job in its queue, and what could start now instead. Pure.

It imports no wire types, so that a short command starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.model.text import clean, count

if TYPE_CHECKING:
    from fairway.wire import jobs as wire


def queue_lines(found: wire.Why) -> list[str]:
    """Format the place of a waiting job in its queue, who is ahead, and which running jobs end soonest."""
    queue = found.queue
    if queue is None:
        return []
    noun = f"{found.slice} slice" if found.slice else "GPU"
    where = clean(found.pool or found.cluster)
    if queue.waiting == 1:
        lines = [f"Queue: it is the only job waiting for {where}"]
    elif queue.position == 1:
        lines = [f"Queue: next of {queue.waiting} jobs waiting for {where}"]
    else:
        lines = [f"Queue: position {queue.position} of {queue.waiting} jobs waiting for {where}"]
    if queue.ahead:
        more = queue.position - 1 - len(queue.ahead)
        names = ", ".join(_queued_text(job, noun) for job in queue.ahead)
        lines.append(f"Ahead: {names}" + (f" and {more} more" if more > 0 else ""))
    if queue.ending:
        names = ", ".join(
            f"{_queued_text(job, noun)} by {job.ends_at:%H:%M} UTC"
            for job in queue.ending
            if job.ends_at is not None
        )
        lines.append(f"Ending first, by their time limits: {names}")
    return lines


def _queued_text(job: wire.QueuedJob, noun: str) -> str:
    by = f"{clean(job.user)}, " if job.user else ""
    return f"{clean(job.name)} ({job.id}; {by}{count(job.devices, noun)})"


def alternative_lines(found: wire.Why) -> list[str]:
    """Format what could start now instead, each with a command."""
    return [
        f"{option.text[0].upper()}{option.text[1:]}:  {option.command}" for option in found.alternatives or ()
    ]
