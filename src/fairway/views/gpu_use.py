"""Format what GPUs did, the same in the CLI and on the pages. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairway.model.gpu_use import GangMark

if TYPE_CHECKING:
    from fairway.wire import gpu_use as wire

NOT_MEASURED: Final = "-"
_MIB_IN_GIB: Final = 1024
_MARKS: Final = {GangMark.LAGS: "lags", GangMark.AHEAD: "is ahead"}
_SMALL: Final = 0.005


def percent_text(ratio: float | None) -> str:
    """Format a ratio without its unit, for columns: `83`; a dash if it was not measured."""
    return NOT_MEASURED if ratio is None else f"{100 * ratio:.0f}"


def memory_text(mib: float | None) -> str:
    """Format memory in GiB without its unit: `7.2`, `41`."""
    if mib is None:
        return NOT_MEASURED
    gib = mib / _MIB_IN_GIB
    return f"{gib:.1f}" if gib < 10 else f"{gib:.0f}"


def watts_text(watts: float | None) -> str:
    """Format power without its unit."""
    return NOT_MEASURED if watts is None else f"{watts:.0f}"


def hours_text(gpu_seconds: float) -> str:
    """Format GPU-seconds as hours: `0.3`, `1,280`."""
    hours = gpu_seconds / 3600
    return f"{hours:,.1f}" if hours < 100 else f"{hours:,.0f}"


def gpu_text(gpu: wire.GpuUse) -> str:
    """Format which GPU of a node it is: `3`, or `3 slice 1`."""
    return f"{gpu.gpu} slice {gpu.instance}" if gpu.instance else gpu.gpu


def mark_text(gpu: wire.GpuUse) -> str:
    """Format how a GPU differs from the others of its job: `lags: engine 3 % busy, the others 91 %`."""
    return f"{_MARKS[gpu.mark]}: {gpu.mark_text}" if gpu.mark is not None else ""


def use_text(use: wire.Use) -> str:
    """Summarize a job's use in one sentence; what was not measured is said to be just that."""
    if not use.measured_gpu_seconds:
        return "not measured"
    parts = [f"engine busy {percent_text(use.engine)} % of the time"]
    if use.latest is not None and use.latest.engine is not None:
        parts.append(f"{percent_text(use.latest.engine)} % in the last five minutes measured")
    held = use.held_gpu_seconds
    idle = use.idle_gpu_seconds / held
    if idle >= _SMALL:
        parts.append(f"{percent_text(idle)} % of {hours_text(held)} GPU-hours idle")
    unmeasured = use.unmeasured_gpu_seconds / held
    if unmeasured >= _SMALL:
        parts.append(f"{percent_text(unmeasured)} % not measured")
    return ", ".join(parts)
