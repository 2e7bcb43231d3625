"""What policy is made of on any engine: objects with fields, wanted or found, and changes between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from fairway.model.names import TeamName

Value = str | int | bool | None | tuple["Value", ...]
"""What a field holds: None is "not set". Nested things are written as more fields, `quota.gpu.nominal`."""


class ObjectKey(NamedTuple):
    """What one object of a cluster is called, in the engine's own words.

    A tuple, because plans look tens of thousands of them up, and a tuple's hash costs a fifth.
    """

    kind: str
    """`qos`, `account`, `ClusterQueue`, …"""
    name: str
    """Unique among its kind; `namespace/name`, `account/user` where that is what identifies it."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class WantedObject:
    """An object as the fleet wants it: exactly the fields Fairway governs, each with its value."""

    key: ObjectKey
    fields: Mapping[str, Value]
    after: tuple[ObjectKey, ...] = ()
    """Must exist before this one can be written; goes only after this one is gone."""
    team: TeamName | None = None
    """Whose it is, for the reader; None: the fleet's."""
    shared: bool = False
    """Must exist, whoever made it; Fairway makes it if it is missing and never changes or deletes it."""


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object as the engine has it, in the same normal form: equal fields mean nothing to do."""

    key: ObjectKey
    fields: Mapping[str, Value]
    ours: bool
    """Carries Fairway's mark. Nothing else is ever changed or deleted."""
    changed_by: str | None = None
    """Who changed it last, where the engine tells; None: not known, or Fairway."""
    after: tuple[ObjectKey, ...] = ()
    """What it refers to: it goes before those go."""
    team: TeamName | None = None
    """Whose it is, where its mark tells."""


class Action(StrEnum):
    """What a change does to an object."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    ADOPT = "adopt"
    """Put Fairway's mark on an object that has none, and nothing else."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field before and after; None: not set."""

    field: str
    before: Value
    after: Value


@dataclass(frozen=True, slots=True)
class Change:
    """One write to one object."""

    action: Action
    key: ObjectKey
    fields: tuple[FieldChange, ...] = ()
    """What differs; of a new object, and of one that goes, every field that is set."""
    wanted: Mapping[str, Value] | None = None
    """The whole object as it shall be; None when it goes."""
    stage: int = 0
    """Changes of one stage do not depend on each other; stages are done in order."""
    team: TeamName | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a reader of a plan should know: a promise the engine cannot keep, a limit, a caveat."""

    code: str
    message: str
    hint: str
    promise: str | None = None
    """The id of the promise it is about."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A line of an engine's own configuration that Fairway cannot write and the policy needs."""

    file: str
    """`slurm.conf`, `Kueue's configuration`."""
    line: str
    """Exactly what must stand there."""
    running: str
    """What the engine runs with now; empty: nothing."""
    why: str
    restart: str = ""
    """What must be restarted or told for it to count: `scontrol reconfigure`."""
    unseen: bool = False
    """The engine does not show what it runs with: the line may stand there already."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Jobs that depend on an object at one moment."""

    running: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class FoundPolicy:
    """One look at a cluster's policy: every object of the kinds Fairway writes, ours or not."""

    engine_version: str
    objects: tuple[FoundObject, ...]
    settings: Mapping[str, str]
    """What of the engine's running configuration a policy depends on."""


@dataclass(frozen=True, slots=True)
class Translation:
    """What a fleet means on one cluster."""

    objects: tuple[WantedObject, ...]
    notices: tuple[Notice, ...] = ()
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True, slots=True)
class Nudge:
    """A small push by the engine's own verbs where it falls a step short of a promise."""

    promise: str
    verb: str
    """What was done, as the engine's tool writes it: `scontrol requeue 17`."""
    job: str
    """The engine's name of the job it was done to."""
    why: str
