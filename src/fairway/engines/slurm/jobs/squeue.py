"""Build the arguments of `squeue`, and parse its lines to jobs. Pure.

A line ends with an unguessable delimiter, preceded by the job's name, which may be anything: no name forges a
line, not even one with line breaks. The format is passed in the environment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

from fairway.engines.slurm.nodes.devices import (
    PERCENT,
    NodeShares,
    PoolMatcher,
    devices_per_gpu,
    shares_per_gpu,
)
from fairway.engines.slurm.nodes.hostlist import expand
from fairway.engines.slurm.rest.wire import WireNode
from fairway.explain.engine_reasons import slurm_code
from fairway.model.fleet import Fleet
from fairway.model.job import OPEN_JOBS, Attempt, Ending, EngineId, JobState, NodeGpus, SeenJob
from fairway.model.labels import PROJECT_KEY, Labels, kept_labels, parse_comment
from fairway.model.names import NodeName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply

ARGUMENTS: Final = ("--noheader", "--array", "--states=all", "--all", "--local")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
WAITING_STATES: Final = frozenset({JobState.WAITING, JobState.HELD})

GpuIndices = Mapping[NodeName, tuple[int, ...]]
"""The indices of a job's GPUs by node."""
NO_INDICES: Final[GpuIndices] = {}

_SEPARATOR: Final = "\x1f"
_UNSET: Final = frozenset({"(null)", "N/A", "None", "n/a"})

_ENDED: Final[Mapping[str, tuple[JobState, Ending]]] = {
    "COMPLETED": (JobState.DONE, Ending.DONE),
    "FAILED": (JobState.FAILED, Ending.FAILED),
    "BOOT_FAIL": (JobState.FAILED, Ending.NODE_LOST),
    "OUT_OF_MEMORY": (JobState.FAILED, Ending.FAILED),
    "CANCELLED": (JobState.CANCELLED, Ending.CANCELLED),
    "REVOKED": (JobState.CANCELLED, Ending.CANCELLED),
    "TIMEOUT": (JobState.TIMED_OUT, Ending.TIMED_OUT),
    "DEADLINE": (JobState.TIMED_OUT, Ending.TIMED_OUT),
    "PREEMPTED": (JobState.FAILED, Ending.PREEMPTED),
    "NODE_FAIL": (JobState.FAILED, Ending.NODE_LOST),
}
_REQUEUED: Final = frozenset({"REQUEUED", "RESIZING"})
"""How an attempt, never a job, ends in the accounting."""
_WAITING: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "RESV_DEL_HOLD"})
_HELD: Final = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT"})
_HELD_REASONS: Final = ("JobHeld", "launch failed requeued held", "JobHoldMaxRequeue")

_TRES_GPUS: Final = re.compile(r"(?:^|,)gres/gpu(?::([^,=]+))?=(\d+)")
_REQUESTED_GPUS: Final = re.compile(r"gres[/:]gpu(?::([^,:=]*[^\d,:=][^,:=]*))?(?:[:=](\d+))?(?:,|$)")
_SHARES: Final = re.compile(
    r"(?:^|,)gres[/:](shard|mps)(?::([^,:=]*[^\d,:=][^,:=]*))?(?:[:=](\d+))?(?=,|$)", re.IGNORECASE
)
"""Shares of GPUs, in what a job holds and in what it requests."""
_MAX_REPLICAS: Final = 999
_TIME_LIMIT: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_PRIORITY_COMMENT: Final = re.compile(r"fairway:([a-z][a-z0-9-]*)")


class SqueueRow(NamedTuple):
    """One job, as squeue prints it. The attributes have the names of squeue's fields."""

    jobarrayid: str
    jobid: str
    """Slurm's own number; that of an array's task has nothing to do with `jobarrayid`."""
    state: str
    starttime: str
    endtime: str
    username: str
    account: str
    partition: str
    submittime: str
    timelimit: str
    restartcnt: str
    exit_code: str
    reason: str
    numnodes: str
    nodelist: str
    tres_alloc: str
    """The request, as long as the job waits."""
    tres_per_node: str
    tres_per_job: str
    admin_comment: str
    # Users choose the rest: whatever it contains, the fields before are what they are.
    wckey: str
    comment: str
    name: str

    @property
    def job_state(self) -> JobState:
        return job_state(self.state, self.reason)

    @property
    def restarts(self) -> int:
        return parse_int(self.restartcnt)


FIELDS: Final = tuple(f.replace("_", "-") if f.startswith("tres") else f for f in SqueueRow._fields)


