"""GPU types: memory, MIG profiles, their fraction of the GPU, and where on it they may sit.

The catalogue itself is in gpu_catalogue.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from fairway.model.names import SliceName


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One way to cut a slice off a GPU."""

    name: SliceName
    compute_slices: int
    memory_slices: int
    memory_mib: int
    starts: tuple[int, ...]
    """Memory slices at which an instance may begin; it covers `memory_slices` from there."""


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

    def profile(self, name: str) -> MigProfile | None:
        """The profile called `name`, if this GPU can be cut so."""
        return next((p for p in self.profiles if p.name == name), None)

    def fraction(self, profile: MigProfile) -> Fraction:
        """The slice's part of the GPU: the share of memory slices it takes from everybody else."""
        return Fraction(profile.memory_slices, self.memory_slices)
