"""Format what GPUs did: those of a job side by side. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairway.cli.output.format import Column, Fit, ScreenLine, table
from fairway.views.gpu_use import gpu_text, mark_text, memory_text, percent_text, watts_text

if TYPE_CHECKING:
    from fairway.wire import gpu_use as wire

MAX_GPUS: Final = 32
"""GPUs that `describe` lists; those that differ from the others come first."""
USE_TITLES: Final = ("BUSY %", "IDLE %", "PEAK GIB")
"""Columns of a list of jobs, over the job's life; `describe` has all metrics."""
_MAX_EXPLAINED: Final = 5
"""GPUs whose difference is explained in a sentence below the table."""
_COLUMNS: Final = [
    Column("  NODE", fit=Fit.MIDDLE),
    *Column.numbers("GPU", "ENGINE", "SM", "TENSOR", "DRAM", "GIB", "WATT", "IDLE"),
    Column("NOTE", fit=Fit.END, hide_if_empty=True),
]


def gpu_lines(found: wire.JobUse, width: int) -> list[ScreenLine]:
    """Format the GPUs of a job side by side: now and over its life, those that differ first."""
    heading, *lines = table(_COLUMNS, [_row(gpu) for gpu in found.gpus], width)
    shown = "" if len(found.gpus) == found.gpus_in_all else f"; {len(found.gpus)} of {found.gpus_in_all}"
    title = f"GPUs (% of the time: last five minutes / whole job{shown})"
    said = [ScreenLine(title), ScreenLine(heading)]
    said += [
        ScreenLine(line, "yellow" if gpu.mark else None) for line, gpu in zip(lines, found.gpus, strict=True)
    ]
    marked = [gpu for gpu in found.gpus if gpu.mark is not None]
    said += [
        ScreenLine(f"  {gpu.node} GPU {gpu_text(gpu)} {mark_text(gpu)}") for gpu in marked[:_MAX_EXPLAINED]
    ]
    return said


def use_cells(use: wire.Use | None) -> list[str]:
    """Format a job's use for the columns of `USE_TITLES`; empty if no metrics of its cluster are read."""
    if use is None:
        return [""] * len(USE_TITLES)
    idle = use.idle_gpu_seconds / use.measured_gpu_seconds if use.measured_gpu_seconds else None
    return [percent_text(use.engine), percent_text(idle), memory_text(use.memory_peak_mib)]


def now_text(use: wire.Use) -> str:
    """Format how busy the GPUs were in the last window, in percent; a dash if nothing was measured."""
    return percent_text(use.latest.engine if use.latest else None)


def _row(gpu: wire.GpuUse) -> list[str]:
    from fairway.wire.gpu_use import Means

    now = gpu.latest or Means()
    idle = gpu.idle_gpu_seconds / gpu.measured_gpu_seconds if gpu.measured_gpu_seconds else None
    pairs = ((now.engine, gpu.engine), (now.sm, gpu.sm), (now.tensor, gpu.tensor), (now.dram, gpu.dram))
    return [
        f"  {gpu.node}",
        gpu_text(gpu),
        *(f"{percent_text(latest)}/{percent_text(life)}" for latest, life in pairs),
        f"{memory_text(now.memory_mib)}/{memory_text(gpu.memory_mib)}",
        f"{watts_text(now.power_watts)}/{watts_text(gpu.power_watts)}",
        percent_text(idle),
        gpu.mark or ("earlier" if gpu.latest is None else ""),
    ]
