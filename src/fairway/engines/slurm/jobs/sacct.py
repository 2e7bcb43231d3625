"""Build the arguments of `sacct`, and parse its records, one per attempt, to jobs. Pure.

Records end with an unguessable delimiter, as lines of squeue do: names may contain anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from fairway.engines.slurm.jobs import squeue
from fairway.engines.slurm.jobs.squeue import FleetLookup, JobDevices, parse_int, parse_time
from fairway.engines.slurm.nodes.hostlist import expand
from fairway.model.job import OPEN_JOBS, Attempt, EngineId, SeenJob
from fairway.model.names import UserName

IDS_A_CALL: Final = 500
"""More make the command too long, and slurmdbd's answer slow."""
WINDOW_SECONDS: Final = 6 * 3600
"""Longest time window of one query."""
ENDED_STATES: Final = "CD,F,TO,CA,PR,NF,OOM,BF,DL"


class SacctRow(NamedTuple):
    """One attempt, or one wait for it. The attributes have the names of sacct's fields."""

    jobid: str
    jobidraw: str
    jobname: str
    state: str
    submit: str
    start: str
    end: str
    exitcode: str
    nodelist: str
    nnodes: str
    alloctres: str
    reqtres: str
    restarts: str
    user: str
    account: str
    partition: str
    timelimitraw: str
    reason: str
    admincomment: str
    wckey: str
    comment: str
    dbindex: str


def arguments(delimiter: str) -> list[str]:
    """Return the arguments common to all queries: all attempts, no steps, all users."""
    return [
        "--noheader",
        "--allocations",
        "--duplicates",
        "--allusers",
        "--local",
        "--parsable",
        f"--delimiter={delimiter}",
        f"--format={','.join(SacctRow._fields)}",
    ]


def by_id(ids: Sequence[str]) -> list[str]:
    return [f"--jobs={','.join(ids)}"]


def by_name(names: Sequence[str], since: float) -> list[str]:
    return [f"--name={','.join(names)}", f"--starttime={_time_text(since)}"]


def ended_between(since: float, until: float) -> list[str]:
    return [f"--starttime={_time_text(since)}", f"--endtime={_time_text(until)}", f"--state={ENDED_STATES}"]


def records(output: bytes, delimiter: str) -> Iterator[SacctRow]:
    """Parse the records; a job array that waits as one is left to squeue."""
    parts = output.decode(errors="replace").split(delimiter)
    size = len(SacctRow._fields)
    for at in range(0, len(parts) - size + 1, size):
        record = SacctRow(parts[at].lstrip("\n"), *parts[at + 1 : at + size])
        if "[" not in record.jobid:
            yield record


def by_job(rows: Iterable[SacctRow]) -> Mapping[str, tuple[SacctRow, ...]]:
    """Group records by job, oldest first."""
    jobs: dict[str, list[SacctRow]] = {}
    for record in rows:
        jobs.setdefault(record.jobid, []).append(record)
    return {job_id: tuple(sorted(history, key=_age)) for job_id, history in jobs.items()}


def to_attempt(record: SacctRow, lookup: FleetLookup) -> Attempt | None:
    """Convert a record to an attempt. Returns None if it never ran."""
    nodes = expand(record.nodelist)
    started = parse_time(record.start)
    if not nodes or started is None:
        return None
    devices = _job_devices(record, lookup).devices
    gpus = squeue.node_gpus(nodes, devices, record.jobidraw, record.jobid)
    attempt = Attempt(started, nodes, devices, gpus=gpus)
    if squeue.to_ending(record.state) is None:
        return attempt
    return squeue.end_attempt(attempt, record.state, record.end, record.exitcode, record.reason)


def is_over(history: Sequence[SacctRow]) -> bool:
    """Return whether a dropped job ended with its last record, and all of its records are there."""
    last = history[-1]
    return (
        squeue.job_state(last.state, last.reason) not in OPEN_JOBS
        and parse_time(last.end) is not None
        and len(history) > parse_int(last.restarts)
    )


def is_complete(history: Sequence[SacctRow], lookup: FleetLookup) -> bool:
    """Return whether it ended and each attempt's end is there: slurmdbd may have the last one's first."""
    return is_over(history) and past_attempts(history, len(history), lookup) is not None


def past_attempts(
    history: Sequence[SacctRow], restarts: int, lookup: FleetLookup
) -> tuple[Attempt, ...] | None:
    """Return the attempts before the given restart. Returns None if the accounting lacks some yet."""
    before = history[:restarts]
    attempts = _attempts(before, lookup)
    if len(before) < restarts or any(attempt.ended_at is None for attempt in attempts):
        return None
    return attempts


def to_job(history: Sequence[SacctRow], lookup: FleetLookup) -> SeenJob:
    """Return the job as the accounting reports it."""
    first, last = history[0], history[-1]
    state = squeue.job_state(last.state, last.reason)
    ended = state not in OPEN_JOBS
    attempts = _attempts(history, lookup)
    held = _job_devices(last, lookup)
    nodes = max(1, parse_int(last.nnodes))
    array, index = squeue.parse_array_id(last.jobid)
    return SeenJob(
        engine_id=EngineId(last.jobid),
        name=last.jobname,
        user=UserName(last.user),
        team=lookup.team(last.account),
        state=state,
        submitted_at=parse_time(first.submit) or squeue.EPOCH,
        supply=held.supply,
        gpus=math.ceil(held.devices / nodes),
        nodes=nodes,
        priority=lookup.priority(last.admincomment),
        # A site may not store comments: what squeue told before is kept then.
        project=lookup.project(last.wckey, last.comment) or None,
        labels=lookup.labels(last.comment) or None,
        time_seconds=60 * int(last.timelimitraw) if last.timelimitraw.isdecimal() else None,
        reason=squeue.ending_text(last.state, last.reason) if ended else "",
        attempts=attempts,
        earlier_attempts=max(0, parse_int(last.restarts) + 1 - len(history)),
        ended_at=parse_time(last.end) if ended else None,
        exit_code=attempts[-1].exit_code if ended and attempts else None,
        array_id=array,
        array_index=index,
    )


def windows(since: float, until: float) -> Iterator[tuple[float, float]]:
    """Yield the time between, in windows."""
    while since < until:
        yield since, min(until, since + WINDOW_SECONDS)
        since += WINDOW_SECONDS


def _attempts(history: Sequence[SacctRow], lookup: FleetLookup) -> tuple[Attempt, ...]:
    return tuple(attempt for record in history if (attempt := to_attempt(record, lookup)) is not None)


def _job_devices(record: SacctRow, lookup: FleetLookup) -> JobDevices:
    tres = record.alloctres or record.reqtres
    return lookup.devices(record.partition, tres, "", max(1, parse_int(record.nnodes)), record.nodelist)


def _age(record: SacctRow) -> tuple[int, int]:
    return parse_int(record.submit), parse_int(record.dbindex)


def _time_text(seconds: float) -> str:
    """Format a time for sacct; the environment sets UTC."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")
