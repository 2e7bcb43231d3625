"""Define jobs: the spec that a user submits, its state, its placement, and each attempt on an engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NewType

from fairway.model.backoff import Backoff
from fairway.model.labels import Labels
from fairway.model.names import ClusterName, NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply

JobId = NewType("JobId", int)
"""A job of the ledger, ours or native. People see it as `format_job_id` writes it: `8f3k`."""
EngineId = NewType("EngineId", str)
"""The engine's id of a job: `1234`, `1234_7` on Slurm, `namespace/name` on Kubernetes."""
EngineName = NewType("EngineName", str)
"""The name of an engine job, derived from job and submission so that it can be found again."""

MAX_TASKS: Final = 10_000
"""Maximum number of tasks in one array."""
MAX_NAME_LENGTH: Final = 40

_DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: no i, l, o, u, to avoid misreading."""


def format_job_id(number: int) -> str:
    """Format a job id for users: at least four base-32 digits."""
    digits = ""
    while number or len(digits) < 4:
        number, digit = divmod(number, 32)
        digits = _DIGITS[digit] + digits
    return digits


def parse_job_id(word: str) -> JobId | None:
    """Parse a job id as formatted by `format_job_id`. Returns None if it is not one."""
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
    """The state of a job."""

    QUEUED = "queued"
    """In the ledger, not yet sent to an engine: new, or waiting for another job or for its back-off."""
    WAITING = "waiting"
    """Sent to the engine, which has not started it."""
    HELD = "held"
    """Held by a user or an operator."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"
    REFUSED = "refused"
    """Rejected by the engine; `reason` says why."""
    LOST = "lost"
    """The engine no longer knows it, and how it ended is unknown."""


PENDING_JOBS: Final = (JobState.QUEUED, JobState.WAITING)
NOT_STARTED_JOBS: Final = (*PENDING_JOBS, JobState.HELD)
OPEN_JOBS: Final = (*NOT_STARTED_JOBS, JobState.RUNNING)
ENDED_JOBS: Final = tuple(state for state in JobState if state not in OPEN_JOBS)


class Ending(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"
    PREEMPTED = "preempted"
    """Preempted by the engine in favour of another job."""
    REQUEUED = "requeued"
    """Sent back to the queue by a user or by the engine."""
    NODE_LOST = "node-lost"
    LOST = "lost"
    """How it ended is unknown."""


class Tolerates(StrEnum):
    """An interruption that a job tolerates."""

    PREEMPTION = "preemption"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs or slices per node that a job requests. At most one of the last three fields is set."""

    count: int = 1
    model: str | None = None
    """A GPU type, or a prefix of several: `A100-80GB`, `H100`."""
    memory_gb: tuple[int, int | None] | None = None
    """Minimum and maximum memory (None: no maximum): `40GB..80GB`, `40GB..`."""
    slice: SliceName | None = None
    """A MIG profile, `1g.10gb`, or a replica of a shared GPU, `shared-4`."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a failed job is retried, and with what delay. Preemption and node loss do not count."""

    count: int = 0
    first_seconds: int = 30
    longest_seconds: int = 3600

    def backoff(self, failures: int) -> int:
        """Return the seconds to wait after `failures` failures: doubled each time, up to a maximum."""
        return int(Backoff(self.first_seconds, self.longest_seconds).seconds(failures))


class When(StrEnum):
    """How a job must have ended before a job that depends on it may start."""

    OK = "ok"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class After:
    """A dependency on a job, or on every task of an array, that must have ended first."""

    job: JobId
    when: When = When.OK


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The spec of a job, as a user submits it."""

    name: str
    gpus: GpuRequest
    command: tuple[str, ...] = ()
    """Arguments, run without a shell. Either this or `script` is set."""
    script: str | None = None
    """A whole script with its #! line."""
    team: TeamName | None = None
    """None for the user's default team."""
    priority: PriorityName | None = None
    """None for the fleet's default priority."""
    pool: PoolName | None = None
    """None if Fairway chooses the pool."""
    nodes: int = 1
    """More than one is a gang: all nodes start together or not at all."""
    cpus: int | None = None
    """Memory per node."""
    memory_gb: int | None = None
    """Memory per node."""
    time_seconds: int | None = None
    """The time limit; None for the team's limit, if it has one."""
    image: str | None = None
    """The container image on Kubernetes; not used on Slurm."""
    setup: str | None = None
    """Shell lines to run before the command: `module load cuda`, `source venv/bin/activate`."""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    workdir: str | None = None
    array: tuple[int, ...] = ()
    """One task per index; empty for a single job."""
    after: tuple[After, ...] = ()
    retries: Retries = Retries()
    tolerates: frozenset[Tolerates] = frozenset()
    together: bool = False
    """Whether all nodes must be in one rack."""
    manifest: str | None = None
    """A whole Kubernetes object as JSON, instead of `command` and `script`: `gpus` are of its largest pod."""
    all_devices: int | None = None
    """GPUs or slices on all nodes, if a manifest has pods of different sizes; None: `gpus` on each node."""
    project: str | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def devices(self) -> int:
        """Return the total number of GPUs or slices on all nodes."""
        return self.gpus.count * self.nodes if self.all_devices is None else self.all_devices


@dataclass(frozen=True, slots=True)
class Order:
    """A job as sent to an engine, fully resolved. The same order always creates the same engine job."""

    job: JobId
    submission: int
    """The submission number, from 1: a retry after a failure is a new engine job."""
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
    """The number of attempts of earlier submissions, from which FAIRWAY_ATTEMPT continues."""
    hold: bool = False
    """Whether to create it held."""
    avoid: tuple[NodeName, ...] = ()
    """Nodes that it must not run on: their hardware failed under it."""


def engine_name(mark: str, job: JobId, submission: int, name: str) -> EngineName:
    """Build the name of an engine job: the user's name for it, then a unique suffix.

    `mark` identifies the ledger, so that two Fairway instances on one cluster never confuse their jobs.
    The result is a valid DNS label of at most 63 characters for any `name`.
    """
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())[:MAX_NAME_LENGTH].strip(
        "-"
    )
    return EngineName(f"{plain or 'job'}-fw{mark}-{format_job_id(job)}-{submission}")


