"""Define policy objects of any engine: wanted and found objects with fields, and changes between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from fairway.model.names import TeamName

Value = str | int | bool | None | tuple["Value", ...]
"""The value of a field; None is "not set". Nested values are flattened to fields: `quota.gpu.nominal`."""

Record = Mapping[str, Any]
"""A whole object as its engine has it, without ids, times and status: also what Fairway has no field for."""


class ObjectKey(NamedTuple):
    """The identity of one object of a cluster, in the engine's terms.

    A tuple, because plans look up tens of thousands of them, and its hash takes a fifth of the time.
    """

    kind: str
    """`qos`, `account`, `ClusterQueue`, …"""
    name: str
    """Unique within its kind; `namespace/name` or `account/user` where that identifies it."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class WantedObject:
    """An object in its desired state: exactly the fields that Fairway manages, with their values."""

    key: ObjectKey
    fields: Mapping[str, Value]
    after: tuple[ObjectKey, ...] = ()
    """Objects that must exist before this one is written, and are deleted only after it."""
    team: TeamName | None = None
    """The team it belongs to, for display; None if it belongs to the whole fleet."""
    shared: bool = False
    """Whether others may use it too: Fairway creates it if missing, and never changes or deletes it."""


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object in its actual state, in the same normal form: equal fields mean no change."""

    key: ObjectKey
    fields: Mapping[str, Value]
    ours: bool
    """Whether it has Fairway's ownership mark. Other objects are never changed or deleted."""
    changed_by: str | None = None
    """Who changed it last; None if unknown or Fairway itself."""
    after: tuple[ObjectKey, ...] = ()
    """Objects that it refers to: it is deleted before them."""
    team: TeamName | None = None
    """The team in its mark; None if the mark has none."""
    created: bool = False
    """Whether Fairway created it; False if people made it, adopted or not, or if that is not known."""


class Action(StrEnum):
    """The operation that a change performs on an object."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    ADOPT = "adopt"
    """Only put Fairway's mark on an object that has none."""
    RESTORE = "restore"
    """Give an object back what it had before Fairway changed it, and take the mark off."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field before and after a change; None is not set."""

    field: str
    before: Value
    after: Value


@dataclass(frozen=True, slots=True)
class Change:
    """One write to one object."""

    action: Action
    key: ObjectKey
    fields: tuple[FieldChange, ...] = ()
    """The fields that differ; for creation and deletion every field that is set."""
    wanted: Mapping[str, Value] | None = None
    """The whole object in its desired state; None for a deletion."""
    stage: int = 0
    """Changes of one stage do not depend on each other; stages are applied in order."""
    team: TeamName | None = None
    record: Record | None = None
    """What RESTORE writes. None: the object keeps all but the mark."""


@dataclass(frozen=True, slots=True)
class SavedObject:
    """An object as it was before Fairway first changed it."""

    key: ObjectKey
    fields: Mapping[str, Value]
    record: Record | None
    """None: it did not exist. Fairway created it."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A note on a plan: a promise that the engine cannot keep, a limit, a caveat."""

    code: str
    message: str
    hint: str
    promise: str | None = None
    """The id of the promise it concerns; None if it concerns none."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A line of the engine's configuration that the policy needs and that Fairway cannot write."""

    file: str
    """`slurm.conf`, `Kueue's configuration`."""
    line: str
    """The exact line required."""
    running: str
    """The current setting of the running engine; empty if there is none."""
    why: str
    restart: str = ""
    """How to make it take effect: `scontrol reconfigure`, or a restart."""
    unseen: bool = False
    """Whether the engine does not expose the setting, so that the line may already be there."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The number of jobs that depend on an object at one point in time."""

    running: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class GpuWorkload:
    """GPU work that no queue of the engine counts: a Deployment, a bare pod, an operator's object."""

    kind: str
    namespace: str
    name: str
    gpus_per_pod: int
    gpus: int = 0
    """GPUs that its pods hold now."""
    since: str = ""
    """When its oldest pod was created; empty if it has none."""
    root: tuple[str, str] | None = None
    """Kind and name of what people created, if another object than this makes its pods."""

    def __str__(self) -> str:
        kind, name = self.root or (self.kind, self.name)
        return f"{kind} {self.namespace}/{name}"


@dataclass(frozen=True, slots=True)
class FoundPolicy:
    """A snapshot of a cluster's policy: all objects of the kinds that Fairway writes, managed or not."""

    engine_version: str
    objects: tuple[FoundObject, ...]
    settings: Mapping[str, str]
    """The settings of the running engine that a policy depends on."""
    workloads: tuple[GpuWorkload, ...] = ()
    """GPU work outside the policy where it is not governed yet, in the order of namespace, kind and name."""


@dataclass(frozen=True, slots=True)
class Translation:
    """The translation of a fleet to one cluster: wanted objects, notices and advice."""

    objects: tuple[WantedObject, ...]
    notices: tuple[Notice, ...] = ()
    advice: tuple[Advice, ...] = ()
    rejected: Notice | None = None
    """The running workloads whose next pod would be rejected. None: there are none. It needs `--force`."""


@dataclass(frozen=True, slots=True)
class Intervention:
    """An engine command that Fairway ran because the engine alone would not keep a promise."""

    promise: str
    verb: str
    """The action as a command of the engine's tool: `scontrol requeue 17`."""
    job: str
    """The engine's name of the affected job."""
    why: str
