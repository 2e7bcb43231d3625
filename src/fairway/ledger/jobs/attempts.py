"""Merge the attempts that an engine reports of a job with one at a time into the stored ones. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from fairway.ledger.records.jobs import StoredAttempt
from fairway.ledger.sql_values import sanitize
from fairway.model.job import OPEN_JOBS, Attempt, AttemptEnd, Ending, JobState, SeenJob

SAME_START: Final = timedelta(seconds=5)
"""Starts no further apart belong to one attempt: engines correct themselves by a second or two."""


@dataclass(frozen=True, slots=True)
class MergedAttempts:
    """The attempts of one engine job after a report."""

    put: tuple[StoredAttempt, ...]
    """New or changed."""
    gone: tuple[int, ...]
    total: int
    """The number of the last attempt."""
    located: tuple[StoredAttempt, ...] = ()
    """Unchanged ones that run, with the GPUs that the engine tells now."""
    running: tuple[StoredAttempt, ...] | None = None
    """The replicas that run after the report; None: the job has one attempt at a time."""


def is_stale(stored: Sequence[StoredAttempt], report: SeenJob) -> bool:
    """Return whether the stored attempts are certainly newer than the report."""
    if not stored or not report.attempts:
        return False
    last, reported = stored[-1].attempt, report.attempts[-1]
    if reported.started_at < last.started_at - SAME_START:
        # Slurm may show a start that comes to nothing and that its accounting never records: once the job has
        # ended after that start, the report is complete.
        return report.state in OPEN_JOBS or report.ended_at is None or report.ended_at < last.started_at
    # A job may restart at once: starts close to each other are two if the engine reports both.
    same = reported.started_at <= last.started_at + SAME_START and report.earlier_attempts + len(
        report.attempts
    ) <= len(stored)
    # An attempt that was lost ended for the ledger only: it may be found again.
    ended = last.ended_at is not None and last.ending is not Ending.LOST
    return same and ended and reported.ended_at is None


def with_stored_values(stored: Sequence[StoredAttempt], report: SeenJob) -> SeenJob:
    """Return the report with stored values filled in where the engine no longer reports nodes or starts.

    A deleted pod takes its node and start time along, and a container that restarts its first start; what is
    left began a little earlier.
    """
    last, reported = stored[-1].attempt if stored else None, report.attempts[-1] if report.attempts else None
    if last and reported and _is_same_run(last, reported):
        report = replace(
            report, attempts=(*report.attempts[:-1], replace(reported, started_at=last.started_at))
        )
    if all(attempt.nodes for attempt in report.attempts):
        return report
    return replace(report, attempts=tuple(_with_nodes(stored, attempt) for attempt in report.attempts))


def _is_same_run(stored: Attempt, reported: Attempt) -> bool:
    """Return whether two open attempts on the same nodes differ only in an earlier start."""
    both_open = stored.ending is None and reported.ending is None
    same_nodes = bool(stored.nodes) and stored.nodes == reported.nodes
    return both_open and same_nodes and reported.started_at < stored.started_at


def _with_nodes(stored: Sequence[StoredAttempt], reported: Attempt) -> Attempt:
    if not reported.nodes:
        for old in (one.attempt for one in reversed(stored)):
            within = reported.ended_at is None or old.started_at <= reported.ended_at
            if old.nodes and reported.started_at <= old.started_at and within:
                return replace(reported, started_at=old.started_at, nodes=old.nodes, devices=old.devices)
    return reported


def merge_attempts(
    stored: Sequence[StoredAttempt], before: int, report: SeenJob, last_seen: datetime | None = None
) -> MergedAttempts:
    """Merge a report's attempts; `before` is the number of the job's attempts before this engine job.

    Attempts the engine no longer reports stay. One that was still running then ended as the engine reports of
    it, else it is marked as lost, and ended when it was last seen.
    """
    if report.attempts:
        first = report.attempts[0].started_at - SAME_START
        earlier = [s for s in stored if s.attempt.started_at < first]
    else:
        earlier = list(stored)
    offset = max([before + report.earlier_attempts, *(s.number for s in earlier)])
    now = [
        StoredAttempt(number, report.engine_id, sanitized(attempt))
        for number, attempt in enumerate(report.attempts, offset + 1)
    ]
    if report.attempts or report.state is not JobState.RUNNING:
        following = min((a.started_at for a in report.attempts), default=None)
        over = [
            replace(s, attempt=closed(s.attempt, report.earlier_end, last_seen, following))
            for s in earlier
            if s.attempt.ending is None
        ]
        now = [*over, *now]
    old = {s.number: s.attempt for s in stored}
    stays = {s.number for s in earlier} | {n.number for n in now}
    put = tuple(n for n in now if old.get(n.number) != n.attempt)
    return MergedAttempts(
        put=put,
        gone=tuple(number for number in old if number not in stays),
        total=offset + len(report.attempts),
        located=tuple(n for n in now if n not in put and n.attempt.gpus and n.attempt.ending is None),
    )


def closed(
    attempt: Attempt, end: AttemptEnd | None, last_seen: datetime | None, following: datetime | None
) -> Attempt:
    """Close an attempt that the engine no longer reports; `following` is when the next one started."""
    if end is not None and end.ended_at >= attempt.started_at:
        return replace(attempt, ended_at=end.ended_at, ending=end.ending, reason=sanitize(end.reason))
    known = [t for t in (last_seen, following) if t is not None]
    ended_at = max(attempt.started_at, min(known)) if known else None
    return replace(attempt, ended_at=ended_at, ending=Ending.LOST)


def sanitized(attempt: Attempt) -> Attempt:
    """Return the attempt with a reason that PostgreSQL stores."""
    reason = sanitize(attempt.reason)
    return attempt if reason == attempt.reason else replace(attempt, reason=reason)
