"""Jobs of a simulated cluster: as they are requested, recorded, shown and reported."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fairway.engines.virtual.simulator.queues import QueueKey
from fairway.engines.virtual.simulator.quota import QuotaNode
from fairway.model.names import NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply

FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job as a person asks for it."""

    user: UserName
    pool: PoolName
    gpus: int = 1
    """On each node; of a pool of slices: slices of `slice`."""
    nodes: int = 1
    slice: SliceName | None = None
    team: TeamName | None = None
    """None: the user's default team."""
    seconds: float = FOREVER
    """How long it runs if left alone."""
    limit_seconds: float | None = None
    """The time limit asked for; None: the team's, or none."""
    priority: PriorityName | None = None
    """None: the default one."""
    tolerates_loss: bool = False
    """May run on spot capacity."""
    together: bool = False
    """All nodes in one rack, or wait."""
    name: str = ""
    exit_code: int = 0
    """How it ends if left alone; other than 0: it fails."""

    @property
    def supply(self) -> Supply:
        return Supply(self.pool, self.slice)


class SimState(StrEnum):
    """Where a job is."""

    EXPECTED = "expected"
    """Will arrive at a moment that has not come."""
    WAITING = "waiting"
    HELD = "held"
    """Somebody holds it back; it waits until it is released."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


class SimEnding(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    RECLAIMED = "reclaimed"
    """What was lent went back to a team entitled to it."""
    OUTRANKED = "outranked"
    """A job of higher priority of the same team, or any that is not preemptible always, took its place."""
    NODE_LOST = "node-lost"
    EVICTED = "evicted"
    """A changed policy was applied with the word to evict."""


ENDED: Final = frozenset((SimState.DONE, SimState.FAILED, SimState.CANCELLED, SimState.TIMEOUT))


@dataclass(frozen=True, slots=True)
class SimAttempt:
    """One run of a job."""

    number: int
    started: float
    nodes: tuple[NodeName, ...]
    ended: float | None = None
    ending: SimEnding | None = None
    by: int | None = None
    """The job that took its place."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a job does not run now."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class JobView:
    """One job at one moment."""

    id: int
    request: JobRequest
    team: TeamName
    priority: PriorityName
    state: SimState
    attempts: int
    """How often it started."""
    nodes: tuple[NodeName, ...]
    """Where it holds devices now, one entry a node."""
    devices: int
    """What it holds now."""
    lent: bool
    """Runs on what its team has beyond its guarantee, or is preemptible always: may be taken back."""
    wait: Wait | None
    submitted: float
    started: float | None
    """The running or last attempt."""
    ended: float | None


@dataclass(frozen=True, slots=True)
class JobChange:
    """One change of one job, in the order in which they came."""

    at: float
    job: int
    state: SimState
    attempts: int
    nodes: tuple[NodeName, ...]
    devices: int
    ending: SimEnding | None = None
    by: int | None = None


class SimJob:
    """The simulator's own record of a job; everything looked up once, at submission."""

    __slots__ = (
        "asked",
        "attempt",
        "barred_at",
        "devices",
        "ended",
        "ends",
        "history",
        "id",
        "kept",
        "limit",
        "low",
        "nodes",
        "per_node",
        "places",
        "priority",
        "queue_key",
        "queued",
        "quota",
        "rank",
        "request",
        "started",
        "state",
        "submitted",
        "supply_number",
        "together",
        "turn",
        "user",
    )

    def __init__(
        self,
        number: int,
        request: JobRequest,
        priority: PriorityName,
        rank: int,
        low: bool,
        quota: TeamQuota,
        supply_number: int,
        submitted: float,
    ) -> None:
        self.id = number
        self.request = request
        self.user = request.user
        self.priority = priority
        self.quota = quota
        self.supply_number = supply_number
        """Which of the cluster's supplies it needs."""
        nodes, per_node = request.nodes, request.gpus
        self.nodes = nodes
        self.per_node = per_node
        self.devices = nodes * per_node
        self.together = request.together and nodes > 1
        self.rank = rank
        self.low = low
        self.queue_key: QueueKey = (rank, low, nodes, per_node, self.together)
        self.asked = request.seconds
        self.limit = FOREVER
        self.submitted = submitted
        self.state = SimState.EXPECTED
        self.attempt = 0
        self.started = 0.0
        self.ends = 0.0
        """When its time limit ends it at the latest: all that a scheduler may know."""
        self.ended = 0.0
        self.places: tuple[int, ...] = ()
        """Where it runs; empty: it does not."""
        self.queued = False
        """Whether it waits in a queue; not while its user is at the team's limit for one user."""
        self.kept = False
        """Ran within a guarantee that a changed policy took away: goes by itself only."""
        self.barred_at = -1.0
        """When its place was taken: it does not start again in that very moment."""
        self.turn = 0
        """Which start on its supply was its last."""
        self.history: list[SimAttempt] = []

    def set_rank(self, rank: int, low: bool) -> None:
        """Change what its priority is worth; only while it is in no queue of the present quotas."""
        self.rank, self.low = rank, low
        self.queue_key = (rank, low, self.nodes, self.per_node, self.together)

    def __lt__(self, other: SimJob) -> bool:
        return self.id < other.id


TeamQuota = QuotaNode[SimJob]
"""A node of the quota tree, with the jobs that count against it."""
