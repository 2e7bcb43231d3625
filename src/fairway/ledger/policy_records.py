"""What the ledger gives back of policy: applies, drift, nudges. Frozen; times by the database's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fairway.ledger.records import Revision
from fairway.model.apply import OPEN_STATES, ApplyKind, ApplyState, DriftKind
from fairway.model.names import ClusterName
from fairway.policy.drift import DriftEntry
from fairway.policy.objects import Change, ObjectKey

__all__ = [
    "OPEN_STATES",
    "AppliedCluster",
    "Apply",
    "ApplyCluster",
    "ApplyKind",
    "ApplyState",
    "ApplyWork",
    "Drift",
    "DriftEntry",
    "DriftKind",
    "KeptChange",
    "KeptNudge",
]


@dataclass(frozen=True, slots=True)
class KeptChange:
    """A change of an apply, and whether it was made. `change.wanted` is not kept: its fields say it all."""

    change: Change
    made: bool


@dataclass(frozen=True, slots=True)
class ApplyCluster:
    """How an apply goes on one cluster."""

    cluster: ClusterName
    state: ApplyState
    fingerprint: str
    """Of the plan that was read; empty: none was."""
    total: int
    """Changes to make."""
    done: int
    current: str
    """The object that was written last; empty before the first and at the end."""
    code: str
    """Why it was refused or failed, or what it is held up by; empty when all is well."""
    message: str
    hint: str
    started_at: datetime | None
    finished_at: datetime | None
    changes: tuple[KeptChange, ...] = ()
    """In the order in which they are made; only where one apply is asked for, not in lists."""


@dataclass(frozen=True, slots=True)
class Apply:
    """One request to change clusters: who, when, what, and what came of it."""

    id: int
    kind: ApplyKind
    created_at: datetime
    created_by: str
    revision: int | None
    """The fleet's revision that is applied; None of an adoption."""
    digest: str
    """Of that revision; empty of an adoption."""
    force: bool
    objects: tuple[ObjectKey, ...]
    """What is adopted; empty of an apply."""
    clusters: tuple[ApplyCluster, ...]
    """By name."""

    @property
    def state(self) -> ApplyState:
        """Of all its clusters together: open while one is, else the worst of them."""
        states = {c.state for c in self.clusters}
        if states == {ApplyState.WAITING}:
            return ApplyState.WAITING
        if states & set(OPEN_STATES):
            return ApplyState.RUNNING
        worst = (ApplyState.FAILED, ApplyState.REFUSED, ApplyState.DONE)
        return next((s for s in worst if s in states), ApplyState.SKIPPED)


@dataclass(frozen=True, slots=True)
class ApplyWork:
    """What one cluster has to do next."""

    apply: int
    kind: ApplyKind
    cluster: ClusterName
    created_by: str
    revision: Revision | None
    objects: tuple[ObjectKey, ...]
    force: bool
    state: ApplyState
    """WAITING, or RUNNING if somebody began and did not end."""
    fingerprint: str
    changes: tuple[KeptChange, ...]
    """What was to be done when it began; empty before."""


@dataclass(frozen=True, slots=True)
class AppliedCluster:
    """What a cluster was last made to be."""

    cluster: ClusterName
    apply: int
    revision: int
    applied_at: datetime
    applied_by: str
    looked_at: datetime | None
    """When it was last compared with that; None: not yet."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference, and since when it is known."""

    cluster: ClusterName
    entry: DriftEntry
    since: datetime


@dataclass(frozen=True, slots=True)
class KeptNudge:
    """A push that was given."""

    id: int
    cluster: ClusterName
    at: datetime
    promise: str
    verb: str
    job: str
    why: str
