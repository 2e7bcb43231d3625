"""Build `JobFigures` for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairway.model.gpu_use import WINDOW_SECONDS
from fairway.model.names import NodeName
from fairway.model.telemetry import GpuFigures, HeldGpu, HostFigures, JobFigures

HOUR = 3600.0
GOOD = GpuFigures(
    measured_seconds=2 * HOUR,
    engine=0.96,
    sm=0.85,
    tensor=0.42,
    dram=0.45,
    memory_used_mib=60_000,
    memory_peak_mib=70_000,
    memory_total_mib=81_920,
    power_watts=380,
    pcie_bytes_per_second=2e8,
    nvlink_bytes_per_second=8e9,
)


def gpu(**changed: Any) -> GpuFigures:
    """Return the figures of a well-used GPU, with some of them changed."""
    return replace(GOOD, **changed)


def job(
    *gpus: GpuFigures,
    nodes: int = 1,
    seconds: float = 2 * HOUR,
    coverage: float = 1.0,
    cpu: float | None = 0.3,
    io: float | None = 0.01,
    cpus: int | None = 8,
    recent: tuple[float | None, ...] | None = None,
    **changed: Any,
) -> JobFigures:
    """Return the figures of a job over two hours in which every window is as the mean."""
    gpus = gpus or (GOOD,)
    per_node = len(gpus) // nodes
    held = tuple(HeldGpu(NodeName(f"n{i // per_node + 1}"), i % per_node, one) for i, one in enumerate(gpus))
    figures = JobFigures(
        span_seconds=seconds,
        held_gpu_seconds=seconds * len(gpus),
        measured_gpu_seconds=seconds * len(gpus) * coverage,
        gpus=held,
        nodes=nodes,
        gpus_per_node=per_node,
        host=HostFigures(cpu, io, cpus),
        **changed,
    )
    if recent is None:
        recent = (figures.mean().engine,) * int(seconds // WINDOW_SECONDS)
    return replace(figures, recent=recent)
