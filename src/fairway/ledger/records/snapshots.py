"""Define the records of a cluster's present and of forecast starts: frozen values. Times are aware UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fairway.model.job import JobId
from fairway.model.names import NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.observation import Health


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """The devices of one pool on one node, as last observed."""

    node: NodeName
    pool: PoolName
    slice: SliceName | None
    total: int
    unhealthy: int
    health: Health


@dataclass(frozen=True, slots=True)
class SnapshotJob:
    """What of a job the next decisions of its scheduler depend on."""

    id: JobId
    name: str
    user: UserName
    team: TeamName | None
    priority: PriorityName | None
    pool: PoolName
    slice: SliceName | None
    gpus: int
    """On each node."""
    nodes: int
    time_seconds: int | None
    service: bool
    submitted_at: datetime
    reason_code: str
    together: bool = False
    """Whether all its nodes must be in one rack; not read of running jobs."""
    started_at: datetime | None = None
    on: tuple[NodeName, ...] = ()
    """Where it runs."""


@dataclass(frozen=True, slots=True)
class UseSum:
    """Devices times seconds that a team itself used of a supply from `start` to `end`."""

    start: int
    end: int
    team: TeamName
    pool: PoolName
    slice: SliceName | None
    device_seconds: int


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """The present of a cluster, read in one snapshot of the ledger."""

    at: datetime
    nodes: tuple[SnapshotNode, ...]
    running: tuple[SnapshotJob, ...]
    """In the order of their starts."""
    waiting: tuple[SnapshotJob, ...]
    arrivals: tuple[SnapshotJob, ...]
    """The newest submissions, oldest first; an even part of very many."""
    arrivals_since: datetime
    """The moment from which on they were sought."""


@dataclass(frozen=True, slots=True)
class JobForecast:
    """When a waiting job is expected to start."""

    job: JobId
    earliest: datetime | None
    """A tenth of the futures has it start by then. None: fewer do."""
    expected: datetime | None
    """Half of the futures have it start by then."""
    latest: datetime | None
    """Nine tenths of the futures have it start by then."""
    started: float
    """The part of the futures in which it starts at all."""
    futures: int
    samples: int
    """Finished jobs that its run time is predicted from."""
    source: str
    """Whose jobs these are."""
    refused: str
    """Why it can never start as it is; empty: it can."""
    computed_at: datetime
    """Of which moment the forecast is."""
