"""The jobs of a simulated cluster: requests, records, views and changes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fairway.model.labels import Labels
from fairway.model.names import NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply
from fairway.simulate.cluster.queues import QueuedJob
from fairway.simulate.cluster.quota import QuotaNode

FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as a user requests it."""

    user: UserName
    pool: PoolName
    gpus: int = 1
    """GPUs on each node; in a pool of slices, slices of type `slice`."""
    nodes: int = 1
    slice: SliceName | None = None
    team: TeamName | None = None
    """None means the user's default team."""
    seconds: float = FOREVER
    """How long it runs if nothing interferes."""
    limit_seconds: float | None = None
    """The requested time limit. None means the limit of the team, if any."""
    priority: PriorityName | None = None
    """None means the default priority."""
    tolerates_loss: bool = False
    """Whether it may run on spot capacity."""
    together: bool = False
    """Whether all its nodes must be in one rack."""
    name: str = ""
    exit_code: int = 0
    """The exit code if nothing interferes; other than 0, the job fails."""
    project: str = ""
    labels: Labels = ()

    @property
    def supply(self) -> Supply:
        return Supply(self.pool, self.slice)


class SimState(StrEnum):
    """The state of a job."""

    EXPECTED = "expected"
    """To be submitted at a time that has not come."""
    WAITING = "waiting"
    HELD = "held"
    """Does not start until it is released."""
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
    """Its devices were lent, and a team reclaimed its guarantee."""
    OUTRANKED = "outranked"
    """Preempted by a job of a higher rank of its team, or, if preemptible, by any job that is not."""
    NODE_LOST = "node-lost"
    EVICTED = "evicted"
    """A changed policy was applied with `evict`."""


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
    """The job that preempted it."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The reason why a job waits."""

    code: str
    message: str
    """A sentence without full stop; `{job}` stands for the job with the number `job`."""
    job: int | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """The state of one job at one time."""

    id: int
    request: JobRequest
    team: TeamName
    priority: PriorityName
    state: SimState
    attempts: int
    """The number of attempts so far."""
    nodes: tuple[NodeName, ...]
    """Nodes on which it holds devices now."""
    devices: int
    """Devices it holds now."""
    lent: bool
    """Whether it runs beyond its team's guarantee or is preemptible, so that its devices may be reclaimed."""
    wait: Wait | None
    submitted: float
    started: float | None
    """Start of the running or last attempt."""
    ended: float | None


@dataclass(frozen=True, slots=True)
class JobChange:
    """An entry of the journal: one change of one job."""

    at: float
    job: int
    state: SimState
    attempts: int
    nodes: tuple[NodeName, ...]
    devices: int
    ending: SimEnding | None = None
    by: int | None = None


class SimJob(QueuedJob):
    """The simulator's record of a job, with everything that is looked up once, at submission."""

    __slots__ = (
        "attempt",
        "duration",
        "ended",
        "history",
        "latest_end",
        "nodes",
        "per_node",
        "places",
        "priority",
        "protected",
        "quota",
        "request",
        "requeued_at",
        "start_number",
        "started",
        "state",
        "submitted",
        "supply_number",
        "time_limit",
        "together",
    )

    def __init__(
        self,
        number: int,
        request: JobRequest,
        priority: PriorityName,
        rank: int,
        preemptible: bool,
        quota: TeamQuota,
        supply_number: int,
        submitted: float,
    ) -> None:
        nodes, per_node = request.nodes, request.gpus
        together = request.together and nodes > 1
        super().__init__(number, request.user, rank, preemptible, nodes, per_node, together)
        self.request = request
        self.priority = priority
        self.quota = quota
        self.supply_number = supply_number
        """The number of the supply it requests in the cluster."""
        self.nodes = nodes
        self.per_node = per_node
        self.together = together
        self.duration = request.seconds
        self.time_limit = FOREVER
        self.submitted = submitted
        self.state = SimState.EXPECTED
        self.attempt = 0
        self.started = 0.0
        self.latest_end = 0.0
        """When its time limit ends it: all that a scheduler may know of its end."""
        self.ended = 0.0
        self.places: tuple[int, ...] = ()
        """The places on which it runs; empty if it does not run."""
        self.protected = False
        """Ran within a guarantee that a changed policy removed: it must not be reclaimed."""
        self.requeued_at = -1.0
        """When it was last preempted or evicted: it is not preempted twice at the same time."""
        self.start_number = 0
        """The number of its last start among all starts of its supply."""
        self.history: list[SimAttempt] = []

    def set_rank(self, rank: int, preemptible: bool) -> None:
        """Change its rank. It must not be in a queue of the current quotas."""
        self.rank, self.preemptible = rank, preemptible
        self.queue_key = (rank, preemptible, self.nodes, self.per_node, self.together)


TeamQuota = QuotaNode[SimJob]
"""A node of the quota tree with its jobs."""
