"""Define what is read of GPU use: by job, by GPU of a job, over time, by node, by user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fairway.model.gpu_use import Device, GpuUse, MetricCode
from fairway.model.job import JobId
from fairway.model.names import ClusterName, NodeName, PoolName, TeamName, UserName
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
class UseOverTime:
    """Measured, busy and idle GPU-seconds of a supply in an hour or on a day."""

    start: int
    supply: Supply
    measured: float
    busy: float
    idle: float


@dataclass(frozen=True, slots=True)
class NodeHours:
    """The measured and busy GPU-seconds of a node by hour."""

    cluster: ClusterName
    node: NodeName
    hours: Mapping[int, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IdleHolder:
    """Who held GPUs of a supply that did nothing."""

    team: TeamName | None
    user: UserName
    supply: Supply
    measured: float
    busy: float
    idle: float


@dataclass(frozen=True, slots=True)
class UseFilter:
    """Which teams and pools to read; None is all."""

    teams: frozenset[str] | None = None
    pools: frozenset[PoolName] | None = None
