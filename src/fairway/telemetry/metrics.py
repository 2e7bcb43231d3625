"""The GPU metrics that Fairway reads: their names in dcgm-exporter, old and new, their scale and their sum.

DCGM 4.6 renamed most fields, and a site's counters file decides which names it exports. An older name and a
newer one never stand for one GPU at the same time, except in the window in which a site changes over: so both
are asked for and added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fairway.model.gpu_use import MetricCode


@dataclass(frozen=True, slots=True)
class GpuMetric:
    """One metric: what is kept of it is its integral over time."""

    code: MetricCode
    names: tuple[str, ...]
    """Names of one meaning and scale; a GPU has one of them, or two of a pair that are added up."""
    unit: str
    """What the integral over seconds is in."""
    help: str
    fallback: tuple[str, float] | None = None
    """A metric for GPUs that lack the others, and the factor to their scale."""
    parts: bool = False
    """Whether the names are parts of a whole, e.g. received and sent, and not an old and a new name."""


_PROF: Final = "DCGM_FI_PROF_"
_DEV: Final = "DCGM_FI_DEV_"

METRICS: Final = (
    GpuMetric(
        MetricCode.ENGINE,
        (f"{_PROF}GR_ENGINE_ACTIVE", f"{_PROF}GR_ENGINE_UTIL_RATIO"),
        "GPU-seconds",
        "Time in which the graphics or compute engine was busy.",
        fallback=(f"{_DEV}GPU_UTIL", 0.01),
    ),
    GpuMetric(
        MetricCode.SM,
        (f"{_PROF}SM_ACTIVE", f"{_PROF}SM_UTIL_RATIO"),
        "GPU-seconds",
        "Time in which the multiprocessors had work, as a mean over all of them.",
    ),
    GpuMetric(
        MetricCode.TENSOR,
        (f"{_PROF}PIPE_TENSOR_ACTIVE", f"{_PROF}TENSOR_UTIL_RATIO"),
        "GPU-seconds",
        "Time in which the tensor cores were busy.",
    ),
    GpuMetric(
        MetricCode.DRAM,
        (f"{_PROF}DRAM_ACTIVE", f"{_PROF}DRAM_UTIL_RATIO"),
        "GPU-seconds",
        "Time in which the memory interface moved data.",
    ),
    GpuMetric(MetricCode.MEMORY, (f"{_DEV}FB_USED",), "MiB-seconds", "Memory in use."),
    GpuMetric(
        MetricCode.POWER,
        (f"{_DEV}POWER_USAGE", f"{_DEV}BOARD_POWER_WATTS"),
        "joules",
        "Power draw of the board.",
    ),
    GpuMetric(
        MetricCode.PCIE,
        (f"{_PROF}PCIE_RX_BYTES", f"{_PROF}PCIE_TX_BYTES"),
        "bytes",
        "Data moved over PCIe, both ways.",
        parts=True,
    ),
    GpuMetric(
        MetricCode.NVLINK,
        (f"{_PROF}NVLINK_RX_BYTES", f"{_PROF}NVLINK_TX_BYTES"),
        "bytes",
        "Data moved over NVLink, both ways.",
        parts=True,
    ),
)

BY_CODE: Final = {metric.code: metric for metric in METRICS}
