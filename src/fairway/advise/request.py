"""Find the smallest request of GPUs or slices that holds what a job used, and format it as flags. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Final

from fairway.model.gpu import GpuType, MigProfile, is_plain

MEMORY_MARGIN: Final = 1.1
"""A request must hold this many times the memory that was used at peak."""


def request_text(gpus: int | str, nodes: int = 1) -> str:
    """Format a request as flags of `fairway run`: `--gpus 1g.10gb`, `--nodes 2 --gpus 8`."""
    return f"--gpus {gpus}" if nodes == 1 else f"--nodes {nodes} --gpus {gpus}"


def fitting_slices(gpu: GpuType, memory_mib: float) -> Iterator[MigProfile]:
    """Yield the MIG profiles below the whole GPU that hold `memory_mib` and a margin, smallest first.

    Of those with the same memory, the one with more multiprocessors comes last.
    """
    smaller = (p for p in gpu.profiles if is_plain(p) and p.memory_slices < gpu.memory_slices)
    for profile in sorted(smaller, key=lambda p: (p.memory_slices, p.compute_slices)):
        if profile.memory_mib >= MEMORY_MARGIN * memory_mib:
            yield profile


def smallest_request(memory_mib: float, gpu: GpuType | None) -> str:
    """Return flags that request a slice of `gpu` with enough memory, or where it has none a smaller GPU."""
    if gpu is not None and (profile := next(fitting_slices(gpu, memory_mib), None)) is not None:
        return request_text(profile.name)
    needed = max(1, ceil(MEMORY_MARGIN * memory_mib / 1024))
    half = gpu.memory_gb // 2 if gpu is not None else 0
    return request_text(f"{needed}GB..{half}GB" if needed <= half else f"{needed}GB..")
