"""Merge the replicas that an engine reports of a job whose pods run each on its own. Pure.

A replica is known by the name of its pod and its start. A StatefulSet names the next pod as the last one, so
that two runs of one name differ by their times. A replica always keeps its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from operator import attrgetter

from fairway.ledger.jobs.attempts import SAME_START, MergedAttempts, closed, sanitized
from fairway.ledger.records.jobs import StoredAttempt
from fairway.model.job import OPEN_JOBS, Attempt, Ending, JobState, SeenJob


def has_replicas(report: SeenJob, stored: int | None) -> bool:
    """Return whether a report's attempts are replicas; `stored` is the number of them that ran, if any."""
    if report.attempts:
        return any(attempt.replica for attempt in report.attempts)
    return report.service or stored is not None


def merge_replicas(
    stored: Sequence[StoredAttempt], total: int, report: SeenJob, last_seen: datetime | None = None
) -> MergedAttempts:
    """Merge a report's replicas; `total` is the highest number that the job has given to an attempt.

    `stored` has every replica that runs, and of the reported names all since the first reported start. One
    that runs and is not reported any more is lost, and ended when it was last seen.
    """
    free: dict[str, list[StoredAttempt]] = {}
    for one in stored:
        free.setdefault(one.attempt.replica, []).append(one)
    old = {one.number: one.attempt for one in stored}
    now: list[StoredAttempt] = []
    for attempt in sorted(_runs(report.attempts), key=attrgetter("started_at", "replica")):
        found = _find(free.get(attempt.replica, ()), attempt)
        if found is None:
            total += 1
            now.append(StoredAttempt(total, report.engine_id, attempt))
        else:
            free[attempt.replica].remove(found)
            now.append(replace(found, attempt=_merged(found.attempt, attempt)))
    # A job that was stored with one attempt for all of its pods: they replace it.
    gone = [one for one in free.pop("", ()) if any(_overlap(one.attempt, run.attempt) for run in now)]
    missing = [one for of_name in free.values() for one in of_name if one.attempt.ending is None]
    if report.attempts or report.state is not JobState.RUNNING:
        now += [_lost(one, report, last_seen) for one in missing]
        missing = []
    put = tuple(one for one in now if old.get(one.number) != one.attempt)
    running = [one for one in (*now, *missing) if one.attempt.ending is None]
    return MergedAttempts(
        put=put,
        gone=tuple(one.number for one in gone),
        total=total,
        located=tuple(one for one in running if one not in put and one.attempt.gpus),
        running=tuple(running) if report.state in OPEN_JOBS else (),
    )


def _runs(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return each run once: of one that is reported twice, the one that has ended."""
    runs: list[Attempt] = []
    ordered = sorted(map(sanitized, attempts), key=attrgetter("replica", "started_at"))
    for _, of_name in groupby(ordered, key=attrgetter("replica")):
        last: Attempt | None = None
        for attempt in of_name:
            if last is not None and _is_same(last, attempt):
                runs.pop()
                attempt = last if last.ending is not None else attempt  # noqa: PLW2901
            runs.append(attempt)
            last = attempt
    return runs


def _find(stored: Iterable[StoredAttempt], reported: Attempt) -> StoredAttempt | None:
    """Return the stored run of a name that is the reported one; None: it is new."""
    same = [one for one in stored if _is_same(one.attempt, reported)]
    if same:
        return min(same, key=lambda one: abs(one.attempt.started_at - reported.started_at))
    # A pod that is deleted takes its start along; what is left of it began earlier.
    return next(
        (
            one
            for one in stored
            if one.attempt.ending in {None, Ending.LOST}
            and reported.started_at < one.attempt.started_at
            and (reported.ended_at is None or one.attempt.started_at < reported.ended_at)
        ),
        None,
    )


def _is_same(one: Attempt, other: Attempt) -> bool:
    """Return whether two runs of a name are one: they began together, and neither after the other's end."""
    if one.started_at == other.started_at:
        return True
    return abs(one.started_at - other.started_at) <= SAME_START and _overlap(one, other)


def _overlap(one: Attempt, other: Attempt) -> bool:
    return not (_is_over(one, other.started_at) or _is_over(other, one.started_at))


def _is_over(attempt: Attempt, at: datetime) -> bool:
    return attempt.ended_at is not None and attempt.ended_at <= at


def _merged(stored: Attempt, reported: Attempt) -> Attempt:
    """Return a replica as reported, with stored values where the engine no longer reports them."""
    if reported.ending is None and stored.ending not in {None, Ending.LOST}:
        return stored  # an old report
    if reported.started_at < stored.started_at - SAME_START:
        reported = replace(reported, started_at=stored.started_at)
    return reported if reported.nodes else replace(reported, nodes=stored.nodes, devices=stored.devices)


def _lost(one: StoredAttempt, report: SeenJob, last_seen: datetime | None) -> StoredAttempt:
    following = min(
        (
            a.started_at
            for a in report.attempts
            if a.replica == one.attempt.replica and a.started_at > one.attempt.started_at
        ),
        default=None,
    )
    return replace(one, attempt=closed(one.attempt, report.earlier_end, last_seen, following))
