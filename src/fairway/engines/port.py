"""What Fairway asks of an engine, as small protocols. An engine implements those it can keep."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fairway.model.errors import PermanentError, TemporaryError
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId, EngineName, Order, SeenJob
from fairway.model.observation import Observation
from fairway.policy.objects import Activity, Change, FoundPolicy, Nudge, ObjectKey, Translation


class Unreachable(TemporaryError):
    """The engine did not answer: down, restarting, network, time-out."""


class Refused(PermanentError):
    """The engine answered no: bad credentials, missing rights, unknown partition."""


class Observes(Protocol):
    """Can say what a cluster has and how it is."""

    async def observe(self) -> Observation:
        """One look at the cluster. Bounded in time; raises Unreachable or Refused, nothing else."""
        ...

    async def close(self) -> None:
        """Let go of connections and background work. Safe to call twice."""
        ...


class Governs(Protocol):
    """Can carry a policy. Every call is bounded in time and raises Unreachable or Refused, nothing else."""

    async def find_policy(self) -> FoundPolicy:
        """Every object of the kinds Fairway writes, ours or not, and the settings a policy depends on."""
        ...

    def translate(self, fleet: Fleet, found: FoundPolicy) -> Translation:
        """What `fleet` means on this cluster. Pure: `found` tells the engine's version and settings."""
        ...

    async def activity(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
        """Jobs that run and wait under each of these objects; a key without jobs may be left out."""
        ...

    def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        """Make changes of one stage, in any order; yields each when it is made, stops at the first refusal.

        Writing what is already so is no error: after a crash the same change may come again.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and background work. Safe to call twice."""
        ...


@runtime_checkable
class Nudges(Protocol):
    """Falls a step short of some promise and has verbs of its own that make up for it."""

    async def nudge(self, fleet: Fleet) -> tuple[Nudge, ...]:
        """Look once, do what is needed, and say what was done and why. Nothing when all is well."""
        ...


@dataclass(frozen=True, slots=True)
class Remark:
    """Something of a cluster that has no word in a fleet file."""

    about: str
    """The engine's object."""
    text: str


@dataclass(frozen=True, slots=True)
class Imported:
    """An existing cluster in Fairway's words."""

    fleet: Fleet
    """With this cluster only."""
    remarks: tuple[Remark, ...]


class Imports(Protocol):
    """Can read a policy that people made by hand."""

    def import_policy(self, fleet: Fleet, seen: Observation, found: FoundPolicy) -> Imported:
        """Pure. `fleet` has the cluster, and its pools as far as they are known; the rest is found."""
        ...


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of an order."""

    order: Order
    engine_id: EngineId | None
    """None: refused for good, see `refusal`."""
    refusal: Refused | None = None


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of what a job printed."""

    data: bytes
    next_offset: int
    ended: bool
    """No more will come: the attempt is over and this reaches the end."""


class Runs(Protocol):
    """Can run jobs. Every call is bounded in time and raises Unreachable or Refused, nothing else."""

    unique_names: bool
    """Whether making a job of a name that exists makes no second one. Where not, somebody who does not know
    whether an order went out must wait until it can no longer arrive, and `find` it."""

    def preview(self, order: Order, fleet: Fleet) -> str:
        """What would be sent, for people to read. Pure. Raises Refused if it could never run there."""
        ...

    def submit(self, orders: Sequence[Order], fleet: Fleet) -> AsyncIterator[Sent]:
        """Make engine jobs, several at a time; yields each as it is made or refused.

        Unreachable ends it; what was not yielded may or may not have been made.
        """
        ...

    async def find(self, names: Collection[EngineName]) -> Mapping[EngineName, EngineId]:
        """Those that exist, or existed and ended, of these names."""
        ...

    async def cancel(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        """End them. One that is over or gone is no refusal. Gives those that were refused."""
        ...

    async def hold(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        """Keep them from starting; what runs goes on. The same answer as `cancel`."""
        ...

    async def release(self, ids: Sequence[EngineId]) -> Mapping[EngineId, Refused]:
        """Let held ones start."""
        ...

    async def read_log(
        self, order: Order, engine_id: EngineId, attempt: int, offset: int, limit: int, node: int = 0
    ) -> LogPart:
        """What an attempt (from 1 within this engine job) printed, from a byte offset on; at most `limit`."""
        ...

    async def close(self) -> None:
        """Let go of connections and background work. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """What changed among a cluster's jobs since the mark before."""

    jobs: tuple[SeenJob, ...]
    mark: str
    """Where the next look goes on, also after a restart of everything; opaque."""
    whole: bool = False
    """`jobs` has every job that is not over: whatever else is open in the ledger must be looked up."""


class Mirrors(Protocol):
    """Can tell of all its jobs, Fairway's and native ones, without being asked for all of them each time."""

    async def changes(self, mark: str | None, fleet: Fleet) -> Batch:
        """What changed since `mark`; None: from the beginning. The first call of an instance is whole.

        Returns as soon as something changed, and with nothing after about a second. What ended while nobody
        looked is in the first batch, as the engine's records tell it. Raises Unreachable or Refused.
        """
        ...

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        """Jobs by the engine's records, ended ones too; one that nothing tells of is left out."""
        ...

    async def close(self) -> None:
        """Let go of connections and background work. Safe to call twice."""
        ...
