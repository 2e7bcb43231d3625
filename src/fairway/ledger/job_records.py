"""What the ledger takes and gives back of jobs: frozen values. Times are aware UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from fairway.model.job import Attempt, EngineId, EngineName, JobId, JobSpec, JobState, Order, Placement
from fairway.model.names import ClusterName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be kept: everything decided. One with an array becomes a job a task, with one id each."""

    spec: JobSpec
    user: UserName
    team: TeamName
    priority: PriorityName
    placement: Placement
    hold: bool = False


class Wish(StrEnum):
    """What people asked for last, of a job that is not over."""

    RUN = "run"
    HOLD = "hold"
    CANCEL = "cancel"


class EventKind(StrEnum):
    """What a line of a job's timeline is about. What the engine did is told by its attempts."""

    SUBMITTED = "submitted"
    SENT = "sent"
    """An engine job was made."""
    REFUSED = "refused"
    RETRY = "retry"
    """It failed, and comes back."""
    HELD = "held"
    RELEASED = "released"
    CANCELLED = "cancelled"
    NOT_STARTED = "not-started"
    """What it should come after did not end as it should."""
    DOUBLE = "double"
    """A second engine job of the same order was found and ended."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job, in a list."""

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
    devices: int
    state: JobState
    wish: Wish
    code: str
    """Why it is not sent, was refused or not started, in a word; empty: nothing to say."""
    reason: str
    native: bool
    """Not submitted through Fairway."""
    engine_id: EngineId | None
    array: JobId | None
    """The first task of its array."""
    array_index: int | None
    attempts: int
    submitted_at: datetime
    started_at: datetime | None
    """The last attempt's start."""
    ended_at: datetime | None
    exit_code: int | None
    time_seconds: int | None


@dataclass(frozen=True, slots=True)
class KeptAttempt:
    """One attempt with its number, from 1, over all submissions of the job."""

    number: int
    engine_id: EngineId
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One line of a job's timeline."""

    at: datetime
    kind: EventKind
    by: str
    text: str


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job with all that is known of it."""

    row: JobRow
    spec: JobSpec | None
    """None: native."""
    why_there: str
    engine_name: EngineName | None
    submission: int
    attempts: tuple[KeptAttempt, ...]
    events: tuple[JobEvent, ...]
    """Newest 200, oldest first."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs. What is None is not asked about."""

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
    name_begins: tuple[str, ...] = ()
    """With any of these; empty: any name."""
    user_begins: str | None = None
    once_an_array: bool = False
    """Of an array only the first task that is meant, which stands for all of it."""


@dataclass(frozen=True, slots=True)
class JobCount:
    """How many jobs of a team stand on a supply in a state, and the devices they hold or ask for."""

    cluster: ClusterName
    team: TeamName | None
    pool: PoolName | None
    slice: SliceName | None
    state: JobState
    jobs: int
    devices: int


@dataclass(frozen=True, slots=True)
class ToSend:
    """A job that is to be sent now."""

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
    """So far, over earlier submissions."""
    wish: Wish
    sending_until: datetime | None
    """Set: somebody began to send it and did not say what became of it. Until then it may still arrive."""

    def order(self) -> Order:
        """What goes to the engine."""
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
            hold=self.wish is Wish.HOLD,
        )


@dataclass(frozen=True, slots=True)
class ToDo:
    """An engine job whose state is not what people asked for."""

    id: JobId
    engine_id: EngineId
    wish: Wish
    state: JobState


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of a batch of seen jobs."""

    ended: tuple[JobId, ...]
    """Of ours, those that are over now and were not before."""
    doubles: tuple[EngineId, ...]
    """Second engine jobs of one order: to be ended."""