@dataclass(frozen=True, slots=True)
class JobDevices:
    """The devices of a job, over all its nodes."""

    supply: Supply | None
    devices: int


class SharesLookup:
    """How many jobs can share each GPU of a node, by node; of nodes that are gone, by partition."""

    def __init__(self, nodes: Iterable[WireNode] = ()) -> None:
        self._nodes: dict[tuple[str, str], NodeShares] = {}
        self._partitions: dict[tuple[str, str], NodeShares] = {}
        for node in nodes:
            for name, shares in _node_shares(node.gres, node.gres_used).items():
                self._nodes[node.name, name] = shares
                for partition in node.partitions:
                    self._partitions.setdefault((partition, name), shares)

    def find(self, name: str, node: str, partitions: Iterable[str]) -> NodeShares | None:
        """Return how the GPUs of a node are shared. Returns None if no node of the partitions tells."""
        known = (self._partitions.get((partition, name)) for partition in partitions)
        return self._nodes.get((node, name)) or next(filter(None, known), None)


_node_shares = lru_cache(maxsize=4096)(shares_per_gpu)


class FleetLookup:
    """Maps accounts, partitions and GRES types of one cluster to a fleet's names."""

    def __init__(self, fleet: Fleet, pools: PoolMatcher, shares: SharesLookup | None = None) -> None:
        # Slurm stores account names in lower case
        self._teams = {team.account_name.lower(): team.name for team in fleet.teams}
        self._label_keys = fleet.cost.labels
        self._priorities = frozenset(priority.name for priority in fleet.priorities)
        self._pools = pools
        self._shares = shares or SharesLookup()
        self._devices_of = lru_cache(maxsize=4096)(self._find_devices)

    def learn(self, shares: SharesLookup) -> None:
        """Replace what is known of how the GPUs of nodes are shared."""
        self._shares = shares
        self._devices_of.cache_clear()

    def team(self, account: str) -> TeamName | None:
        """Return the team of an account. Returns None if it is no team of the fleet."""
        return self._teams.get(account.lower())

    def priority(self, admin_comment: str) -> PriorityName | None:
        """Return the priority that job_submit.lua stored. Returns None if it is none of the fleet."""
        found = _PRIORITY_COMMENT.fullmatch(admin_comment)
        return PriorityName(found[1]) if found and found[1] in self._priorities else None

    def project(self, wckey: str, comment: str) -> str:
        """Return the job's project: its wckey, else `project=NAME` in its comment, else its default wckey.

        A `*` is before a default wckey, which nobody chose for this job. Empty: it has none of them.
        """
        wckey = "" if wckey in _UNSET else wckey
        own = "" if wckey.startswith("*") else wckey
        return own or parse_comment(comment).get(PROJECT_KEY, "") or wckey.removeprefix("*")

    def labels(self, comment: str) -> Labels:
        """Return the labels in a job's comment that the fleet keeps for cost."""
        return kept_labels(parse_comment(comment), self._label_keys) if self._label_keys else ()

    def devices(self, partitions: str, tres: str, request: str, nodes: int, nodelist: str = "") -> JobDevices:
        """Return what a job holds or requests: counted by `tres`, typed by `request` if `tres` has no types.

        `request` is per node. With several types in one job, those of a pool come first.
        """
        # Only shares depend on the node; without it, jobs that are alike share one value.
        node = (*expand(nodelist), "")[0] if _SHARES.search(f"{tres},{request}") else ""
        return self._devices_of(partitions, tres, request, nodes, node)

    def _find_devices(self, partitions: str, tres: str, request: str, nodes: int, node: str) -> JobDevices:
        # The second partition of a pool is over the same nodes as the one that the pool names.
        names = {name for part in partitions.split(",") for name in (part, part.removesuffix("-lent"))}
        counts = {kind or None: int(count) for kind, count in _TRES_GPUS.findall(tres)}
        requested = {
            kind or None: int(count or 1) * nodes for kind, count in _REQUESTED_GPUS.findall(request)
        }
        typed: dict[str | None, int] = {kind: count for kind, count in counts.items() if kind is not None}
        if not typed and len(requested) == 1 and counts:
            typed = dict.fromkeys(requested, counts[None])  # one type was requested: all are of it
        best = JobDevices(None, 0)
        for kind, count in (typed or counts or requested).items():
            supply = self._supply(names, kind)
            if supply is not None:
                return JobDevices(supply, count * devices_per_gpu(supply.slice))
            if best.devices == 0:
                best = JobDevices(None, count)
        return best if best.devices else self._share(names, tres, request, nodes, node)

    def _share(
        self, partitions: Collection[str], tres: str, request: str, nodes: int, node: str
    ) -> JobDevices:
        """Return the shares of GPUs that a job holds, as devices of `shared-N`, whatever slices the pool has.

        Where nothing tells how many shares a GPU has, the job counts as at most one GPU on each node.
        """
        held, asked = _SHARES.search(tres), _SHARES.search(request)
        if held is None and asked is None:
            return JobDevices(None, 0)
        name = (held or asked or [""])[1].lower()
        # TRES count the whole job, and are without types.
        count = int(held[3] or 1) if held else int(asked[3] or 1) * nodes if asked else 0
        shares = self._shares.find(name, node, partitions)
        kind = (asked[2] if asked else None) or (shares.type if shares else None)
        supply = self._supply(partitions, kind)
        each = devices_per_gpu(supply.slice if supply else None)
        per_gpu = shares.per_gpu if shares else PERCENT if name == "mps" else each
        if supply is None:
            return JobDevices(None, math.ceil(count / per_gpu))
        if per_gpu == 1:
            return JobDevices(supply, each * (count if shares else min(count, nodes)))
        if per_gpu > _MAX_REPLICAS:
            count, per_gpu = math.ceil(count * PERCENT / per_gpu), PERCENT
        return JobDevices(Supply(supply.pool, SliceName(f"shared-{per_gpu}")), count)

    def _supply(self, partitions: Collection[str], kind: str | None) -> Supply | None:
        pool, slice_ = self._pools.match(partitions, kind)
        if pool is not None:
            return Supply(pool, slice_)
        return self._pools.only_supply(partitions) if kind is None else None


