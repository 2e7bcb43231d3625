"""Convert Slurm's job fields to Fairway's: states, times, exit codes, devices. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from fairway.engines.slurm.nodes.devices import Claims
from fairway.model.fleet import Fleet
from fairway.model.job import Ending, EngineId, JobState
from fairway.model.names import NodeName, PriorityName, TeamName
from fairway.model.team import Supply

MOST_NODES: Final = 100_000
"""A limit on what a broken line can make us hold."""


_RANGE: Final = re.compile(r"\[([^\]]*)\]")

_NONE: Final = frozenset({"", "None assigned", "(null)", "N/A"})


@lru_cache(maxsize=8192)  # many jobs, few places
def expand(text: str) -> tuple[NodeName, ...]:
    """Expand a hostlist, in its order; empty for a job without nodes."""
    if text in _NONE:
        return ()
    names: list[NodeName] = []
    for part in _parts(text):
        for name in _each(part):
            names.append(NodeName(name))
            if len(names) >= MOST_NODES:
                return tuple(names)
    return tuple(names)


def _parts(text: str) -> Iterator[str]:
    """Split at commas that are not in brackets."""
    depth = start = 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _each(part: str) -> Iterator[str]:
    found = _RANGE.search(part)
    if found is None:
        yield part
        return
    head, tail = part[: found.start()], part[found.end() :]
    for piece in found[1].split(","):
        low, dash, high = piece.partition("-")
        if dash and low.isdecimal() and high.isdecimal():
            numbers = range(int(low), min(int(high), int(low) + MOST_NODES) + 1)
            written: Iterator[str] = (f"{number:0{len(low)}}" for number in numbers)
        else:
            written = iter([piece])
        for number in written:
            for rest in _each(tail):
                yield f"{head}{number}{rest}"


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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

_BACK: Final = frozenset({"REQUEUED", "RESIZING"})
"""How an attempt, never a job, ends in the accounting."""

_WAITING: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "RESV_DEL_HOLD"})

_HELD: Final = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT"})

_HELD_REASONS: Final = ("JobHeld", "launch failed requeued held", "JobHoldMaxRequeue")

_TRES: Final = re.compile(r"(?:^|,)gres/gpu(?::([^,=]+))?=(\d+)")

_ASKED: Final = re.compile(r"gres[/:]gpu(?::([^,:=]*[^\d,:=][^,:=]*))?(?:[:=](\d+))?(?:,|$)")

_LIMIT: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")

_WORD: Final = re.compile(r"fairway:([a-z][a-z0-9-]*)")


def job_state(word: str, reason: str) -> JobState:
    """Convert a job state. Open states that do not wait count as running: COMPLETING, SUSPENDED, …."""
    first = word.split(" ", 1)[0]  # `CANCELLED by 2001`
    if first in _WAITING:
        return JobState.HELD if reason.startswith(_HELD_REASONS) else JobState.WAITING
    if first in _HELD:
        return JobState.HELD
    return _ENDED[first][0] if first in _ENDED else JobState.RUNNING


def ending(word: str) -> Ending | None:
    """Convert a state to how an attempt ended. Returns None if it did not."""
    first = word.split(" ", 1)[0]
    if first in _BACK:
        return Ending.REQUEUED
    return _ENDED[first][1] if first in _ENDED else None


def time_of(text: str) -> datetime | None:
    """Parse a time in seconds. Returns None for N/A, Unknown and None."""
    return datetime.fromtimestamp(int(text), UTC) if text.isdecimal() and int(text) else None


def exit_of(text: str, state: str) -> tuple[int | None, int | None]:
    """Parse `7:0`, `0:15`: exit code and signal. 0 is a code only if completed: others were killed."""
    code, _, signal = text.partition(":")
    if not code.isdecimal():
        return None, None
    ended_by = int(signal) if signal.isdecimal() and int(signal) else None
    return (int(code) if int(code) or state == "COMPLETED" else None), ended_by


def array_of(id_: str) -> tuple[EngineId | None, int | None]:
    """Parse array and index of a task's id, `12_7`. Returns None for both if the job is no task."""
    array, _, index = id_.partition("_")
    return (EngineId(array), int(index) if index.isdecimal() else None) if index else (None, None)


def limit_of(text: str) -> int | None:
    """Parse a time limit like `1-02:03:04` into seconds. Returns None for UNLIMITED and the like."""
    found = _LIMIT.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def priority_of(admin_comment: str) -> PriorityName | None:
    """Parse the priority that job_submit.lua stored. Returns None if there is none."""
    found = _WORD.fullmatch(admin_comment)
    return PriorityName(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class JobDevices:
    """The devices of a job, over all its nodes."""

    supply: Supply | None
    devices: int


class FleetLookup:
    """Maps accounts, partitions and GRES types of one cluster to a fleet's names."""

    def __init__(self, fleet: Fleet, claims: Claims) -> None:
        self._teams = frozenset(team.name for team in fleet.teams)
        self._priorities = frozenset(priority.name for priority in fleet.priorities)
        self._claims = claims
        self.share = lru_cache(maxsize=4096)(self._share)

    def team(self, account: str) -> TeamName | None:
        """Return the team of an account. Returns None if it is no team of the fleet."""
        return TeamName(account) if account in self._teams else None

    def priority(self, admin_comment: str) -> PriorityName | None:
        word = priority_of(admin_comment)
        return word if word in self._priorities else None

    def _share(self, partitions: str, tres: str, asked: str, nodes: int) -> JobDevices:
        """Return what a job holds or requests: counted by `tres`, typed by `asked` where `tres` has no types.

        `asked` is the request per node. With several types in one job, those of a pool come first.
        """
        names = _own(partitions.split(","))
        counts: dict[str | None, int] = {}
        for kind, count in _TRES.findall(tres):
            counts[kind or None] = int(count)
        wanted = {kind or None: int(count or 1) * nodes for kind, count in _ASKED.findall(asked)}
        typed: dict[str | None, int] = {kind: count for kind, count in counts.items() if kind is not None}
        if not typed and len(wanted) == 1 and counts:
            typed = dict.fromkeys(wanted, counts[None])  # one type was asked for: all are of it
        found = typed or counts or wanted
        best = JobDevices(None, 0)
        for kind, count in found.items():
            supply = self._supply(names, kind)
            if supply is not None:
                return JobDevices(supply, count)
            if best.devices == 0:
                best = JobDevices(None, count)
        return best

    def _supply(self, partitions: Collection[str], kind: str | None) -> Supply | None:
        pool, slice_ = self._claims.of(partitions, kind)
        if pool is not None:
            return Supply(pool, slice_)
        return self._claims.only(partitions) if kind is None else None


def _own(partitions: Collection[str]) -> tuple[str, ...]:
    """Add the partition that a pool names to its second one, which is over the same nodes."""
    return tuple({name: None for part in partitions for name in (part, part.removesuffix("-lent"))})
