"""GPU types: memory, MIG profiles, their fraction of the GPU, and where on it they may sit.

The catalogue itself is in gpu_catalogue.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from fairway.model.names import SliceName


class Vendor(StrEnum):
    """Who makes a GPU; decides what Kubernetes calls it."""

    NVIDIA = "nvidia"
    AMD = "amd"


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One way to cut a slice off a GPU."""

    name: SliceName
    compute_slices: int
    memory_slices: int
    memory_mib: int
    starts: tuple[int, ...]
    """Memory slices at which an instance may begin; it covers `memory_slices` from there."""
    max_instances: int = 1
    """How many of these one GPU can hold when it holds nothing else."""

    @property
    def media(self) -> bool:
        """Whether it takes the GPU's media engines (`+me`), of which there is one set to give away."""
        return "+me" in self.name


@dataclass(frozen=True, slots=True)
class GpuType:
    """A model of GPU, by the name used in fleet files."""

    name: str
    memory_gb: int
    products: tuple[str, ...] = ()
    """Names the driver and the GPU operator use, e.g. `NVIDIA-A100-SXM4-80GB`."""
    memory_slices: int = 0
    """Into how many memory slices MIG divides it; 0: no MIG."""
    profiles: tuple[MigProfile, ...] = ()
    compute_slices: int = 0
    """How many compute slices MIG can hand out; one fewer than memory slices on most."""
    vendor: Vendor = Vendor.NVIDIA

    def profile(self, name: str) -> MigProfile | None:
        """The profile called `name`, if this GPU can be cut so."""
        return next((p for p in self.profiles if p.name == name), None)

    def fraction(self, profile: MigProfile) -> Fraction:
        """The slice's part of the GPU: the share of memory slices it takes from everybody else.

        Compute slices would not do: 3g + 3g leaves a seventh that nobody can use, and memory is what runs
        out first. Memory slices never overlap, so the parts of a GPU never add up to more than the whole.
        """
        return Fraction(profile.memory_slices, self.memory_slices)


@dataclass(frozen=True, slots=True)
class Placed:
    """A slice at its place: it covers memory slices from `start`."""

    profile: MigProfile
    start: int

    @property
    def covers(self) -> range:
        """The memory slices it takes."""
        return range(self.start, self.start + self.profile.memory_slices)


def fits(gpu: GpuType, profiles: Sequence[MigProfile]) -> tuple[Placed, ...] | None:
    """Where these slices can sit together on one GPU, in the order given; None if they cannot.

    An exact search: whatever the hardware allows is found, in whatever order the slices are named.
    """
    if not _within_limits(gpu, profiles):
        return None
    # Large slices have the fewest places, so a dead end shows early; equal ones stand side by side.
    order = sorted(range(len(profiles)), key=lambda i: (-profiles[i].memory_slices, profiles[i].name))
    starts = _search([profiles[i] for i in order], 0, 0)
    if starts is None:
        return None
    start_of = dict(zip(order, starts, strict=True))
    return tuple(Placed(profile, start_of[i]) for i, profile in enumerate(profiles))


def layouts(gpu: GpuType, profiles: Iterable[MigProfile] | None = None) -> tuple[tuple[MigProfile, ...], ...]:
    """Every full way to cut the GPU: sets of slices that fit together and leave room for no other.

    Without `profiles`, the plain ones are used: variants (`+me`, `-me`, `+gfx`) cost the same slices.
    """
    allowed = tuple(profiles) if profiles is not None else tuple(p for p in gpu.profiles if is_plain(p))
    return tuple(
        layout
        for layout in _fitting(gpu, allowed, ())
        if layout and all(fits(gpu, (*layout, more)) is None for more in allowed)
    )


def is_plain(profile: MigProfile) -> bool:
    """Whether the profile is no variant of another: `1g.10gb`, not `1g.10gb+me`."""
    return "+" not in profile.name and "-" not in profile.name


def _within_limits(gpu: GpuType, profiles: Sequence[MigProfile]) -> bool:
    return (
        sum(p.compute_slices for p in profiles) <= gpu.compute_slices
        and sum(p.memory_slices for p in profiles) <= gpu.memory_slices
        and sum(p.media for p in profiles) <= 1
        and all(n <= p.max_instances for p, n in Counter(profiles).items())
    )


def _search(left: Sequence[MigProfile], taken: int, not_before: int) -> tuple[int, ...] | None:
    """Starts for the slices `left`, beside those in the bit mask `taken`."""
    if not left:
        return ()
    first, rest = left[0], left[1:]
    for start in first.starts:
        # Of equal slices only ascending starts are tried: the others are the same layout again.
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
    """Each multiset of `allowed` that fits, once: a slice is only followed by itself or a later one."""
    yield chosen
    for i, profile in enumerate(allowed):
        longer = (*chosen, profile)
        if fits(gpu, longer) is not None:
            yield from _fitting(gpu, allowed[i:], longer)