def environment(delimiter: str, fields: tuple[str, ...] = FIELDS) -> Mapping[str, str]:
    """Return the environment that makes squeue print `fields` whole, whatever their length."""
    *others, last = fields
    columns = [*(f"{field}:0{_SEPARATOR}" for field in others), f"{last}:0{delimiter}"]
    return {"SQUEUE_FORMAT2": ",".join(columns)}


def split_lines(output: bytes, delimiter: str) -> Iterator[bytes]:
    """Split the output into lines, whatever they contain."""
    lines = output.split(delimiter.encode() + b"\n")
    lines.pop()  # empty: the last line ends with the delimiter too
    return iter(lines)


def job_key(line: bytes) -> bytes:
    """Return the job id of a line."""
    return line[: line.find(b"\x1f")]


def parse(line: bytes) -> SqueueRow:
    """Parse the fields of a line."""
    return SqueueRow(*line.decode(errors="replace").split(_SEPARATOR, len(FIELDS) - 1))


def without_estimates(row: SqueueRow) -> SqueueRow:
    """Drop the times that Slurm estimates anew every few seconds while a job waits."""
    return row._replace(starttime="", endtime="") if row.state == "PENDING" else row


def starts_completing(before: SqueueRow, row: SqueueRow) -> bool:
    """Return whether a running job is now completing: nodes leave one by one, its ending is not known yet."""
    running = before.job_state is JobState.RUNNING
    return running and row.state == "COMPLETING" and before.restartcnt == row.restartcnt


def to_job(row: SqueueRow, lookup: FleetLookup, indices: GpuIndices = NO_INDICES) -> SeenJob:
    """Return the job with the one attempt squeue has; `earlier_attempts` counts the others."""
    state = row.job_state
    attempt = to_attempt(row, lookup, indices)
    held = _job_devices(row, lookup)
    nodes = max(1, parse_int(row.numnodes))
    ended = state not in OPEN_JOBS
    array, index = parse_array_id(row.jobarrayid)
    return SeenJob(
        engine_id=EngineId(row.jobarrayid),
        name=row.name,
        user=UserName(row.username),
        team=lookup.team(row.account),
        state=state,
        submitted_at=parse_time(row.submittime) or EPOCH,
        supply=held.supply,
        gpus=math.ceil(held.devices / nodes),
        nodes=nodes,
        priority=lookup.priority(row.admin_comment),
        project=lookup.project(row.wckey, row.comment),
        labels=lookup.labels(row.comment),
        time_seconds=parse_time_limit(row.timelimit),
        reason=ending_text(row.state, row.reason) if ended else "" if row.reason in _UNSET else row.reason,
        reason_code=_waiting_code(row) if state in WAITING_STATES else "",
        attempts=() if attempt is None else (attempt,),
        earlier_attempts=row.restarts,
        ended_at=parse_time(row.endtime) if ended else None,
        exit_code=attempt.exit_code if ended and attempt is not None else None,
        array_id=array,
        array_index=index,
    )


