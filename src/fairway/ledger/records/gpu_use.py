"""Define what is read of GPU use: by job, by GPU of a job, over time, by supply, by node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from fairway.model.gpu_use import Device, GpuUse, MetricCode
from fairway.model.job import JobId
from fairway.model.names import ClusterName, NodeName
from fairway.model.team import Supply


@dataclass(frozen=True, slots=True)
class LatestUse:
    """The means of metrics in the last window that was measured."""

    at: datetime
    """When the window began."""
    means: Mapping[MetricCode, float]
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class JobUse:
    """What the GPUs of a job did until `read_to`."""

    job: JobId
    read_to: datetime
    held: float
    """GPU-seconds, as the job's attempts have it."""
    use: GpuUse
    idle: float = 0.0
    latest: LatestUse | None = None


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What one GPU of a job did while the job held it."""

    device: Device
    use: GpuUse
    idle: float
    latest: LatestUse | None


@dataclass(frozen=True, slots=True)
class CoursePoint:
    """What the GPUs of a job did in an hour, or in a window."""

    start: datetime
    seconds: int
    use: GpuUse
    idle: float


@dataclass(frozen=True, slots=True)
class SupplyNow:
    """What the GPUs of a supply did in the last window that was read, as far as jobs held them."""

    supply: Supply
    at: datetime
    measured_gpus: float
    busy_gpus: float
    idle_gpus: int


@dataclass(frozen=True, slots=True)
class NodeHour:
    """The GPU-seconds of a node in an hour: those measured, and of them those that jobs held."""

    measured: float
    held_measured: float
    held_busy: float


@dataclass(frozen=True, slots=True)
class NodeHours:
    """What the GPUs of a node did, by the start of each hour."""

    cluster: ClusterName
    node: NodeName
    hours: Mapping[int, NodeHour]
