"""Jobs of the virtual engine: what is asked, what became of it, and the record the simulator works on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from fairway.model.names import NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply

if TYPE_CHECKING:
    from fairway.engines.virtual.desk import Desk
    from fairway.engines.virtual.lines import Line
    from fairway.engines.virtual.nodes import Stock
    from fairway.engines.virtual.quota import Branch

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


class JobState(StrEnum):
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


class Ending(StrEnum):
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


ENDED: Final = frozenset((JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a job."""

    number: int
    started: float
    nodes: tuple[NodeName, ...]
    ended: float | None = None
    ending: Ending | None = None
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
    state: JobState
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
class Happening:
    """One change of one job, in the order in which they came."""

    at: float
    job: int
    state: JobState
    attempts: int
    nodes: tuple[NodeName, ...]
    devices: int
    ending: Ending | None = None
    by: int | None = None


class Job:
    """The simulator's own record of a job; everything looked up once, at submission."""

    __slots__ = (
        "asked",
        "attempt",
        "barred_at",
        "branch",
        "desk",
        "devices",
        "ended",
        "ends",
        "history",
        "id",
        "kept",
        "limit",
        "line",
        "low",
        "nodes",
        "per_node",
        "places",
        "priority",
        "rank",
        "request",
        "started",
        "state",
        "stock",
        "submitted",
        "together",
        "turn",
    )

    def __init__(
        self,
        number: int,
        request: JobRequest,
        priority: PriorityName,
        rank: int,
        low: bool,
        branch: Branch,
        desk: Desk,
        submitted: float,
    ) -> None:
        self.id = number
        self.request = request
        self.priority = priority
        self.rank = rank
        self.low = low
        self.branch = branch
        self.desk = desk
        self.stock: Stock = desk.stock
        self.nodes = request.nodes
        self.per_node = request.gpus
        self.devices = request.nodes * request.gpus
        self.together = request.together and request.nodes > 1
        self.asked = request.seconds
        self.limit = FOREVER
        self.submitted = submitted
        self.state = JobState.EXPECTED
        self.attempt = 0
        self.started = 0.0
        self.ends = 0.0
        """When its time limit ends it at the latest: all that a scheduler may know."""
        self.ended = 0.0
        self.places: tuple[int, ...] = ()
        """Where it runs; empty: it does not."""
        self.line: Line | None = None
        """Where it waits; None: it does not."""
        self.kept = False
        """Ran within a guarantee that a changed policy took away: goes by itself only."""
        self.barred_at = -1.0
        """When its place was taken: it does not start again in that very moment."""
        self.turn = 0
        """Which start on its supply was its last."""
        self.history: list[Attempt] = []

    def __lt__(self, other: Job) -> bool:
        return self.id < other.id
