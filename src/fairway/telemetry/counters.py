"""The counters file of dcgm-exporter with everything that Fairway reads, and what is missing without a row.

Old names: DCGM 4.6 and later know them too. Two names of one field must not both be listed: the exporter then
serves each line twice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

FILE_NAME: Final = "fairway-counters.csv"


@dataclass(frozen=True, slots=True)
class Counter:
    """One row: a field of DCGM."""

    names: tuple[str, ...]
    """The name to install, and others that do as well."""
    type: str
    help: str
    use: str
    """What Fairway cannot show without it; empty: many GPUs do not have it, or another row does as well."""

    @property
    def row(self) -> str:
        return f"{self.names[0]}, {self.type}, {self.help}"


_PROF: Final = "DCGM_FI_PROF_"
_DEV: Final = "DCGM_FI_DEV_"

USE: Final = (
    Counter(
        (f"{_PROF}GR_ENGINE_ACTIVE", f"{_PROF}GR_ENGINE_UTIL_RATIO"),
        "gauge",
        "Ratio of time the graphics engine is active.",
        "how busy GPUs and MIG instances are",
    ),
    Counter((f"{_DEV}GPU_UTIL", f"{_DEV}GPU_UTIL_RATIO"), "gauge", "GPU utilization (in %).", ""),
    Counter(
        (f"{_PROF}SM_ACTIVE", f"{_PROF}SM_UTIL_RATIO"),
        "gauge",
        "The ratio of cycles an SM has at least 1 warp assigned.",
        "SM utilisation, and whether kernels are too small",
    ),
    Counter(
        (f"{_PROF}PIPE_TENSOR_ACTIVE", f"{_PROF}TENSOR_UTIL_RATIO"),
        "gauge",
        "Ratio of cycles the tensor (HMMA) pipe is active.",
        "use of tensor cores",
    ),
    Counter(
        (f"{_PROF}DRAM_ACTIVE", f"{_PROF}DRAM_UTIL_RATIO"),
        "gauge",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        "use of the memory interface",
    ),
    Counter(
        (f"{_DEV}FB_USED",),
        "gauge",
        "Framebuffer memory used (in MiB).",
        "memory in use, and right-sizing",
    ),
    Counter(
        (f"{_DEV}POWER_USAGE", f"{_DEV}BOARD_POWER_WATTS"), "gauge", "Power draw (in W).", "power and energy"
    ),
    Counter(
        (f"{_PROF}PCIE_RX_BYTES",),
        "gauge",
        "The rate of data received over the PCIe bus in bytes per second.",
        "copies to GPUs",
    ),
    Counter(
        (f"{_PROF}PCIE_TX_BYTES",),
        "gauge",
        "The rate of data transmitted over the PCIe bus in bytes per second.",
        "copies from GPUs",
    ),
    Counter(
        (f"{_PROF}NVLINK_RX_BYTES",),
        "gauge",
        "The rate of data received over NVLink in bytes per second.",
        "",
    ),
    Counter(
        (f"{_PROF}NVLINK_TX_BYTES",),
        "gauge",
        "The rate of data transmitted over NVLink in bytes per second.",
        "",
    ),
)
HEALTH: Final = (
    Counter(
        ("DCGM_EXP_XID_ERRORS_COUNT",),
        "gauge",
        "Count of XID Errors within user-specified time window (see xid-count-window-size param).",
        "XID errors that are followed by another",
    ),
    Counter(
        (f"{_DEV}XID_ERRORS", f"{_DEV}XID_ERROR"),
        "gauge",
        "Value of the last XID error encountered.",
        "XID errors",
    ),
    Counter(
        (f"{_DEV}ECC_DBE_VOL_TOTAL",),
        "counter",
        "Total number of double-bit volatile ECC errors.",
        "double-bit memory errors",
    ),
    Counter(
        (f"{_DEV}ROW_REMAP_FAILURE", f"{_DEV}ROW_REMAP_FAILED"),
        "gauge",
        "Whether remapping of rows has failed",
        "memory rows that could not be remapped",
    ),
    Counter((f"{_DEV}ROW_REMAP_PENDING",), "gauge", "Whether remapping of rows is pending", ""),
    Counter(
        (f"{_DEV}NVLINK_RECOVERY_ERROR_COUNT_TOTAL", f"{_DEV}NVLINK_RECOVERY_ERROR_TOTAL"),
        "counter",
        "Total number of NVLink recovery errors.",
        "",
    ),
    Counter(
        (f"{_DEV}CLOCK_THROTTLE_REASONS", f"{_DEV}CLOCKS_EVENT_REASONS"),
        "gauge",
        "Bitmask of why the clocks are below what was asked.",
        "clocks that are held back",
    ),
    Counter(
        (f"{_DEV}GPU_TEMP", f"{_DEV}GPU_TEMP_CELSIUS"),
        "gauge",
        "GPU temperature (in C).",
        "temperature",
    ),
)
LABELS: Final = (Counter((f"{_DEV}SERIAL",), "label", "Device Serial Number", ""),)


def counters_text() -> str:
    """Return the file for dcgm-exporter's --collectors."""
    parts = [
        "# What Fairway reads of dcgm-exporter:  dcgm-exporter --collectors /etc/dcgm-exporter/" + FILE_NAME,
        "# --collect-interval 15000 --xid-count-window-size 300000",
        "# Form: DCGM field, type of Prometheus, help. Add rows of your own; never both names of one field.",
        "# --- what GPUs do",
        *(counter.row for counter in USE),
        "# --- whether they are well",
        *(counter.row for counter in HEALTH),
        "# --- on every line as a label: the same GPU is known after it moved to another node",
        *(counter.row for counter in LABELS),
    ]
    return "\n".join(parts) + "\n"


def missing(served: Collection[str]) -> tuple[Counter, ...]:
    """Return the rows of which nothing is served and without which something cannot be shown."""
    return tuple(
        counter
        for counter in (*USE, *HEALTH)
        if counter.use and not any(name in served for name in counter.names)
    )
