"""`sacct`: what the accounting keeps of jobs, a record an attempt. Pure.

Records end with a word that nobody can know beforehand, as lines of squeue do: names may hold anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from fairway.engines.slurm.jobs import reading
from fairway.engines.slurm.jobs.hostlist import expand
from fairway.engines.slurm.jobs.reading import Words
from fairway.engines.slurm.jobs.squeue import said
from fairway.model.job import OPEN_JOBS, Attempt, EngineId, SeenJob
from fairway.model.names import UserName

IDS_A_CALL: Final = 500
"""More make the command too long, and slurmdbd's answer slow."""
WINDOW_SECONDS: Final = 6 * 3600
"""What one look back covers at most."""
ENDED_STATES: Final = "CD,F,TO,CA,PR,NF,OOM,BF,DL"


class Record(NamedTuple):
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
    """What every question begins with: all attempts, no steps, everybody's."""
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


def records(output: bytes, secret: str) -> Iterator[Record]:
    """The records; a job array that waits as one is left to squeue."""
    parts = output.decode(errors="replace").split(secret)
    size = len(FIELDS)
    for at in range(0, len(parts) - size + 1, size):
        record = Record(parts[at].lstrip("\n"), *parts[at + 1 : at + size])
        if "[" not in record.id:
            yield record


def grouped(found: Iterable[Record]) -> Mapping[str, tuple[Record, ...]]:
    """Of each job, oldest first."""
    jobs: dict[str, list[Record]] = {}
    for record in found:
        jobs.setdefault(record.id, []).append(record)
    return {name: tuple(sorted(some, key=_order)) for name, some in jobs.items()}


def attempt(record: Record, words: Words) -> Attempt | None:
    """What a record tells of a run; None: it never ran."""
    nodes = expand(record.node_list)
    started = reading.time_of(record.start)
    if not nodes or started is None:
        return None
    how = reading.ending(record.state)
    devices = _share(record, words).devices
    if how is None:
        return Attempt(started, nodes, devices)
    first = record.state.split(" ", 1)[0]
    code, signal = reading.exit_of(record.exit_code, first)
    return Attempt(
        started,
        nodes,
        devices,
        ended_at=reading.time_of(record.end),
        ending=how,
        exit_code=code,
        signal=signal,
        reason=said(record.state, record.reason),
    )


def is_over(history: Sequence[Record]) -> bool:
    """Whether a job that slurmctld no longer has ended with its last record, and all of them are there."""
    last = history[-1]
    return (
        reading.job_state(last.state, last.reason) not in OPEN_JOBS
        and reading.time_of(last.end) is not None
        and len(history) > _number(last.restarts)
    )


def is_complete(history: Sequence[Record], words: Words) -> bool:
    """Whether it is over, and the end of each attempt is there: slurmdbd may have the last one's first."""
    return is_over(history) and past(history, len(history), words) is not None


def past(history: Sequence[Record], restarts: int, words: Words) -> tuple[Attempt, ...] | None:
    """The attempts before the one after so many restarts; None: the accounting does not have them all yet."""
    before = history[:restarts]
    if len(before) < restarts:
        return None
    ran = [attempt(record, words) for record in before]
    if any(one is not None and one.ended_at is None for one in ran):
        return None
    return tuple(one for one in ran if one is not None)


def seen(history: Sequence[Record], words: Words) -> SeenJob:
    """The job as the accounting tells it."""
    first, last = history[0], history[-1]
    state = reading.job_state(last.state, last.reason)
    over = state not in OPEN_JOBS
    ran = tuple(one for record in history if (one := attempt(record, words)) is not None)
    share = _share(last, words)
    nodes = max(1, _number(last.nodes))
    array, index = reading.array_of(last.id)
    return SeenJob(
        engine_id=EngineId(last.id),
        name=last.name,
        user=UserName(last.user),
        team=words.team(last.account),
        state=state,
        submitted_at=reading.time_of(first.submit) or reading.EPOCH,
        supply=share.supply,
        gpus=math.ceil(share.devices / nodes),
        nodes=nodes,
        priority=words.priority(last.admin_comment),
        time_seconds=60 * int(last.limit) if last.limit.isdecimal() else None,
        reason=said(last.state, last.reason) if over else "",
        attempts=ran,
        earlier_attempts=max(0, _number(last.restarts) + 1 - len(history)),
        ended_at=reading.time_of(last.end) if over else None,
        exit_code=ran[-1].exit_code if over and ran else None,
        array_id=array,
        array_index=index,
    )


def windows(since: float, until: float) -> Iterator[tuple[float, float]]:
    """The time between, in parts."""
    while since < until:
        yield since, min(until, since + WINDOW_SECONDS)
        since += WINDOW_SECONDS


def _share(record: Record, words: Words) -> reading.Share:
    return words.share(record.partition, record.tres or record.asked, "", max(1, _number(record.nodes)))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _order(record: Record) -> tuple[int, int]:
    return _number(record.submit), _number(record.row)


def _moment(seconds: float) -> str:
    """As sacct reads it; the environment says UTC."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")
