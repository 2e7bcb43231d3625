"""`squeue`: its arguments, and the parser of its lines. Pure.

A line ends with an unguessable delimiter, preceded by the job's name, which may be anything: no name forges a
line, not even one with line breaks. The format is passed in the environment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from fairway.engines.slurm.jobs import fields as reading
from fairway.engines.slurm.jobs.fields import FleetLookup, expand
from fairway.explain.engine_reasons import slurm_code
from fairway.model.job import OPEN_JOBS, Attempt, EngineId, JobState, SeenJob
from fairway.model.names import UserName

ARGUMENTS: Final = ("--noheader", "--array", "--states=all", "--all", "--local")
_BETWEEN: Final = "\x1f"
_NOTHING: Final = frozenset({"(null)", "N/A", "None", "n/a"})
_WAITS: Final = frozenset({JobState.WAITING, JobState.HELD})


class SqueueRow(NamedTuple):
    """One job, as squeue prints it. The fields are in the order of `FIELDS`."""

    id: str
    state: str
    start: str
    end: str
    user: str
    account: str
    partition: str
    submit: str
    limit: str
    restarts: str
    exit_code: str
    reason: str
    nodes: str
    node_list: str
    tres: str
    tres_per_node: str
    tres_per_job: str
    admin_comment: str
    name: str


FIELDS: Final = (
    "jobarrayid",
    "state",
    "starttime",
    "endtime",
    "username",
    "account",
    "partition",
    "submittime",
    "timelimit",
    "restartcnt",
    "exit_code",
    "reason",
    "numnodes",
    "nodelist",
    "tres-alloc",  # what is asked for, as long as the job waits
    "tres-per-node",
    "tres-per-job",
    "admin_comment",
    "name",
)


def environment(secret: str, fields: tuple[str, ...] = FIELDS) -> Mapping[str, str]:
    """Return the environment that makes squeue print `fields` whole, whatever their length."""
    *before, last = fields
    return {"SQUEUE_FORMAT2": ",".join([*(f"{f}:0{_BETWEEN}" for f in before), f"{last}:0{secret}"])}


def lines(output: bytes, secret: str) -> Iterator[bytes]:
    """Split the output into lines, whatever they contain."""
    found = output.split(secret.encode() + b"\n")
    found.pop()  # after the last one nothing comes
    return iter(found)


def key(line: bytes) -> bytes:
    """Return the job id of a line."""
    return line[: line.find(b"\x1f")]


def parse(line: bytes) -> SqueueRow:
    """Parse the fields of a line."""
    return SqueueRow(*line.decode(errors="replace").split(_BETWEEN, len(FIELDS) - 1))


def settled(row: SqueueRow) -> SqueueRow:
    """Drop the times that Slurm estimates anew every few seconds while a job waits."""
    return row._replace(start="", end="") if row.state == "PENDING" else row


def only_completes(was: SqueueRow, row: SqueueRow) -> bool:
    """Return whether a running job is now completing: nodes leave one by one, its ending is not known yet."""
    ran = reading.job_state(was.state, was.reason) is JobState.RUNNING
    return ran and row.state == "COMPLETING" and was.restarts == row.restarts


def restarts(row: SqueueRow) -> int:
    return int(row.restarts) if row.restarts.isdecimal() else 0


def attempt(row: SqueueRow, words: FleetLookup) -> Attempt | None:
    """Return the current or last attempt. Returns None before the job has nodes."""
    nodes = expand(row.node_list)
    started = reading.time_of(row.start)
    state = reading.job_state(row.state, row.reason)
    if not nodes or started is None or state in (JobState.WAITING, JobState.HELD):
        return None
    share = _share(row, words)
    if state is JobState.RUNNING:
        return Attempt(started, nodes, share.devices)
    code, signal = reading.exit_of(row.exit_code, row.state)
    return Attempt(
        started,
        nodes,
        share.devices,
        ended_at=reading.time_of(row.end),
        ending=reading.ending(row.state),
        exit_code=code,
        signal=signal,
        reason=said(row.state, row.reason),
    )


def seen(row: SqueueRow, words: FleetLookup) -> SeenJob:
    """Return the job with the one attempt squeue knows; `earlier_attempts` counts the others."""
    state = reading.job_state(row.state, row.reason)
    now = attempt(row, words)
    share = _share(row, words)
    nodes = _number(row.nodes)
    over = state not in OPEN_JOBS
    array, index = reading.array_of(row.id)
    return SeenJob(
        engine_id=EngineId(row.id),
        name=row.name,
        user=UserName(row.user),
        team=words.team(row.account),
        state=state,
        submitted_at=reading.time_of(row.submit) or reading.EPOCH,
        supply=share.supply,
        gpus=math.ceil(share.devices / nodes),
        nodes=nodes,
        priority=words.priority(row.admin_comment),
        time_seconds=reading.limit_of(row.limit),
        reason=said(row.state, row.reason) if over else "" if row.reason in _NOTHING else row.reason,
        reason_code=slurm_code(row.reason) if state in _WAITS else "",
        attempts=() if now is None else (now,),
        earlier_attempts=restarts(row),
        ended_at=reading.time_of(row.end) if over else None,
        exit_code=now.exit_code if over and now is not None else None,
        array_id=array,
        array_index=index,
    )


def said(state: str, reason: str) -> str:
    """Return Slurm's description of an ending."""
    return state if reason in _NOTHING or not reason else f"{state}: {reason}"


def _number(text: str) -> int:
    return max(1, int(text)) if text.isdecimal() else 1


def _share(row: SqueueRow, words: FleetLookup) -> reading.JobDevices:
    asked = row.tres_per_node if row.tres_per_node not in _NOTHING else ""
    if not asked and row.tres_per_job not in _NOTHING:
        # of the whole job: counted by TRES, only the type is told by it
        return words.share(row.partition, row.tres, row.tres_per_job, 1)
    return words.share(row.partition, row.tres, asked, _number(row.nodes))
