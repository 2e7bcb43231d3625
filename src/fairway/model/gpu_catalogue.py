"""Define the built-in GPU types.

Slices of A30, A100, H100-80GB, H200 and B200 follow NVIDIA's documentation (for B200 and H200 the placements
of H100 are assumed, not verified on hardware). For H100-94GB, H100-96GB, GH200, GB200 and RTX-PRO-6000
NVIDIA's MIG manager gives names and counts; their placements are those of the GPU with the same counts. If no
measured memory is known, a slice has the GB of its name. A fleet file can add types under `gpu_types`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fairway.model.gpu import GpuType, MigProfile, Vendor
from fairway.model.names import SliceName

_EVERY: Final = (0, 1, 2, 3, 4, 5, 6)
# Compute slices, memory slices, starts, max instances: the same on every GPU with seven compute slices.
_SEVEN: Final = (
    (1, 1, _EVERY, 7),
    (1, 2, (0, 2, 4, 6), 4),
    (2, 2, (0, 2, 4), 3),
    (3, 4, (0, 4), 2),
    (4, 4, (0,), 1),
    (7, 8, (0,), 1),
)
_FOUR: Final = (
    (1, 1, (0, 1, 2, 3), 4),
    (2, 2, (0, 2), 2),
    (4, 4, (0,), 1),
)


def _variant(profile: MigProfile, suffix: str, most: int) -> MigProfile:
    return MigProfile(
        SliceName(profile.name + suffix),
        profile.compute_slices,
        profile.memory_slices,
        profile.memory_mib,
        profile.starts,
        most,
    )


def _cut(
    shape: tuple[tuple[int, int, tuple[int, ...], int], ...],
    gigabytes: tuple[int, ...],
    mebibytes: tuple[int, ...] | None = None,
) -> tuple[MigProfile, ...]:
    """Build the plain profiles of a GPU from a shape, the GB in the names and the measured memory."""
    mebibytes = mebibytes or tuple(gb * 1024 for gb in gigabytes)
    return tuple(
        MigProfile(SliceName(f"{compute}g.{gb}gb"), compute, memory, mib, starts, most)
        for (compute, memory, starts, most), gb, mib in zip(shape, gigabytes, mebibytes, strict=True)
    )


def _seven(
    name: str,
    memory_gb: int,
    products: tuple[str, ...],
    gigabytes: tuple[int, ...],
    mebibytes: tuple[int, ...] | None = None,
) -> GpuType:
    """Build a GPU type with seven compute and eight memory slices; one `1g` may have the media engines."""
    smallest, *larger = _cut(_SEVEN, gigabytes, mebibytes)
    profiles = (smallest, _variant(smallest, "+me", 1), *larger)
    return GpuType(name, memory_gb, products, memory_slices=8, profiles=profiles, compute_slices=7)


def _a30() -> GpuType:
    one, two, four = _cut(_FOUR, (6, 12, 24), (5836, 11672, 23344))
    profiles = (one, _variant(one, "+me", 1), two, _variant(two, "+me", 1), four)
    return GpuType("A30", 24, ("NVIDIA-A30",), memory_slices=4, profiles=profiles, compute_slices=4)


def _rtx_pro_6000() -> GpuType:
    one, two, four = _cut(_FOUR, (24, 48, 96))
    profiles = (
        one,
        _variant(one, "+me", 1),
        _variant(one, "+me.all", 1),
        _variant(one, "-me", 4),
        _variant(one, "+gfx", 4),
        two,
        _variant(two, "+me.all", 1),
        _variant(two, "-me", 2),
        _variant(two, "+gfx", 2),
        four,
        _variant(four, "+gfx", 1),
    )
    products = (
        "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
        "NVIDIA-RTX-PRO-6000-Blackwell-Workstation-Edition",
        "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition",
    )
    return GpuType("RTX-PRO-6000", 96, products, memory_slices=4, profiles=profiles, compute_slices=4)


_WITH_MIG: Final = (
    _a30(),
    _seven(
        "A100-40GB",
        40,
        ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"),
        (5, 10, 10, 20, 20, 40),
        (4864, 9856, 9856, 19968, 19968, 40192),
    ),
    _seven(
        "A100-80GB",
        80,
        ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe", "NVIDIA-A100-PCIE-80GB"),
        (10, 20, 20, 40, 40, 80),
        (9856, 19968, 19968, 40192, 40192, 80384),
    ),
    _seven(
        "H100-80GB",
        80,
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"),
        (10, 20, 20, 40, 40, 80),
    ),
    _seven("H100-94GB", 94, ("NVIDIA-H100-NVL",), (12, 24, 24, 47, 47, 94)),
    _seven("H100-96GB", 96, (), (12, 24, 24, 48, 48, 96)),
    _seven("GH200", 96, ("NVIDIA-GH200-480GB",), (12, 24, 24, 48, 48, 96)),
    _seven(
        "H200-141GB",
        141,
        ("NVIDIA-H200", "NVIDIA-H200-NVL"),
        (18, 35, 35, 71, 71, 141),
    ),
    _seven("B200-180GB", 180, ("NVIDIA-B200",), (23, 45, 45, 90, 90, 180)),
    _seven("GB200-186GB", 186, ("NVIDIA-GB200",), (23, 47, 47, 93, 93, 186)),
    _rtx_pro_6000(),
)

_WITHOUT_MIG: Final = (
    GpuType("L4", 24, ("NVIDIA-L4",)),
    GpuType("L40", 48, ("NVIDIA-L40",)),
    GpuType("L40S", 48, ("NVIDIA-L40S",)),
    GpuType("A10", 24, ("NVIDIA-A10",)),
    GpuType("A10G", 24, ("NVIDIA-A10G",)),
    GpuType("A40", 48, ("NVIDIA-A40",)),
    GpuType("T4", 16, ("Tesla-T4",)),
    GpuType("V100-16GB", 16, ("Tesla-V100-SXM2-16GB", "Tesla-V100-PCIE-16GB")),
    GpuType("V100-32GB", 32, ("Tesla-V100-SXM2-32GB", "Tesla-V100-PCIE-32GB")),
    GpuType("RTX-A6000", 48, ("NVIDIA-RTX-A6000",)),
    GpuType("RTX-6000-Ada", 48, ("NVIDIA-RTX-6000-Ada-Generation",)),
    GpuType("RTX-4090", 24, ("NVIDIA-GeForce-RTX-4090",)),
    GpuType("MI210", 64, vendor=Vendor.AMD),
    # An MI250X has two dies of 64 GB; engines count dies, and so does a pool.
    GpuType("MI250X", 64, vendor=Vendor.AMD),
    GpuType("MI300X", 192, vendor=Vendor.AMD),
    GpuType("MI325X", 256, vendor=Vendor.AMD),
)

CATALOGUE: Final[Mapping[str, GpuType]] = MappingProxyType(
    {gpu.name: gpu for gpu in (*_WITH_MIG, *_WITHOUT_MIG)}
)
"""Built-in GPU types by their name in fleet files."""
