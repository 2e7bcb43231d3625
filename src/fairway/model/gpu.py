"""Define GPU types: memory, MIG profiles, their fraction of the GPU, and their possible placements.

The catalogue itself is in gpu_catalogue.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

from fairway.model.names import SliceName


class Vendor(StrEnum):
    """The vendor of a GPU, which determines its Kubernetes resource name."""

    NVIDIA = "nvidia"
    AMD = "amd"


_SHARED: Final = re.compile(r"shared-([2-9]|[1-9][0-9]{1,2})")


def replicas_of(slice_: str) -> int | None:
    """Return how many replicas share a GPU if `slice_` is one of them: 4 for `shared-4`, None for MIG."""
    found = _SHARED.fullmatch(slice_)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG profile: one size of slice that a GPU can be cut into. Replicas of a shared GPU have one too."""

    name: SliceName
    compute_slices: int
    memory_slices: int
    memory_mib: int
    starts: tuple[int, ...]
    """Memory slices at which an instance may start; it covers `memory_slices` from there."""
    max_instances: int = 1
    """The number of instances that fit on one GPU without any others."""

    @property
    def media(self) -> bool:
        """Return whether it takes the GPU's media engines (`+me`), which only one instance can have."""
        return "+me" in self.name


@dataclass(frozen=True, slots=True)
class GpuType:
    """A GPU model, by its name in fleet files."""

    name: str
    memory_gb: int
    products: tuple[str, ...] = ()
    """Names used by the driver and the GPU operator, e.g. `NVIDIA-A100-SXM4-80GB`."""
    memory_slices: int = 0
    """The number of memory slices under MIG; 0 if it has no MIG."""
    profiles: tuple[MigProfile, ...] = ()
    compute_slices: int = 0
    """The number of compute slices under MIG; on most models one fewer than memory slices."""
    vendor: Vendor = Vendor.NVIDIA

    def profile(self, name: str) -> MigProfile | None:
        """Return the profile named `name`. Returns None if this GPU does not have it.

        Every GPU can be shared: time-slicing and MPS need no MIG.
        """
        if (replicas := replicas_of(name)) is not None:
            memory = self.memory_gb * 1024 // replicas
            return MigProfile(SliceName(name), 0, 0, memory, (), max_instances=replicas)
        return next((p for p in self.profiles if p.name == name), None)

    def fraction(self, profile: MigProfile) -> Fraction:
        """Return the part of the GPU that a slice is: its share of the memory slices.

        Compute slices are not suitable: 3g + 3g leaves a seventh that cannot be used, and memory runs out
        first. Memory slices never overlap, so the parts of a GPU never add up to more than the whole.
        Replicas of a shared GPU are equal parts of it.
        """
        if (replicas := replicas_of(profile.name)) is not None:
            return Fraction(1, replicas)
        return Fraction(profile.memory_slices, self.memory_slices)


@dataclass(frozen=True, slots=True)
class Placed:
    """A slice placed on a GPU: it covers memory slices from `start`."""

    profile: MigProfile
    start: int

    @property
    def covers(self) -> range:
        """Return the memory slices that it takes."""
        return range(self.start, self.start + self.profile.memory_slices)


def fits(gpu: GpuType, profiles: Sequence[MigProfile]) -> tuple[Placed, ...] | None:
    """Place slices together on one GPU, in the order given. Returns None if they do not fit.

    The search is exact: it finds every placement that the hardware allows, whatever the order of the slices.
    """
    if not _within_limits(gpu, profiles):
        return None
    # Large slices have the fewest placements, so dead ends are found early; equal ones are adjacent.
    order = sorted(range(len(profiles)), key=lambda i: (-profiles[i].memory_slices, profiles[i].name))
    starts = _search([profiles[i] for i in order], 0, 0)
    if starts is None:
        return None
    start_of = dict(zip(order, starts, strict=True))
    return tuple(Placed(profile, start_of[i]) for i, profile in enumerate(profiles))


def layouts(gpu: GpuType, profiles: Iterable[MigProfile] | None = None) -> tuple[tuple[MigProfile, ...], ...]:
    """Return every maximal layout of the GPU: sets of slices that fit together with no room for another.

    Without `profiles`, the plain ones are used: variants (`+me`, `-me`, `+gfx`) take the same slices.
    """
    allowed = tuple(profiles) if profiles is not None else tuple(p for p in gpu.profiles if is_plain(p))
    return tuple(
        layout
        for layout in _fitting(gpu, allowed, ())
        if layout and all(fits(gpu, (*layout, more)) is None for more in allowed)
    )


def is_plain(profile: MigProfile) -> bool:
    """Return whether the profile is not a variant of another: `1g.10gb`, not `1g.10gb+me`."""
    return "+" not in profile.name and "-" not in profile.name


def _within_limits(gpu: GpuType, profiles: Sequence[MigProfile]) -> bool:
    return (
        sum(p.compute_slices for p in profiles) <= gpu.compute_slices
        and sum(p.memory_slices for p in profiles) <= gpu.memory_slices
        and sum(p.media for p in profiles) <= 1
        and all(n <= p.max_instances for p, n in Counter(profiles).items())
    )


def _search(left: Sequence[MigProfile], taken: int, not_before: int) -> tuple[int, ...] | None:
    """Find starts for the slices `left` that avoid the bit mask `taken`. Returns None if there are none."""
    if not left:
        return ()
    first, rest = left[0], left[1:]
    for start in first.starts:
        # For equal slices only ascending starts are tried: other orders give the same layout.
        if start < not_before:
            continue
        mask = ((1 << first.memory_slices) - 1) << start
        if mask & taken:
            continue
        same_follows = bool(rest) and rest[0] == first
        found = _search(rest, taken | mask, start + 1 if same_follows else 0)
        if found is not None:
            return (start, *found)
    return None


def _fitting(
    gpu: GpuType, allowed: tuple[MigProfile, ...], chosen: tuple[MigProfile, ...]
) -> Iterator[tuple[MigProfile, ...]]:
    """Yield each multiset of `allowed` that fits, once: a slice is only followed by itself or a later one."""
    yield chosen
    for i, profile in enumerate(allowed):
        longer = (*chosen, profile)
        if fits(gpu, longer) is not None:
            yield from _fitting(gpu, allowed[i:], longer)
