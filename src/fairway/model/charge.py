"""Define sums of usage and capacity, and the charges computed from them. Amounts are exact until shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final, TypeAlias

from fairway.model.labels import LABEL_KEY_PATTERN, MAX_LABEL_LENGTH
from fairway.model.names import ClusterName
from fairway.model.price import Commitment
from fairway.model.team import Supply


class Label(StrEnum):
    """A dimension by which usage can be grouped."""

    TEAM = "team"
    USER = "user"
    POOL = "pool"
    PRIORITY = "priority"
    NAME = "name"
    """The job's name: read from the raw rows, because the sums do not have it."""
    OUTCOME = "outcome"
    """How the attempt ended, or `running`: read from the raw rows and the attempts."""
    SERVICE = "service"
    """The name of a service; empty: jobs."""
    KIND = "kind"
    """The kind of workload on Kubernetes; empty: jobs."""
    PROJECT = "project"
    CLUSTER = "cluster"
    SLICE = "slice"
    DAY = "day"


class JobLabel(str):
    """A label of jobs as a dimension, `label:experiment`."""

    __slots__ = ()

    @property
    def key(self) -> str:
        return self.removeprefix(LABEL_PREFIX)

    @property
    def value(self) -> str:
        """Return the dimension as it is written, as `Label.value` does."""
        return str(self)


Dimension: TypeAlias = Label | JobLabel
"""What usage can be grouped by."""

LABEL_PREFIX: Final = "label:"
JOB_LABEL_PATTERN: Final = rf"^{LABEL_PREFIX}{LABEL_KEY_PATTERN}$"


def parse_dimension(text: str) -> Dimension | None:
    """Parse `team` or `label:experiment`. Returns None for anything else."""
    if text in {label.value for label in Label}:
        return Label(text)
    valid = len(text) <= len(LABEL_PREFIX) + MAX_LABEL_LENGTH and re.fullmatch(
        JOB_LABEL_PATTERN, text, re.ASCII
    )
    return JobLabel(text) if valid else None


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open interval in seconds since the epoch; both ends are starts of hours in the fleet's zone."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Device-seconds of one supply in one span, grouped by the requested labels."""

    span: int
    """Index into the requested spans of this pool."""
    supply: Supply
    labels: tuple[str, ...]
    """Values in the order requested; an empty string means none (no team, no priority)."""
    device_seconds: int


@dataclass(frozen=True, slots=True)
class CapacitySum:
    """Capacity of one supply in one hour or day, in device-seconds, and the GPU-seconds behind them."""

    start: int
    """The start of the hour or day."""
    cluster: ClusterName
    supply: Supply
    total: int
    drained: int
    down: int
    fragmented: int
    gpu_seconds: int


class ChargeKind(StrEnum):
    """The kind of a charge."""

    USAGE = "usage"
    IDLE = "idle"
    """Free, and not needed by any job, or available to a job that needs them."""
    FRAGMENTED = "fragmented"
    """Free, but too few on each node for any waiting job."""
    DRAINED = "drained"
    """On nodes that are closed to new jobs."""
    DOWN = "down"
    """On nodes that are down, or withheld by the engine."""
    COMMITMENT = "commitment"
    """Committed GPUs that did not exist."""
    OVERHEAD = "overhead"


UNUSED_KINDS = (
    ChargeKind.IDLE,
    ChargeKind.FRAGMENTED,
    ChargeKind.DRAINED,
    ChargeKind.DOWN,
    ChargeKind.COMMITMENT,
)
"""The kinds that the cost rule `idle:` distributes."""


@dataclass(frozen=True, slots=True)
class Charge:
    """One exact amount, with what it is for and who pays it."""

    kind: ChargeKind
    cluster: ClusterName
    supply: Supply | None
    """None for a charge on a whole cluster (overhead)."""
    span: Span
    labels: tuple[str, ...] | None
    """Who pays it; None if nobody does and it is a separate line."""
    device_seconds: int
    """Device-seconds used or unused; 0 for a share of another line."""
    amount: Fraction
    quantity: Fraction | int = 0
    """Device-seconds, or days of overhead; a share has its part if charges are itemised."""
    commitment: Commitment | None = None
    """The commitment that covers the devices. Only of itemised charges."""

    @property
    def pool(self) -> str:
        """Return the pool's name; empty for a charge on a whole cluster."""
        return self.supply.pool if self.supply else ""
