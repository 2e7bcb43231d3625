"""`sacct`: the accounting's records of jobs, one per attempt. Pure.

Records end with an unguessable delimiter, as lines of squeue do: names may contain anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from fairway.engines.slurm.jobs import fields
from fairway.engines.slurm.jobs.fields import FleetLookup, expand
from fairway.engines.slurm.jobs.squeue import said
from fairway.model.job import OPEN_JOBS, Attempt, EngineId, SeenJob
from fairway.model.names import UserName

IDS_A_CALL: Final = 500
"""More make the command too long, and slurmdbd's answer slow."""
WINDOW_SECONDS: Final = 6 * 3600
"""Longest time window of one query."""
ENDED_STATES: Final = "CD,F,TO,CA,PR,NF,OOM,BF,DL"


class SacctRow(NamedTuple):
    """One attempt, or one wait for it. The fields are in the order of `FIELDS`."""

    id: str
    name: str
    state: str
    submit: str
    start: str
    end: str
    exit_code: str
    node_list: str
    nodes: str
    tres: str
    asked: str
    restarts: str
    user: str
    account: str
    partition: str
    limit: str
    reason: str
    admin_comment: str
    row: str


FIELDS: Final = (
    "JobID",
    "JobName",
    "State",
    "Submit",
    "Start",
    "End",
    "ExitCode",
    "NodeList",
    "NNodes",
    "AllocTRES",
    "ReqTRES",
    "Restarts",
    "User",
    "Account",
    "Partition",
    "TimelimitRaw",
    "Reason",
    "AdminComment",
    "DBIndex",
)


def arguments(secret: str) -> list[str]:
    """Return the arguments common to all queries: all attempts, no steps, all users."""
    return [
        "--noheader",
        "--allocations",
        "--duplicates",
        "--allusers",
        "--local",
        "--parsable",
        f"--delimiter={secret}",
        f"--format={','.join(FIELDS)}",
    ]


def by_id(ids: Sequence[str]) -> list[str]:
    return [f"--jobs={','.join(ids)}"]


def by_name(names: Sequence[str], since: float) -> list[str]:
    return [f"--name={','.join(names)}", f"--starttime={_moment(since)}"]


def ended_between(since: float, until: float) -> list[str]:
    return [f"--starttime={_moment(since)}", f"--endtime={_moment(until)}", f"--state={ENDED_STATES}"]


def records(output: bytes, secret: str) -> Iterator[SacctRow]:
    """Parse the records; a job array that waits as one is left to squeue."""
    parts = output.decode(errors="replace").split(secret)
    size = len(FIELDS)
    for at in range(0, len(parts) - size + 1, size):
        record = SacctRow(parts[at].lstrip("\n"), *parts[at + 1 : at + size])
        if "[" not in record.id:
            yield record


def grouped(found: Iterable[SacctRow]) -> Mapping[str, tuple[SacctRow, ...]]:
    """Group records by job, oldest first."""
    jobs: dict[str, list[SacctRow]] = {}
    for record in found:
        jobs.setdefault(record.id, []).append(record)
    return {name: tuple(sorted(some, key=_order)) for name, some in jobs.items()}


def attempt(record: SacctRow, words: FleetLookup) -> Attempt | None:
    """Convert a record to an attempt. Returns None if it never ran."""
    nodes = expand(record.node_list)
    started = fields.time_of(record.start)
    if not nodes or started is None:
        return None
    how = fields.ending(record.state)
    devices = _share(record, words).devices
    if how is None:
        return Attempt(started, nodes, devices)
    first = record.state.split(" ", 1)[0]
    code, signal = fields.exit_of(record.exit_code, first)
    return Attempt(
        started,
        nodes,
        devices,
        ended_at=fields.time_of(record.end),
        ending=how,
        exit_code=code,
        signal=signal,
        reason=said(record.state, record.reason),
    )


def is_over(history: Sequence[SacctRow]) -> bool:
    """Return whether a dropped job ended with its last record, and all of its records are there."""
    last = history[-1]
    return (
        fields.job_state(last.state, last.reason) not in OPEN_JOBS
        and fields.time_of(last.end) is not None
        and len(history) > _number(last.restarts)
    )


def is_complete(history: Sequence[SacctRow], words: FleetLookup) -> bool:
    """Return whether it ended and each attempt's end is there: slurmdbd may have the last one's first."""
    return is_over(history) and past(history, len(history), words) is not None


def past(history: Sequence[SacctRow], restarts: int, words: FleetLookup) -> tuple[Attempt, ...] | None:
    """Return the attempts before the given restart. Returns None if the accounting lacks some yet."""
    before = history[:restarts]
    if len(before) < restarts:
        return None
    ran = [attempt(record, words) for record in before]
    if any(one is not None and one.ended_at is None for one in ran):
        return None
    return tuple(one for one in ran if one is not None)


def seen(history: Sequence[SacctRow], words: FleetLookup) -> SeenJob:
    """Return the job as the accounting reports it."""
    first, last = history[0], history[-1]
    state = fields.job_state(last.state, last.reason)
    over = state not in OPEN_JOBS
    ran = tuple(one for record in history if (one := attempt(record, words)) is not None)
    share = _share(last, words)
    nodes = max(1, _number(last.nodes))
    array, index = fields.array_of(last.id)
    return SeenJob(
        engine_id=EngineId(last.id),
        name=last.name,
        user=UserName(last.user),
        team=words.team(last.account),
        state=state,
        submitted_at=fields.time_of(first.submit) or fields.EPOCH,
        supply=share.supply,
        gpus=math.ceil(share.devices / nodes),
        nodes=nodes,
        priority=words.priority(last.admin_comment),
        time_seconds=60 * int(last.limit) if last.limit.isdecimal() else None,
        reason=said(last.state, last.reason) if over else "",
        attempts=ran,
        earlier_attempts=max(0, _number(last.restarts) + 1 - len(history)),
        ended_at=fields.time_of(last.end) if over else None,
        exit_code=ran[-1].exit_code if over and ran else None,
        array_id=array,
        array_index=index,
    )


def windows(since: float, until: float) -> Iterator[tuple[float, float]]:
    """Yield the time between, in windows."""
    while since < until:
        yield since, min(until, since + WINDOW_SECONDS)
        since += WINDOW_SECONDS


def _share(record: SacctRow, words: FleetLookup) -> fields.JobDevices:
    return words.share(record.partition, record.tres or record.asked, "", max(1, _number(record.nodes)))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _order(record: SacctRow) -> tuple[int, int]:
    return _number(record.submit), _number(record.row)


def _moment(seconds: float) -> str:
    """Format a time for sacct; the environment sets UTC."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")
