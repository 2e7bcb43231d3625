"""Define what a GPU did while a job held it: integrals of its metrics over the time that was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from fairway.model.job import JobId
from fairway.model.team import Supply

WINDOW_SECONDS: Final = 300
"""Windows begin at multiples of this since 1970, so that each lies within one hour of any time zone."""
IDLE_RATIO: Final = 0.01
"""A GPU whose engine is busy for less than this share of a window does nothing."""


class MetricCode(StrEnum):
    """A metric of a GPU, by the name that tables, reports and pages use."""

    ENGINE = "engine"
    """Seconds in which the graphics or compute engine was busy."""
    SM = "sm"
    """Seconds in which the multiprocessors had work, as a mean over all of them."""
    TENSOR = "tensor"
    """Seconds in which the tensor cores were busy."""
    DRAM = "dram"
    """Seconds in which the memory interface moved data."""
    MEMORY = "memory"
    """Memory in use: MiB × seconds."""
    POWER = "power"
    """Joules."""
    PCIE = "pcie"
    """Bytes over PCIe, both ways."""
    NVLINK = "nvlink"
    """Bytes over NVLink, both ways."""


class GangMark(StrEnum):
    """How a GPU differs from the other GPUs of its job."""

    LAGS = "lags"
    """It does much less than they do."""
    AHEAD = "ahead"
    """It does much more: they may wait for it, or have nothing to do."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a MIG instance of one."""

    node: str
    gpu: str
    """Its index, as the driver counts."""
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """A closed span of time, in seconds since 1970; a sample at its very end belongs to the next one."""

    start: int
    end: int

    @property
    def seconds(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Holding:
    """A time in which a job held devices: an attempt."""

    job: JobId
    devices: int
    since: float
    until: float
    """Of a running attempt, the end of the window or later."""
    holders: frozenset[str] = frozenset()
    """What an exporter may call it."""
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The indices of its GPUs by node, where the engine tells."""

    def seconds_in(self, window: Window) -> float:
        """Return how long it lasted within a window."""
        return max(0.0, min(self.until, window.end) - max(self.since, window.start))


@dataclass(slots=True)
class GpuUse:
    """Integrals of metrics over the time in which they were measured."""

    integrals: dict[MetricCode, float] = field(default_factory=dict)
    seconds: dict[MetricCode, float] = field(default_factory=dict)
    """How long each metric was measured."""
    peak_memory_mib: float | None = None

    @property
    def measured(self) -> float:
        """Return the GPU-seconds in which it is known whether the GPU was busy."""
        return self.seconds.get(MetricCode.ENGINE, 0.0)

    def ratio(self, code: MetricCode) -> float | None:
        """Return the mean of a metric. Returns None if it was not measured."""
        seconds = self.seconds.get(code, 0.0)
        return self.integrals.get(code, 0.0) / seconds if seconds else None

    @property
    def idle(self) -> float:
        """Return the measured seconds if the GPU did nothing in them, else 0. Of one window only."""
        ratio = self.ratio(MetricCode.ENGINE)
        return self.measured if ratio is not None and ratio < IDLE_RATIO else 0.0

    def add(self, means: Mapping[MetricCode, float], seconds: float, peak_memory_mib: float | None) -> None:
        """Add a time in which metrics had these means."""
        for code, value in means.items():
            if not math.isnan(value):
                self.integrals[code] = self.integrals.get(code, 0.0) + value * seconds
                self.seconds[code] = self.seconds.get(code, 0.0) + seconds
        if peak_memory_mib is not None and not math.isnan(peak_memory_mib):
            self.peak_memory_mib = max(self.peak_memory_mib or 0.0, peak_memory_mib)

    def scale(self, factor: float) -> None:
        """Make it count for less time."""
        self.integrals = {code: value * factor for code, value in self.integrals.items()}
        self.seconds = {code: value * factor for code, value in self.seconds.items()}


@dataclass(frozen=True, slots=True)
class HostUse:
    """What the hosts of a job did around its GPUs in a time; no seconds: not measured."""

    cpu: float = 0.0
    """Core-seconds that were busy."""
    cpu_given: float = 0.0
    """Core-seconds that the job was given."""
    cpu_seconds: float = 0.0
    """The seconds in which both were measured."""
    io_wait: float = 0.0
    """Seconds in which a task on one of its nodes waited for storage, as a sum over nodes."""
    io_wait_seconds: float = 0.0
    """The seconds in which that was measured, as a sum over nodes."""


class HeldKind(StrEnum):
    """What became of GPU time that somebody held. The kinds add up to what was held."""

    BUSY = "busy"
    """The engine was busy."""
    POOR = "poorly_used"
    """The GPU did some work, and its engine waited in between."""
    IDLE = "idle"
    """The GPU did nothing in a whole window."""
    UNMEASURED = "not_measured"
    """Nobody knows: this is never called idle."""


@dataclass(frozen=True, slots=True)
class GpuUseSum:
    """What the devices of one supply did in one span, by the requested labels; in device-seconds."""

    span: int
    """Index into the requested spans of this pool."""
    supply: Supply
    labels: tuple[str, ...]
    use: GpuUse
    idle: float
    """Device-seconds of windows in which a device did nothing."""

    def plus(self, other: GpuUseSum) -> GpuUseSum:
        """Add what the same devices did at another time."""
        return replace(self, use=merged((self.use, other.use)), idle=self.idle + other.idle)


def merged(uses: Iterable[GpuUse]) -> GpuUse:
    """Add up what GPUs did."""
    found = GpuUse()
    for use in uses:
        for code, value in use.integrals.items():
            found.integrals[code] = found.integrals.get(code, 0.0) + value
            found.seconds[code] = found.seconds.get(code, 0.0) + use.seconds.get(code, 0.0)
        if use.peak_memory_mib is not None:
            found.peak_memory_mib = max(found.peak_memory_mib or 0.0, use.peak_memory_mib)
    return found


JobDevices = dict[JobId, dict[Device, GpuUse]]
"""What each job did on each of its devices."""
