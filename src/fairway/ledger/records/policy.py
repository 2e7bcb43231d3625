"""Define the records of policy: applies, drift, interventions. Frozen; times by the database's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fairway.ledger.records.fleet import Revision
from fairway.model.apply import OPEN_STATES, ApplyKind, ApplyState, Lifted
from fairway.model.names import ClusterName
from fairway.policy.drift import DriftEntry
from fairway.policy.objects import Change, ObjectKey


@dataclass(frozen=True, slots=True)
class StoredChange:
    """A change of an apply, and whether it was made. `change.wanted` is not stored: its fields say it all."""

    change: Change
    made: bool


@dataclass(frozen=True, slots=True)
class ApplyCluster:
    """The progress of an apply on one cluster."""

    cluster: ClusterName
    state: ApplyState
    fingerprint: str
    """Of the plan that was reviewed; empty: none was."""
    total: int
    """Changes to make."""
    done: int
    current: str
    """The object that was written last; empty before the first and at the end."""
    code: str
    """Why it was refused or failed, or what delays it; empty when all is well."""
    message: str
    hint: str
    started_at: datetime | None
    finished_at: datetime | None
    changes: tuple[StoredChange, ...] = ()
    """In the order in which they are made; only when one apply is requested, not in lists."""


@dataclass(frozen=True, slots=True)
class Apply:
    """One request to change clusters: who, when, what, and the result."""

    id: int
    kind: ApplyKind
    created_at: datetime
    created_by: str
    revision: int | None
    """The fleet revision that is applied; None for an adoption."""
    digest: str
    """Of that revision; empty for an adoption."""
    force: bool
    objects: tuple[ObjectKey, ...]
    """The adopted objects; empty for an apply."""
    clusters: tuple[ApplyCluster, ...]
    """Sorted by name."""
    rollback_to: int | None = None
    """The older revision whose text is applied again; None: the text is new."""
    reprice_past: bool = False
    """Whether it was allowed to change closed months."""

    @property
    def state(self) -> ApplyState:
        """The state of all its clusters together: open while one is, else the worst of them."""
        states = {c.state for c in self.clusters}
        if states == {ApplyState.WAITING}:
            return ApplyState.WAITING
        if states & set(OPEN_STATES):
            return ApplyState.RUNNING
        worst = (ApplyState.FAILED, ApplyState.REFUSED, ApplyState.DONE)
        return next((s for s in worst if s in states), ApplyState.SKIPPED)


@dataclass(frozen=True, slots=True)
class ApplyWork:
    """The next apply work of one cluster."""

    apply: int
    kind: ApplyKind
    cluster: ClusterName
    created_by: str
    revision: Revision | None
    objects: tuple[ObjectKey, ...]
    force: bool
    state: ApplyState
    """WAITING, or RUNNING if a server began and did not finish."""
    fingerprint: str
    changes: tuple[StoredChange, ...]
    """The changes planned when it began; empty before."""


@dataclass(frozen=True, slots=True)
class AppliedCluster:
    """The apply that is in force on a cluster."""

    cluster: ClusterName
    apply: int
    revision: int
    applied_at: datetime
    applied_by: str
    looked_at: datetime | None
    """When it was last compared with the cluster; None: not yet."""
    lifted: Lifted | None = None
    """Why it is no longer enforced; None: it is."""
    lifted_by: str = ""
    lifted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoppedApply:
    """An apply that stopped on a cluster before its end, and that no later one has finished."""

    apply: int
    cluster: ClusterName
    revision: int
    total: int
    done: int
    code: str
    message: str
    hint: str
    finished_at: datetime
    changes: tuple[StoredChange, ...]


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference, and when it was first found."""

    cluster: ClusterName
    entry: DriftEntry
    since: datetime


@dataclass(frozen=True, slots=True)
class StoredIntervention:
    """An intervention that was made."""

    id: int
    cluster: ClusterName
    at: datetime
    promise: str
    verb: str
    job: str
    why: str
