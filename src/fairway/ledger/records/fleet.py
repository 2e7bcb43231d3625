"""Define the records of the fleet: frozen values. Times are aware UTC, by the database's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fairway.model.access import Role
from fairway.model.condition import Condition
from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName, UserName
from fairway.model.observation import Devices, Health


@dataclass(frozen=True, slots=True)
class Revision:
    """One version of the fleet file. The newest is in force."""

    id: int
    created_at: datetime
    created_by: str
    digest: str
    text: str


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Whether a cluster is reachable, since when, and how old its last known state is."""

    cluster: ClusterName
    engine: EngineKind | None
    engine_version: str
    """As last observed; empty before the first observation."""
    reachable: bool
    code: str
    """Why it is unreachable (`NotObserved` before the first observation); empty when reachable."""
    message: str
    hint: str
    since: datetime
    """When `reachable` became what it is."""
    attempted_at: datetime | None
    """The last observation, successful or not; None before the first."""
    observed_at: datetime | None
    """The last successful observation: the age of the nodes and pools shown; None if there was none."""


@dataclass(frozen=True, slots=True)
class StoredCondition:
    """A condition of a cluster, and when it began."""

    cluster: ClusterName
    condition: Condition
    since: datetime


@dataclass(frozen=True, slots=True)
class LeftCluster:
    """A cluster that is no longer in the fleet: its open jobs are not tracked."""

    cluster: ClusterName
    revision: int
    """The first revision without it."""
    left_at: datetime
    seen_at: datetime
    """When it was last observed."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """What a pool had at its cluster's `observed_at`. Always `total == in_use + free + unhealthy`."""

    cluster: ClusterName
    pool: PoolName | None
    """None: devices that no pool of the fleet claims."""
    slice: SliceName | None
    """None: whole GPUs."""
    total: int
    in_use: int
    free: int
    unhealthy: int
    nodes: int
    nodes_drained: int
    nodes_down: int


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node as last observed."""

    cluster: ClusterName
    name: NodeName
    health: Health
    reason: str
    since: datetime
    """When `health` became what it is."""
    devices: tuple[Devices, ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write for one loop on one cluster, until the database's clock passes `expires_at`."""

    loop: str
    cluster: ClusterName
    holder: str
    token: int
    """Fencing token: grows by one with every new holder, never shrinks."""
    seconds: float
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """A sign-in of the command line that waits for a person."""

    user_code: str
    host: str
    """The machine that it says it is on: shown to the person, and not to be trusted."""
    port: int | None
    """Where it listens on 127.0.0.1; None if the person enters the code."""


@dataclass(frozen=True, slots=True)
class AllowedLogin:
    """A sign-in of the command line that a person confirmed."""

    user: UserName
    role: Role
    issuer: str
    host: str
    until: datetime
    """When its token expires."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session of the web pages without its cookie and hash."""

    id: str
    """The beginning of its hash: enough to tell sessions apart, and worth nothing."""
    user: UserName
    role: Role
    token: str | None
    """The name of the token it was made with: it ends with it. None if made by single sign-on."""
    issuer: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Token:
    """An API token without its secret and hash."""

    id: int
    name: str
    role: Role
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    """To the minute."""
    user: UserName
    """The user the token acts as: it has that user's rights on jobs."""
