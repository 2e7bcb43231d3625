"""Usage and capacity summed for a question, and the charges that answer it. Amounts are exact until shown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from fairway.model.names import ClusterName
from fairway.model.team import Supply


class Label(StrEnum):
    """What usage can be told apart by."""

    TEAM = "team"
    USER = "user"
    POOL = "pool"
    PRIORITY = "priority"
    NAME = "name"
    """The job's name: read from the raw rows, for the sums do not know it."""
    CLUSTER = "cluster"
    SLICE = "slice"
    DAY = "day"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """From `start` up to but not `end`, in seconds since 1970; both begin an hour of the fleet's zone."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Device-seconds of one supply in one span, of all who have the labels asked for in common."""

    span: int
    """Which of the spans that were asked for, of this pool."""
    supply: Supply
    labels: tuple[str, ...]
    """In the order asked for; empty text: none (no team, no priority)."""
    device_seconds: int


@dataclass(frozen=True, slots=True)
class CapacitySum:
    """What there was of one supply in one hour or day; device-seconds, and the GPU-seconds behind them."""

    start: int
    """When the hour or day began."""
    cluster: ClusterName
    supply: Supply
    total: int
    drained: int
    down: int
    fragmented: int
    gpu_seconds: int


class ChargeKind(StrEnum):
    """What an amount is for."""

    USAGE = "usage"
    IDLE = "idle"
    """Free, and nobody wanted them, or somebody did and could have had them."""
    FRAGMENTED = "fragmented"
    """Free, but of no use to anything that waits: too few on each node."""
    DRAINED = "drained"
    """On nodes somebody closed to new work."""
    DOWN = "down"
    """On nodes that are down, or held back by the engine."""
    COMMITMENT = "commitment"
    """Committed GPUs that were not there."""
    OVERHEAD = "overhead"


UNUSED_KINDS = (
    ChargeKind.IDLE,
    ChargeKind.FRAGMENTED,
    ChargeKind.DRAINED,
    ChargeKind.DOWN,
    ChargeKind.COMMITMENT,
)
"""What `idle:` of the cost rules shares out."""


@dataclass(frozen=True, slots=True)
class Charge:
    """One exact amount."""

    kind: ChargeKind
    cluster: ClusterName
    supply: Supply | None
    """None: of a cluster as a whole (overhead)."""
    span: Span
    labels: tuple[str, ...] | None
    """Who carries it; None: nobody, it is a line of its own."""
    device_seconds: int
    """Of usage and of what was unused; 0 for a share of something."""
    amount: Fraction

    @property
    def pool(self) -> str:
        """Empty: of a cluster as a whole."""
        return self.supply.pool if self.supply else ""
