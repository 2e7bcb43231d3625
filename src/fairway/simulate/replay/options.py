"""Set what a replay assumes beyond the fleet and the trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from fairway.model.names import PoolName

_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class SpotAssumption:
    """How spot nodes are lost and come back. Both times are exponential."""

    up_seconds: float = 12 * _HOUR
    """How long a node stays on average."""
    down_seconds: float = 1 * _HOUR
    """How long its successor takes to come, on average."""
    price_part: float = 0.35
    """The price of a spot GPU-hour as a part of the pool's list price, where a part of a pool is spot."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What a replay assumes, and the time that it measures."""

    begin: float | None = None
    """Jobs submitted before it take part and are not counted. None: the first submission."""
    end: float | None = None
    """The end of the time whose utilisation is measured. None: the last submission."""
    spot_parts: Mapping[PoolName, float] = field(default_factory=lambda: MappingProxyType({}))
    """The part of each pool's nodes that is spot, besides pools that are spot altogether."""
    spot: SpotAssumption = SpotAssumption()
    growth: float = 1.0
    """How many times as many jobs are submitted; see `grown`."""
    beyond: Mapping[PoolName, float] = field(default_factory=lambda: MappingProxyType({}))
    """GPUs of pools; what is held beyond them is measured."""
    samples: int = 2000
    """How often the queue is looked at for fragmentation and fairness, at even distances."""
    reserve_after_seconds: float = 60.0
    """As of the Simulator: how long a job without a backfill window waits before places are kept for it."""
    start_seconds: float = 0.0
    """How long the engine takes to start a job on devices that are free."""
    requeue_seconds: float | None = None
    """How long a preempted job waits before it can start again. None: as the engine of each pool does."""


DEFAULT_OPTIONS: Final = ReplayOptions()
