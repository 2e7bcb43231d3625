"""How far an apply is, and how an object can differ from what was applied: words of ledger, API and CLI."""

from __future__ import annotations

from enum import StrEnum


class ApplyKind(StrEnum):
    """What was asked for."""

    APPLY = "apply"
    """Make a fleet so."""
    ADOPT = "adopt"
    """Put Fairway's mark on objects that have none."""


class ApplyState(StrEnum):
    """How far an apply is."""

    WAITING = "waiting"
    RUNNING = "running"
    """Writes may have been made; whoever takes over carries on."""
    DONE = "done"
    REFUSED = "refused"
    """Fairway did not begin: the cluster moved on, or something speaks against the plan."""
    FAILED = "failed"
    """It began and could not end; what was made stays made."""
    SKIPPED = "skipped"
    """The cluster left the fleet before its turn came."""


OPEN_STATES = (ApplyState.WAITING, ApplyState.RUNNING)


class DriftKind(StrEnum):
    """How an object differs from what was applied."""

    CHANGED = "changed"
    MISSING = "missing"
    EXTRA = "extra"
    """Carries our mark and was not applied by us."""
    UNMARKED = "unmarked"
    """Has lost our mark: Fairway leaves it alone until it is adopted."""
