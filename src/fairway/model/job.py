"""Jobs: what a person asks for, where it is, and each attempt an engine made at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NewType

from fairway.model.names import ClusterName, NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply

JobId = NewType("JobId", int)
"""A job of the ledger, ours or native. People see it as `job_word` writes it: `8f3k`."""
EngineId = NewType("EngineId", str)
"""A job as its engine calls it: `1234`, `1234_7` on Slurm, `namespace/name` on Kubernetes."""
EngineName = NewType("EngineName", str)
"""The name an engine job is made under; derived from job and submission, so that it can be found again."""

MOST_TASKS: Final = 10_000
"""Of one array."""
LONGEST_NAME: Final = 40

_DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's: no i, l, o, u, so that nothing is misread."""


def job_word(number: int) -> str:
    """A job's id as people read and type it: at least four digits to the base 32."""
    digits = ""
    while number or len(digits) < 4:
        number, digit = divmod(number, 32)
        digits = _DIGITS[digit] + digits
    return digits


def job_number(word: str) -> JobId | None:
    """The other way round; None: no job's id looks so."""
    number = 0
    if not 4 <= len(word) <= 12:
        return None
    for letter in word.lower():
        digit = _DIGITS.find(letter)
        if digit < 0:
            return None
        number = number * 32 + digit
    return JobId(number)


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    """In the ledger, not yet with an engine: just submitted, or waits for another job or its back-off."""
    WAITING = "waiting"
    """With the engine, which has not started it."""
    HELD = "held"
    """Somebody holds it back."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"
    REFUSED = "refused"
    """The engine would not take it; `reason` says why."""
    LOST = "lost"
    """The engine forgot it, and nothing tells how it ended."""


OPEN_JOBS: Final = (JobState.QUEUED, JobState.WAITING, JobState.HELD, JobState.RUNNING)
ENDED_JOBS: Final = tuple(state for state in JobState if state not in OPEN_JOBS)


class Ending(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"
    PREEMPTED = "preempted"
    """The engine took its place for another job."""
    REQUEUED = "requeued"
    """Somebody, or the engine, sent it back to the queue."""
    NODE_LOST = "node-lost"
    LOST = "lost"
    """Nothing tells how it ended."""


class Tolerates(StrEnum):
    """What a job puts up with."""

    PREEMPTION = "preemption"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs or slices a job asks for on each of its nodes. At most one of the last three is said."""

    count: int = 1
    model: str | None = None
    """A GPU type of the catalogue or the beginning of some: `A100-80GB`, `H100`."""
    memory_gb: tuple[int, int | None] | None = None
    """From, to (None: any more): `40GB..80GB`, `40GB..`."""
    slice: SliceName | None = None
    """A MIG profile: `1g.10gb`."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a failed job comes back, and after how long. Preemption and node loss count for nothing."""

    count: int = 0
    first_seconds: int = 30
    longest_seconds: int = 3600

    def backoff(self, failures: int) -> int:
        """Seconds to wait after that many failures: doubled each time, bounded."""
        return int(min(self.longest_seconds, self.first_seconds * 2 ** min(failures - 1, 30)))


class When(StrEnum):
    """What must have become of a job before one that comes after it may start."""

    OK = "ok"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class After:
    """A job, or every task of an array, that must have ended first."""

    job: JobId
    when: When = When.OK


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a person asks for."""

    name: str
    gpus: GpuRequest
    command: tuple[str, ...] = ()
    """Argument by argument, without a shell. Either this or `script`."""
    script: str | None = None
    """A whole script with its #! line."""
    team: TeamName | None = None
    """None: the user's default team."""
    priority: PriorityName | None = None
    """None: the fleet's default one."""
    pool: PoolName | None = None
    """None: Fairway picks."""
    nodes: int = 1
    """More than one: a gang, which starts whole or not at all."""
    cpus: int | None = None
    """On each node."""
    memory_gb: int | None = None
    """On each node."""
    time_seconds: int | None = None
    """None: the team's limit, or none."""
    image: str | None = None
    """What pods run; Slurm has none."""
    setup: str | None = None
    """Shell lines before the command: `module load cuda`, `source venv/bin/activate`."""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    workdir: str | None = None
    array: tuple[int, ...] = ()
    """One task for each index; empty: a single job."""
    after: tuple[After, ...] = ()
    retries: Retries = Retries()
    tolerates: frozenset[Tolerates] = frozenset()
    together: bool = False
    """All nodes in one rack, or wait."""

    @property
    def devices(self) -> int:
        """GPUs or slices of the whole job."""
        return self.gpus.count * self.nodes


@dataclass(frozen=True, slots=True)
class Order:
    """A job as it goes to an engine: everything decided. The same order always makes the same engine job."""

    job: JobId
    submission: int
    """Which time Fairway sends it, from 1: a retry after a failure is a new engine job."""
    engine_name: EngineName
    spec: JobSpec
    user: UserName
    team: TeamName
    priority: PriorityName
    supply: Supply
    array: JobId | None = None
    """The first task of its array."""
    array_index: int | None = None
    attempts_before: int = 0
    """Of earlier submissions: what the environment's FAIRWAY_ATTEMPT goes on from."""
    hold: bool = False
    """To be made held."""


def engine_name(mark: str, job: JobId, submission: int, name: str) -> EngineName:
    """What an engine job is called: the person's word for it, then what tells it from every other.

    `mark` is the ledger's own: two Fairways on one cluster never take each other's jobs for theirs.
    At most 63 characters, of DNS's alphabet, whatever the person's word is.
    """
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())[:LONGEST_NAME].strip("-")
    return EngineName(f"{plain or 'job'}-fw{mark}-{job_word(job)}-{submission}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a job on its engine, by the engine's own clock."""

    started_at: datetime
    nodes: tuple[NodeName, ...]
    devices: int
    """GPUs or slices it held, of the job's supply."""
    ended_at: datetime | None = None
    ending: Ending | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    """The engine's words for the ending."""


@dataclass(frozen=True, slots=True)
class SeenJob:
    """An engine job as the engine shows it now, complete: it replaces whatever was known of it."""

    engine_id: EngineId
    name: str
    """As the engine has it; one of ours carries its `engine_name`."""
    user: UserName
    """Empty: the engine does not tell."""
    team: TeamName | None
    """None: under none of the fleet's teams."""
    state: JobState
    """Never QUEUED or REFUSED."""
    submitted_at: datetime
    supply: Supply | None = None
    """None: no GPUs, or of no pool of the fleet."""
    gpus: int = 0
    """Asked for on each node."""
    nodes: int = 1
    priority: PriorityName | None = None
    time_seconds: int | None = None
    reason: str = ""
    """The engine's own words for why it waits or how it ended."""
    attempts: tuple[Attempt, ...] = ()
    """Every one the engine still tells of, oldest first; the running one last."""
    earlier_attempts: int = 0
    """How many before those the engine no longer tells of: what is kept of them stays."""
    ended_at: datetime | None = None
    exit_code: int | None = None
    array_id: EngineId | None = None
    """Of a native array: what its tasks have in common."""
    array_index: int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job goes, and why there."""

    cluster: ClusterName
    supply: Supply
    why: str
    """One sentence for the person who submitted it."""
