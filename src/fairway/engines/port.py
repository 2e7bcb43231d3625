"""The engine port: small protocols for what Fairway needs. An engine implements those it can fulfil."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from fairway.explain.findings import WaitFacts
from fairway.model.condition import Condition, ConditionType
from fairway.model.errors import Refused, TemporaryError
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId, EngineName, Order, SeenJob
from fairway.model.job_change import WaitingChange
from fairway.model.names import NodeName
from fairway.model.observation import Observation
from fairway.policy.leave import Leaving
from fairway.policy.objects import (
    Activity,
    Advice,
    Change,
    FoundPolicy,
    Intervention,
    ObjectKey,
    Record,
    SavedObject,
    Translation,
)
from fairway.policy.recent_use import TakenAway


class Unreachable(TemporaryError):
    """The engine did not answer: down, restarting, network failure or timeout."""


@runtime_checkable
class Observes(Protocol):
    """An engine that can report the nodes and GPUs of a cluster, and their health."""

    async def observe(self) -> Observation:
        """Observe the cluster once. Bounded in time; raises Unreachable or Refused, nothing else."""
        ...

    async def close(self) -> None:
        """Close connections and stop background work. Safe to call twice."""
        ...


class Governs(Protocol):
    """An engine that can enforce a policy.

    Calls are bounded in time and raise only Unreachable or Refused.
    """

    async def find_policy(self) -> FoundPolicy:
        """Return all objects of the kinds Fairway writes, ours or not, and the settings it depends on."""
        ...

    def translate(self, fleet: Fleet, found: FoundPolicy) -> Translation:
        """Translate `fleet` to this cluster's objects.

        Pure: `found` has the engine's version and settings.
        """
        ...

    async def activity(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
        """Count running and waiting jobs under each of these objects; a key without jobs may be left out."""
        ...

    def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        """Make changes of one stage, in any order; yield each once it is made, stop at the first refusal.

        A change that is already in effect is no error: after a crash the same change may come again.
        """
        ...

    async def close(self) -> None:
        """Close connections and stop background work. Safe to call twice."""
        ...


@runtime_checkable
class Inspects(Protocol):
    """An engine that can compare files an administrator installs with what a fleet needs."""

    async def inspect(self, fleet: Fleet, found: FoundPolicy) -> tuple[Advice, ...]:
        """Return advice on files that are not installed as `fleet` needs them. Raises Unreachable only."""
        ...


@runtime_checkable
class Withdraws(Protocol):
    """An engine that knows what a plan takes from people beyond the fleet's own history, and who used it."""

    async def taken_away(
        self, fleet: Fleet, found: FoundPolicy, changes: Sequence[Change]
    ) -> tuple[TakenAway, ...]:
        """Return what is taken away. Bounded in time; who used it may be unknown. Raises nothing."""
        ...


@runtime_checkable
class Confirms(Protocol):
    """An engine that stores a policy in one place and enforces it in another."""

    async def confirm(self, changes: Sequence[Change]) -> None:
        """Return if these written changes are in force. Raises Unreachable while they are not."""
        ...


@runtime_checkable
class Diagnoses(Protocol):
    """An engine of which a part can be down or missing while the rest answers."""

    diagnosed: tuple[ConditionType, ...]
    """The types of the conditions that `diagnose` may return."""

    async def diagnose(self) -> tuple[Condition, ...]:
        """Return what is wrong with the engine now. Raises Unreachable or Refused if it cannot look."""
        ...


@runtime_checkable
class Restores(Protocol):
    """An engine whose cluster can be left: every object gets back what it had before Fairway.

    Calls are bounded in time and raise only Unreachable or Refused.
    """

    async def read_records(self, keys: Collection[ObjectKey]) -> Mapping[ObjectKey, Record]:
        """Return these objects as a whole, with those inside them that share their mark; missing ones not."""
        ...

    def leaving(
        self, found: FoundPolicy, saved: Sequence[SavedObject], now: Mapping[ObjectKey, Record]
    ) -> Leaving:
        """Return what leaving means for this cluster. Pure. `now` has the records of all saved objects."""
        ...

    def guards(self, found: FoundPolicy) -> tuple[Change, ...]:
        """Return the changes that lift everything with which Fairway refuses or stops work. Pure."""
        ...

    async def requeue_waiting(self, keys: Collection[ObjectKey]) -> None:
        """Let waiting jobs wait as before Fairway, no longer under these objects, which are deleted next."""
        ...


@runtime_checkable
class Intervenes(Protocol):
    """An engine that falls short of a promise and has actions of its own that make up for it."""

    async def intervene(self, fleet: Fleet) -> tuple[Intervention, ...]:
        """Check once, do what is needed, and return what was done and why. Empty when all is well."""
        ...


class CordonOutcome(StrEnum):
    """What came of closing a node to new jobs, or of opening it again."""

    DONE = "done"
    """It is so now, or was so already."""
    NOT_OURS = "not-ours"
    """Somebody else closed it: nothing was changed."""
    MISSING = "missing"
    """The engine has no such node."""


@runtime_checkable
class Cordons(Protocol):
    """An engine that can close nodes to new jobs. Running jobs go on.

    What it closes has a mark, and it opens only what has the mark. Calls are bounded in time and raise only
    Unreachable or Refused; a node that is already so is no error.
    """

    async def cordon(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, CordonOutcome]:
        """Close nodes, each for a reason, that nobody else has closed."""
        ...

    async def uncordon(self, nodes: Collection[NodeName]) -> Mapping[NodeName, CordonOutcome]:
        """Open nodes that Fairway closed."""
        ...


@dataclass(frozen=True, slots=True)
class Remark:
    """Something on a cluster that a fleet file cannot express."""

    about: str
    """The engine's object."""
    text: str


