"""What Fairway asks of an engine, as small protocols. An engine implements those it can keep."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fairway.model.errors import PermanentError, TemporaryError
from fairway.model.fleet import Fleet
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
