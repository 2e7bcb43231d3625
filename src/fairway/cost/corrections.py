"""A closed month stays as it was told; what turns out different lands in the next month that is open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from fairway.model.charge import Charge, ChargeKind, Label
from fairway.model.names import ClusterName
from fairway.model.team import Supply


@dataclass(frozen=True, slots=True)
class Told:
    """A line of a month's statement, rounded."""

    kind: ChargeKind
    cluster: ClusterName
    supply: Supply | None
    """None: of a cluster as a whole."""
    team: str
    """Empty: nobody's (a line of its own), or of work under no team."""
    device_seconds: int
    amount: Decimal


def told(charges: Sequence[Charge], labels: Sequence[Label], quantum: Decimal) -> tuple[Told, ...]:
    """A month's charges as its statement tells them, to the quantum; `labels` have the team among them.

    They sum to the exact total rounded once; each team's to its own within a quantum.
    """
    raise NotImplementedError


def correction(recomputed: Sequence[Told], told_so_far: Sequence[Told]) -> tuple[Told, ...]:
    """What must be added to all that was told of a month, to make it what it is now known to be."""
    raise NotImplementedError