@dataclass(frozen=True, slots=True)
class ImportedPolicy:
    """An existing cluster's policy as a fleet."""

    fleet: Fleet
    """With this cluster only."""
    remarks: tuple[Remark, ...]


class Imports(Protocol):
    """An engine that can import a policy that was made by hand."""

    def import_policy(self, fleet: Fleet, seen: Observation, found: FoundPolicy) -> ImportedPolicy:
        """Convert a found policy. Pure. `fleet` has the cluster, and its pools as far as they are known."""
        ...


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """The result of submitting an order."""

    order: Order
    engine_id: EngineId | None
    """None: refused permanently, see `refusal`."""
    refusal: Refused | None = None


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of a job's log."""

    data: bytes
    next_offset: int
    ended: bool
    """No more will come: the attempt has ended and this reaches the end."""


class Runs(Protocol):
    """An engine that can run jobs. Every call is bounded in time and raises only Unreachable or Refused."""

    unique_names: bool
    """Whether creating a job under an existing name creates no second one.

    Where not, a caller that does not know whether an order was sent must wait until it can no longer arrive,
    and then `find` it.
    """

    def preview(self, order: Order, fleet: Fleet) -> str:
        """Return what would be sent, for users to read. Pure. Raises Refused if it could never run there."""
        ...

    def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[SubmitResult]:
        """Create engine jobs, several at a time; yield each once it is created or refused.

        Unreachable ends it; an order that was not yielded may or may not have been created.
        """
        ...

    async def find(self, names: Collection[EngineName]) -> Mapping[EngineName, EngineId]:
        """Return the jobs of these names that exist, or existed and ended."""
        ...

    async def cancel(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        """Cancel jobs. One that has ended or is gone is no refusal. Returns those that were refused."""
        ...

    async def hold(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        """Hold jobs, so that they do not start; running ones go on. Returns those that were refused."""
        ...

    async def release(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        """Release held jobs. Returns those that were refused."""
        ...

    async def read_log(
        self,
        order: Order,
        engine_id: EngineId,
        attempt: int,
        offset: int,
        limit: int,
        node: int = 0,
        replica: str = "",
    ) -> LogPart:
        """Read up to `limit` bytes of an attempt's log from `offset`.

        Attempts count from 1 per engine job. With `replica`, that pod's log, of a job with replicas.
        """
        ...

    async def close(self) -> None:
        """Close connections and stop background work. Safe to call twice."""
        ...


NOT_RESUMABLE: Final = "NotResumable"
"""The code of a refusal to requeue a job that does not say that it can resume."""


@dataclass(frozen=True, slots=True)
class RequeueRequest:
    """A running job to be sent back to the queue."""

    engine_id: EngineId
    started_before: datetime
    """A run that began later is left alone: it is the one after the requeue."""
    resumes: bool
    """Whether its spec says that it can resume; if not, the engine looks for the user's own mark on it."""
    begin: bool = True
    """False: only complete a requeue that was begun, of which the outcome is not known."""


@runtime_checkable
class Demotes(Protocol):
    """An engine that can make running jobs give way: by a lower priority, or by sending them back.

    Calls are bounded in time, may be repeated, and raise only Unreachable or Refused. A job that has ended or
    is gone is no refusal.
    """

    async def lower(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, Refused]:
        """Give running jobs the lowest priority of the fleet. Returns those that were refused."""
        ...

    async def requeue(self, jobs: Sequence[RequeueRequest], fleet: Fleet) -> Mapping[EngineId, Refused]:
        """Send running jobs back to the queue. Returns those that were refused."""
        ...


@runtime_checkable
class ChangesWaiting(Protocol):
    """An engine that can change jobs in its queue, so that they keep their place.

    Calls are bounded in time, may be repeated, and raise only Unreachable or Refused.
    """

    def check_change(self, before: Order, after: Order, fleet: Fleet) -> None:
        """Return if this engine can change a waiting job so. Pure. Raises Refused otherwise."""
        ...

    async def change(self, changes: Sequence[WaitingChange], fleet: Fleet) -> Mapping[EngineId, Refused]:
        """Change waiting jobs. Returns those that were refused.

        One that has started and is already as wanted, or that has ended or is gone, is no refusal; one that
        has started otherwise is refused with `job_started`.
        """
        ...


@runtime_checkable
class Explains(Protocol):
    """An engine that can report facts about one waiting job, and whether an order could ever run."""

    async def explain(self, engine_id: EngineId, fleet: Fleet) -> WaitFacts | None:
        """Return why a job waits. Returns None if it is gone. Raises Unreachable or Refused."""
        ...

    async def never_fits(self, order: Order, fleet: Fleet) -> Refused | None:
        """Return why no node could ever hold the order. Returns None if one can, or if it is unknown."""
        ...


@dataclass(frozen=True, slots=True)
class MirrorBatch:
    """The jobs of a cluster that changed since the previous mark."""

    jobs: tuple[SeenJob, ...]
    mark: str
    """Where the next call resumes, also after a restart of everything; opaque."""
    snapshot: bool = False
    """`jobs` has every open job: any other job that is open in the ledger must be looked up."""


class Mirrors(Protocol):
    """An engine that can report all its jobs, Fairway's and native ones, as incremental changes."""

    async def changes(self, mark: str | None, fleet: Fleet) -> MirrorBatch:
        """Return what changed since `mark`; None: from the beginning. The first call of an instance is whole.

        Returns as soon as something changed, and with nothing after about a second. Jobs that ended while no
        mirror ran are in the first batch, from the engine's records. Raises Unreachable or Refused.
        """
        ...

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        """Look up jobs in the engine's records, ended ones too; unknown ones are left out."""
        ...

    async def close(self) -> None:
        """Close connections and stop background work. Safe to call twice."""
        ...