def parse_engine_name(name: str, mark: str = "[0-9a-z]+") -> tuple[JobId, int] | None:
    """Parse job and submission from an engine job's name. Returns None if it is not one of this ledger's.

    Without a mark, a name of any ledger counts.
    """
    found = re.search(f"-fw{mark}-([0-9a-z]{{4,12}})-([0-9]{{1,9}})$", name)
    number = None if found is None else parse_job_id(found[1])
    return None if found is None or number is None else (number, int(found[2]))


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The GPUs of an attempt on one node, as exporters of GPU metrics name them."""

    node: NodeName
    holders: tuple[str, ...]
    """What an exporter may call the attempt there: a Slurm job id, or `namespace/pod`."""
    indices: tuple[int, ...] = ()
    """Whole GPUs, as the driver counts them; empty if the engine does not tell."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a job on its engine, with times by the engine's clock."""

    started_at: datetime
    nodes: tuple[NodeName, ...]
    devices: int
    """GPUs or slices of the job's supply that it held."""
    ended_at: datetime | None = None
    ending: Ending | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    """The engine's text for how it ended; `{job}` stands for the job `by`."""
    gpus: tuple[NodeGpus, ...] = field(default=(), compare=False, hash=True)
    """Where exporters show it, as far as the engine tells; kept apart from the attempt, so not compared."""
    replica: str = ""
    """The pod, where each pod of a job holds its GPUs on its own: several such attempts run at once."""
    by: EngineId | None = field(default=None, compare=False)
    """The job that preempted it; not stored: the mirror writes its name and id into `reason`."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended of which the engine reports nothing else."""

    ended_at: datetime
    ending: Ending
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A complete snapshot of an engine job as the engine reports it; it replaces what was stored before."""

    engine_id: EngineId
    name: str
    """The name on the engine; jobs submitted through Fairway have their `engine_name`."""
    user: UserName
    """Empty if the engine does not report it."""
    team: TeamName | None
    """None if it belongs to no team of the fleet."""
    state: JobState
    """Never QUEUED or REFUSED."""
    submitted_at: datetime
    supply: Supply | None = None
    """None if it has no GPUs, or none of a pool of the fleet."""
    gpus: int = 0
    """GPUs requested per node."""
    nodes: int = 1
    priority: PriorityName | None = None
    time_seconds: int | None = None
    reason: str = ""
    """The engine's text for why it waits or how it ended; `{job}` stands for the job `reason_job`."""
    reason_job: EngineId | None = None
    """Another job that it waits for; not stored: the mirror writes its name and id into `reason`."""
    reason_code: str = ""
    """Why it waits, as a code of `explain.reasons`; empty: it does not wait, or no code fits `reason`."""
    attempts: tuple[Attempt, ...] = ()
    """The attempts that the engine still reports, oldest first; the running one last."""
    earlier_attempts: int = 0
    """The number of earlier attempts that the engine no longer reports; their stored rows stay."""
    earlier_end: AttemptEnd | None = None
    """How the last of them ended; None: the engine does not report it."""
    ended_at: datetime | None = None
    exit_code: int | None = None
    kind: str = ""
    """The kind of workload on Kubernetes, such as `Deployment`; empty: a job."""
    service: bool = False
    """Whether it runs until somebody ends it. Its attempts are replicas; `nodes` is how many it wants."""
    devices: int | None = None
    """GPUs or slices requested on all nodes; None: `gpus` on each of `nodes`."""
    array_id: EngineId | None = None
    """The id that the tasks of a native array have in common."""
    array_index: int | None = None
    project: str | None = None
    """Empty: none; None: the engine does not tell any more."""
    labels: Labels | None = None
    """Of the keys that the fleet keeps for cost; None: the engine does not tell any more."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The cluster and supply chosen for a job, and the reason."""

    cluster: ClusterName
    supply: Supply
    why: str
    """One sentence for the user who submitted it."""