def to_attempt(row: SqueueRow, lookup: FleetLookup, indices: GpuIndices = NO_INDICES) -> Attempt | None:
    """Return the current or last attempt. Returns None before the job has nodes."""
    nodes = expand(row.nodelist)
    started = parse_time(row.starttime)
    state = row.job_state
    if not nodes or started is None or state in WAITING_STATES:
        return None
    devices = _job_devices(row, lookup).devices
    gpus = node_gpus(nodes, devices, row.jobid, row.jobarrayid, indices)
    attempt = Attempt(started, nodes, devices, gpus=gpus)
    if state is JobState.RUNNING:
        return attempt
    return end_attempt(attempt, row.state, row.endtime, row.exit_code, row.reason)


def node_gpus(
    nodes: Sequence[NodeName], devices: int, raw_id: str, engine_id: str, indices: GpuIndices = NO_INDICES
) -> tuple[NodeGpus, ...]:
    """Return what exporters call a job on its nodes; a task of an array has two ids. Empty without GPUs."""
    holders = tuple(dict.fromkeys((raw_id, engine_id)))
    return tuple(NodeGpus(node, holders, indices.get(node, ())) for node in nodes) if devices else ()


def end_attempt(attempt: Attempt, state: str, end: str, exit_code: str, reason: str) -> Attempt:
    """Return the attempt with its ending, from the texts of squeue or sacct."""
    code, signal = parse_exit_code(exit_code, state)
    return replace(
        attempt,
        ended_at=parse_time(end),
        ending=to_ending(state),
        exit_code=code,
        signal=signal,
        reason=ending_text(state, reason),
    )


def _job_devices(row: SqueueRow, lookup: FleetLookup) -> JobDevices:
    request = row.tres_per_node if row.tres_per_node not in _UNSET else ""
    if not request and row.tres_per_job not in _UNSET:
        # of the whole job: counted by TRES, it only has the type
        return lookup.devices(row.partition, row.tres_alloc, row.tres_per_job, 1, row.nodelist)
    nodes = max(1, parse_int(row.numnodes))
    return lookup.devices(row.partition, row.tres_alloc, request, nodes, row.nodelist)


def job_state(text: str, reason: str) -> JobState:
    """Convert a job state. Open states that do not wait count as running: COMPLETING, SUSPENDED, …."""
    name = text.split(" ", 1)[0]  # `CANCELLED by 2001`
    if name in _WAITING:
        return JobState.HELD if reason.startswith(_HELD_REASONS) else JobState.WAITING
    if name in _HELD:
        return JobState.HELD
    return _ENDED[name][0] if name in _ENDED else JobState.RUNNING


def to_ending(text: str) -> Ending | None:
    """Convert a state to how an attempt ended. Returns None if it did not."""
    name = text.split(" ", 1)[0]
    if name in _REQUEUED:
        return Ending.REQUEUED
    return _ENDED[name][1] if name in _ENDED else None


def _waiting_code(row: SqueueRow) -> str:
    """Return the code of the reason of a waiting job.

    Of a job in two partitions, a reason of the gate of one says only that the other is its way in.
    """
    code = slurm_code(row.reason)
    return "" if code == "NotAdmitted" and "," in row.partition else code


def ending_text(state: str, reason: str) -> str:
    """Return Slurm's description of an ending."""
    return state if reason in _UNSET or not reason else f"{state}: {reason}"


def parse_int(text: str) -> int:
    """Parse a number. Returns 0 if it is none."""
    return int(text) if text.isdecimal() else 0


def parse_time(text: str) -> datetime | None:
    """Parse a time in seconds. Returns None for N/A, Unknown and None."""
    return datetime.fromtimestamp(int(text), UTC) if parse_int(text) else None


def parse_exit_code(text: str, state: str) -> tuple[int | None, int | None]:
    """Parse `7:0`, `0:15`: exit code and signal. 0 is a code only if completed: others were killed."""
    code, _, signal = text.partition(":")
    if not code.isdecimal():
        return None, None
    return (int(code) if int(code) or state == "COMPLETED" else None), parse_int(signal) or None


def parse_array_id(job_id: str) -> tuple[EngineId | None, int | None]:
    """Parse array and index of a task's id, `12_7`. Returns None for both if the job is no task."""
    array, _, index = job_id.partition("_")
    return (EngineId(array), int(index) if index.isdecimal() else None) if index else (None, None)


def parse_time_limit(text: str) -> int | None:
    """Parse a time limit like `1-02:03:04` into seconds. Returns None for UNLIMITED and the like."""
    found = _TIME_LIMIT.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
