"""Compute the part of a GPU that a slice is, and the number of GPUs behind a set of slices.

A GPU cut into seven slices of an eighth of its memory each is still one GPU to pay for. So parts are
proportional to memory and scaled until those of a pool sum to the GPUs behind them: seven sevenths.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

from fairway.model.gpu import GpuType, MigProfile, layouts
from fairway.model.names import SliceName

_Counts = tuple[int, ...]
_ONE: Final = Fraction(1)
_MOST_LOOKS: Final = 20_000
"""Maximum number of combinations to search before settling for the best one found so far."""


def memory_part(gpu: GpuType, slice_: SliceName | None) -> Fraction:
    """Return the part of a GPU's memory that a slice takes; 1 for a whole GPU or an unknown slice."""
    if slice_ is None:
        return _ONE
    profile = gpu.profile(slice_)
    return _ONE if profile is None else gpu.fraction(profile)


def parts(
    gpu: GpuType, totals: Mapping[SliceName | None, int], gpu_seconds: int
) -> dict[SliceName | None, Fraction]:
    """Return the part of a GPU that each kind of device is: by memory, scaled to sum to the GPUs present.

    `totals` are the device-seconds of each kind, `gpu_seconds` those of the GPUs behind all of them.
    """
    by_memory = {slice_: memory_part(gpu, slice_) for slice_ in totals}
    if totals.keys() <= {None}:
        return by_memory
    there = sum((totals[slice_] * part for slice_, part in by_memory.items()), Fraction(0))
    if not there or not gpu_seconds:
        return by_memory
    scale = gpu_seconds / there
    return {slice_: part * scale for slice_, part in by_memory.items()}


def gpus_behind(gpu: GpuType, slices: Mapping[SliceName, int]) -> int:
    """Return the smallest number of GPUs that the slices of one node can be cut from.

    Slices unknown to the GPU type count as one GPU each. The search is exact for realistic nodes (GPUs cut in
    up to three different ways); for other mixtures it may return one GPU too many, never too few.
    """
    known = {name: n for name, n in slices.items() if n > 0 and gpu.profile(name) is not None}
    unknown = sum(n for name, n in slices.items() if n > 0 and name not in known)
    names = tuple(sorted(known))
    return unknown + _fewest(gpu, names, tuple(known[name] for name in names))


@lru_cache(maxsize=4096)
def _fewest(gpu: GpuType, names: tuple[SliceName, ...], counts: _Counts) -> int:
    if not any(counts):
        return 0
    profiles = tuple(p for p in (gpu.profile(name) for name in names) if p is not None)
    cuts = sorted(
        (tuple(layout.count(p) for p in profiles) for layout in layouts(gpu, profiles)),
        key=lambda cut: _memory(profiles, cut),
        reverse=True,
    )
    least = _at_least(gpu, profiles, counts)
    best = _greedy(profiles, cuts, counts)
    seen: dict[_Counts, int] = {}
    looks = [_MOST_LOOKS]
    if best > least:
        best = min(best, _search(gpu, profiles, cuts, counts, best, seen, looks))
    return best


def _memory(profiles: tuple[MigProfile, ...], counts: _Counts) -> int:
    return sum(n * p.memory_slices for n, p in zip(counts, profiles, strict=True))


def _at_least(gpu: GpuType, profiles: tuple[MigProfile, ...], counts: _Counts) -> int:
    """Return a lower bound on the GPUs needed."""
    compute = sum(n * p.compute_slices for n, p in zip(counts, profiles, strict=True))
    return max(
        -(-_memory(profiles, counts) // gpu.memory_slices),
        -(-compute // gpu.compute_slices),
        *(-(-n // p.max_instances) for n, p in zip(counts, profiles, strict=True)),
    )


def _greedy(profiles: tuple[MigProfile, ...], cuts: list[_Counts], counts: _Counts) -> int:
    """Return an upper bound: cut each GPU such that it covers the most memory of the remaining slices."""
    used = 0
    while any(counts):
        taken = max((_less(counts, cut)[1] for cut in cuts), key=lambda taken: _memory(profiles, taken))
        counts = tuple(n - t for n, t in zip(counts, taken, strict=True))
        used += 1
    return used


def _less(counts: _Counts, cut: _Counts) -> tuple[_Counts, _Counts]:
    """Return the slices that remain after one GPU is cut this way, and the slices taken from it."""
    taken = tuple(map(min, counts, cut))
    return tuple(n - t for n, t in zip(counts, taken, strict=True)), taken


def _search(
    gpu: GpuType,
    profiles: tuple[MigProfile, ...],
    cuts: list[_Counts],
    counts: _Counts,
    below: int,
    seen: dict[_Counts, int],
    looks: list[int],
) -> int:
    """Return the smallest number of GPUs for `counts` if less than `below`, otherwise `below`."""
    if not any(counts):
        return 0
    if counts in seen:
        return seen[counts]
    looks[0] -= 1
    least = _at_least(gpu, profiles, counts)
    if least >= below or looks[0] < 0:
        return below
    best = below
    for cut in cuts:
        left, taken = _less(counts, cut)
        if any(taken):
            best = min(best, 1 + _search(gpu, profiles, cuts, left, best - 1, seen, looks))
            if best == least:
                break
    if best < below:
        seen[counts] = best
    return best
