"""Define figures of GPU use: one GPU, the GPUs of a job side by side, and the host around them.

A figure is None where the exporter does not export it. What was not measured is never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fairway.model.gpu_use import WINDOW_SECONDS
from fairway.model.names import NodeName


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """Figures of one GPU or MIG slice over a span, or their mean over several."""

    measured_seconds: float
    engine: float | None = None
    """The ratio of time in which any kernel ran (DCGM's graphics engine active), 0 to 1."""
    sm: float | None = None
    """The ratio of multiprocessors with work, mean over time, 0 to 1."""
    tensor: float | None = None
    """The ratio of time in which the tensor cores were active, 0 to 1."""
    dram: float | None = None
    """The ratio of time in which the memory interface transferred data, 0 to 1."""
    memory_used_mib: float | None = None
    memory_peak_mib: float | None = None
    memory_total_mib: float | None = None
    power_watts: float | None = None
    pcie_bytes_per_second: float | None = None
    """Both directions together; includes RDMA traffic to other nodes."""
    nvlink_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """A GPU or slice that a job holds: where it is, and its figures."""

    node: NodeName
    index: int
    figures: GpuFigures


@dataclass(frozen=True, slots=True)
class HostFigures:
    """Figures of the CPUs and storage around a job's GPUs."""

    cpu_ratio: float | None = None
    """Busy cores divided by the cores given to the job."""
    io_pressure: float | None = None
    """The ratio of time in which some task waited for storage (PSI `some`), 0 to 1."""
    cpus: int | None = None
    """The cores given to the job on each node."""


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What a job did with its GPUs over a span: its life, or for a diagnosis of now its last few hours."""

    span_seconds: float
    held_gpu_seconds: float
    measured_gpu_seconds: float
    gpus: tuple[HeldGpu, ...]
    nodes: int = 1
    gpus_per_node: int = 1
    host: HostFigures = HostFigures()
    is_service: bool = False
    """Whether it answers requests: a service may wait for them without being idle."""
    is_slice: bool = False
    """Whether its devices are MIG slices."""
    recent: tuple[float | None, ...] = ()
    """The mean `engine` of all its GPUs in each of the last windows, oldest first; None: not measured."""

    @property
    def coverage(self) -> float:
        """Return the ratio of the held GPU-seconds that was measured."""
        return self.measured_gpu_seconds / self.held_gpu_seconds if self.held_gpu_seconds > 0 else 0.0

    def mean(self) -> GpuFigures:
        """Return the mean over all GPUs, weighted by measured time; of `memory_peak_mib` the maximum."""

        def weighted(figure: Callable[[GpuFigures], float | None]) -> float | None:
            return _weighted_mean((figure(gpu.figures), gpu.figures.measured_seconds) for gpu in self.gpus)

        peaks = [gpu.figures.memory_peak_mib for gpu in self.gpus if gpu.figures.memory_peak_mib is not None]
        return GpuFigures(
            measured_seconds=sum(gpu.figures.measured_seconds for gpu in self.gpus),
            engine=weighted(lambda figures: figures.engine),
            sm=weighted(lambda figures: figures.sm),
            tensor=weighted(lambda figures: figures.tensor),
            dram=weighted(lambda figures: figures.dram),
            memory_used_mib=weighted(lambda figures: figures.memory_used_mib),
            memory_peak_mib=max(peaks, default=None),
            memory_total_mib=weighted(lambda figures: figures.memory_total_mib),
            power_watts=weighted(lambda figures: figures.power_watts),
            pcie_bytes_per_second=weighted(lambda figures: figures.pcie_bytes_per_second),
            nvlink_bytes_per_second=weighted(lambda figures: figures.nvlink_bytes_per_second),
        )

    def last_windows(self, seconds: float) -> Sequence[float | None]:
        """Return `engine` of the windows that cover the last `seconds`; fewer if it has fewer."""
        return self.recent[-max(1, round(seconds / WINDOW_SECONDS)) :]


def _weighted_mean(values: Iterable[tuple[float | None, float]]) -> float | None:
    total = weights = 0.0
    for value, weight in values:
        if value is not None and weight > 0:
            total, weights = total + value * weight, weights + weight
    return total / weights if weights else None
