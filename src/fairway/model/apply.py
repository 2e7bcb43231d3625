"""Define the states of applies and the kinds of drift, as used in the ledger, API and CLI."""

from __future__ import annotations

from enum import StrEnum


class ApplyKind(StrEnum):
    """The kind of an apply request."""

    APPLY = "apply"
    """Apply a fleet to a cluster."""
    ADOPT = "adopt"
    """Put Fairway's ownership mark on objects that have none."""
    LEAVE = "leave"
    """Return a cluster to its state before adoption."""
    RELEASE = "release"
    """Lift every guard of a cluster at once, until the next apply."""


class Lifted(StrEnum):
    """Why the policy that was last applied to a cluster is no longer enforced."""

    LEFT = "left"
    RELEASED = "released"


class ApplyState(StrEnum):
    """The state of an apply."""

    WAITING = "waiting"
    RUNNING = "running"
    """Writes may have been made; a server that takes over continues."""
    DONE = "done"
    REFUSED = "refused"
    """Fairway did not start: the cluster has changed since the plan, or there is an objection to the plan."""
    FAILED = "failed"
    """It started and could not finish; completed writes are not rolled back."""
    SKIPPED = "skipped"
    """The cluster was removed from the fleet before the apply started."""


OPEN_STATES = (ApplyState.WAITING, ApplyState.RUNNING)


class DriftKind(StrEnum):
    """How an object differs from what was applied."""

    CHANGED = "changed"
    MISSING = "missing"
    EXTRA = "extra"
    """Has Fairway's mark but is not part of the applied policy."""
    UNMARKED = "unmarked"
    """Has lost Fairway's mark: it is not changed until it is adopted."""
