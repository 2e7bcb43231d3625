"""GPUs behind slices, and what part of a GPU a slice is.

A GPU cut into seven slices of an eighth of its memory each is still one GPU to pay for. So parts are by
memory and then made larger together until those of a pool sum to the GPUs behind them: seven sevenths.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from fairway.model.gpu import GpuType
from fairway.model.names import SliceName


def gpus_behind(gpu: GpuType, slices: Mapping[SliceName, int]) -> int:
    """The fewest GPUs that the slices of one node can be cut from."""
    raise NotImplementedError


def memory_part(gpu: GpuType, slice_: SliceName | None) -> Fraction:
    """The part of a GPU's memory that a slice takes; 1 for a whole GPU and for a slice that is not known."""
    if slice_ is None:
        return Fraction(1)
    profile = gpu.profile(slice_)
    return Fraction(1) if profile is None else gpu.fraction(profile)


def parts(
    gpu: GpuType, totals: Mapping[SliceName | None, int], gpu_seconds: int
) -> dict[SliceName | None, Fraction]:
    """What part of a GPU each kind of device is, when there were `totals` device-seconds of them on
    `gpu_seconds`: by memory, such that all of them sum to the GPUs."""
    raise NotImplementedError
