"""Define the records of jobs: frozen values. Times are aware UTC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fairway.model.access import Role
from fairway.model.job import Attempt, EngineId, EngineName, JobId, JobSpec, JobState, Order, Placement
from fairway.model.labels import Labels
from fairway.model.names import ClusterName, NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be stored, with everything decided. One with an array becomes one job per task."""

    spec: JobSpec
    user: UserName
    team: TeamName
    priority: PriorityName
    placement: Placement
    hold: bool = False
    kind: str = ""
    """The kind of workload on Kubernetes; empty: a job."""
    service: bool = False
    """Whether it runs until somebody ends it."""
    project: str = ""
    """Empty: none."""
    labels: Labels = ()
    """Of the keys that the fleet keeps for cost."""


class DesiredState(StrEnum):
    """What users requested last for a job that has not ended."""

    RUN = "run"
    HOLD = "hold"
    CANCEL = "cancel"


class EventKind(StrEnum):
    """The kind of an event in a job's timeline. What the engine did is in its attempts."""

    SUBMITTED = "submitted"
    SENT = "sent"
    """An engine job was created."""
    REFUSED = "refused"
    RETRY = "retry"
    """It failed, and will be sent again."""
    HELD = "held"
    RELEASED = "released"
    CANCELLED = "cancelled"
    CHANGE_REQUESTED = "change-requested"
    """A user requested a change of the waiting job: its pool, GPUs, nodes, time limit or priority."""
    CHANGED = "changed"
    """The change was made, on the engine too if the job was sent."""
    NOT_STARTED = "not-started"
    """A dependency did not end as required."""
    DOUBLE = "double"
    """A second engine job of the same order was found and ended."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job in a list."""

    id: JobId
    cluster: ClusterName
    name: str
    user: UserName
    team: TeamName | None
    priority: PriorityName | None
    pool: PoolName | None
    slice: SliceName | None
    gpus: int
    """On each node."""
    nodes: int
    """Of a service, the replicas that it wants."""
    devices: int
    state: JobState
    desired_state: DesiredState
    code: str
    """Why it is not sent, was refused or did not start, as a code; empty: nothing to report."""
    reason: str
    reason_code: str
    """What the engine's `reason` for its waiting means, as a code of `explain.reasons`; empty: none."""
    native: bool
    """Not submitted through Fairway."""
    engine_id: EngineId | None
    array: JobId | None
    """The first task of its array."""
    array_index: int | None
    attempts: int
    submitted_at: datetime
    started_at: datetime | None
    """The last attempt's start; of a job with replicas, the first one's."""
    ended_at: datetime | None
    exit_code: int | None
    time_seconds: int | None
    kind: str = ""
    """The kind of workload on Kubernetes; empty: a job."""
    service: bool = False
    """Whether it runs until somebody ends it."""
    replicas: int | None = None
    """Replicas that run now; None: it has one attempt at a time."""
    project: str | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Of the keys that the fleet keeps for cost."""


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    """One attempt with its number, from 1, over all submissions of the job."""

    number: int
    engine_id: EngineId
    attempt: Attempt


HOLD_ROLE: Final = "as "
"""Before the role of who held a job, in the text of the event."""


def parse_hold_role(text: str) -> Role | None:
    """Return the role in the text of a hold; None: whoever may change the job may release it."""
    return Role(text.removeprefix(HOLD_ROLE)) if text.startswith(HOLD_ROLE) else None


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event in a job's timeline."""

    at: datetime
    kind: EventKind
    by: str
    text: str


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job with everything known about it."""

    row: JobRow
    spec: JobSpec | None
    """None: native."""
    placement_reason: str
    engine_name: EngineName | None
    submission: int
    attempts: tuple[StoredAttempt, ...]
    """All of them; of replicas, at most 200 that run and the newest 200."""
    events: tuple[JobEvent, ...]
    """The newest 200, oldest first."""

    @property
    def hold_role(self) -> Role | None:
        """Return the role that a release needs at least, if a lead or an operator holds the job."""
        if self.row.desired_state is not DesiredState.HOLD:
            return None
        held = [event.text for event in self.events if event.kind is EventKind.HELD]
        return parse_hold_role(held[-1]) if held else None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter on jobs. A field that is None is no condition."""

    cluster: str | None = None
    team: str | None = None
    user: str | None = None
    states: tuple[JobState, ...] = ()
    """Empty: any."""
    pool: str | None = None
    name: str | None = None
    array: JobId | None = None
    native: bool | None = None
    submitted_after: datetime | None = None
    submitted_before: datetime | None = None
    teams: tuple[str, ...] | None = None
    """Any of these."""
    priority: str | None = None
    node: str | None = None
    """Jobs with an attempt that runs there now."""
    name_begins: tuple[str, ...] = ()
    """With any of these; empty: any name."""
    name_contains: str | None = None
    """In any case; sought among the newest jobs only."""
    user_contains: str | None = None
    once_an_array: bool = False
    """Of an array, only the first task that matches, which represents the array."""
    kind: str | None = None
    """A kind of workload on Kubernetes, in any case; empty: jobs alone."""
    service: bool | None = None
    project: str | None = None
    """Empty: jobs without one."""
    labels: Labels = ()
    """With all of these, of the keys that the fleet keeps for cost."""


class JobSortKey(StrEnum):
    """A column that a list of jobs can be sorted by."""

    SUBMITTED = "submitted"
    NAME = "name"
    STATE = "state"
    GPUS = "gpus"
    POOL = "pool"
    TEAM = "team"
    USER = "user"
    PRIORITY = "priority"
    TIME = "time"
    """How long it has waited, has been running, or ran."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class JobSort:
    """The order of a list of jobs."""

    key: JobSortKey = JobSortKey.SUBMITTED
    descending: bool = True


@dataclass(frozen=True, slots=True)
class JobCount:
    """The number of jobs of a team in a state on a supply, and the devices they hold or request."""

    cluster: ClusterName
    team: TeamName | None
    pool: PoolName | None
    slice: SliceName | None
    state: JobState
    jobs: int
    devices: int


def by_team(counts: Iterable[JobCount], *states: JobState) -> dict[Supply, dict[TeamName | None, int]]:
    """Return the devices that jobs in these states hold or request, by supply and team."""
    found: dict[Supply, dict[TeamName | None, int]] = {}
    for count in counts:
        if count.pool is not None and count.state in states:
            teams = found.setdefault(Supply(count.pool, count.slice), {})
            teams[count.team] = teams.get(count.team, 0) + count.devices
    return found


@dataclass(frozen=True, slots=True)
class PendingSubmit:
    """A job that is due to be sent."""

    id: JobId
    submission: int
    spec: JobSpec
    user: UserName
    team: TeamName
    priority: PriorityName
    pool: PoolName
    slice: SliceName | None
    engine_name: EngineName
    array: JobId | None
    array_index: int | None
    attempts: int
    """Attempts so far, over earlier submissions."""
    desired_state: DesiredState
    sending_until: datetime | None
    """Set: a server began to send it and did not record the outcome. Until then it may still arrive."""
    avoid: tuple[NodeName, ...] = ()
    """Nodes on which broken hardware ended it."""

    def order(self) -> Order:
        """Return the order that goes to the engine."""
        return Order(
            self.id,
            self.submission,
            self.engine_name,
            self.spec,
            self.user,
            self.team,
            self.priority,
            Supply(self.pool, self.slice),
            self.array,
            self.array_index,
            self.attempts,
            hold=self.desired_state is DesiredState.HOLD,
            avoid=self.avoid,
        )


@dataclass(frozen=True, slots=True)
class PendingAction:
    """An engine job whose state is not what users requested."""

    id: JobId
    engine_id: EngineId
    desired_state: DesiredState
    state: JobState


@dataclass(frozen=True, slots=True)
class ChangeableJob:
    """A job as it is, and as it will be once a change that was requested is made."""

    current: PendingSubmit
    wanted: PendingSubmit
    """As `current` if no change is pending."""
    change: int | None
    """The number of the pending change; None if there is none."""
    cluster: ClusterName
    wanted_cluster: ClusterName
    state: JobState
    engine_id: EngineId | None


@dataclass(frozen=True, slots=True)
class MirrorResult:
    """The result of storing a batch of observed jobs."""

    ended: tuple[JobId, ...]
    """Jobs that ended in this batch, native ones too."""
    doubles: tuple[EngineId, ...]
    """Second engine jobs of one order, which must be ended."""
    deferred: tuple[EngineId, ...] = ()
    """Not stored yet: whether broken hardware ended them is not known yet. They are to be offered again."""
