"""Identify the extended resources of GPUs and slices, and parse quantities."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from fairway.model.fleet import KubernetesPlace, Pool, class_resource
from fairway.model.gpu import replicas_of
from fairway.model.names import SliceName
from fairway.model.team import Supply

MIG_PREFIX: Final = "nvidia.com/mig-"

# The resources that vendors' device plugins register. A pool may name any other resource.
KNOWN_GPU_RESOURCES: Final = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    f"{MIG_PREFIX}*",
    "amd.com/gpu",
    "gpu.intel.com/*",
)
GPU_LIKE: Final = "/(.*[-_.])?(gpu|vgpu|mps|neuron(core|device)?|tpu|npu|gaudi)([-_.].*)?$"
"""A regular expression, also of CEL, for names that other device plugins use for GPUs and the like."""

# Quantities of counted things; the API server writes 2000 as "2k".
_SUFFIXES: Final = {
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
PRODUCT: Final = "nvidia.com/gpu.product"
"""The label in which GPU feature discovery reports a node's GPU product."""
REPLICAS: Final = "nvidia.com/gpu.replicas"
"""The label in which GPU feature discovery reports how many pods can share each GPU of a node."""
SHARED_SUFFIX: Final = ".shared"
"""The end of the resource of shared GPUs, if the device plugin renames it."""


@lru_cache(maxsize=1024)  # a cluster has a few dozen resource names, checked for each of its pods
def is_known_gpu(resource: str) -> bool:
    """Return whether a vendor's device plugin uses this name for GPUs or slices of them."""
    return any(fnmatchcase(resource, pattern) for pattern in KNOWN_GPU_RESOURCES)


def looks_like_gpu(resource: str) -> bool:
    """Return whether a resource is a GPU or the like by its name."""
    return is_known_gpu(resource) or re.search(GPU_LIKE, resource) is not None


def slice_of(resource: str) -> SliceName | None:
    """Return the MIG profile that a resource represents. Returns None for whole GPUs.

    Resource names cannot have the `+` of profiles such as `1g.10gb+me`; the device plugin writes `.` for it.
    """
    if not resource.startswith(MIG_PREFIX):
        return None
    size, _, extra = resource.removeprefix(MIG_PREFIX).partition("gb.")
    return SliceName(f"{size}gb+{extra}" if extra else size)


def replica_of(resource: str, labels: Mapping[str, str]) -> SliceName | None:
    """Return the slice that a device is on a node whose GPUs pods share by time-slicing or MPS.

    The device plugin offers each GPU as several devices, with or without another name. Returns None if the
    node does not say that it does.
    """
    if resource.removesuffix(SHARED_SUFFIX) != "nvidia.com/gpu":
        return None
    slice_ = SliceName(f"shared-{labels.get(REPLICAS, '')}")
    return slice_ if replicas_of(slice_) is not None else None


def resource_of(slice_: SliceName) -> str:
    """Return the resource under which the device plugin offers a MIG profile."""
    return MIG_PREFIX + slice_.replace("+", ".")


def resource(supply: Supply, pool: Pool) -> str:
    """Return the name under which nodes offer the devices of a supply, or Kueue counts their claims."""
    place = pool.place
    if not isinstance(place, KubernetesPlace):
        return "nvidia.com/gpu"
    if supply.slice is None or replicas_of(supply.slice) is not None:
        return place.resource
    device_class = place.slice_classes.get(supply.slice)
    return resource_of(supply.slice) if device_class is None else class_resource(device_class)


def resources_of(pool: Pool) -> tuple[str, ...]:
    """Return the resources a pool claims on its nodes: one for each slice profile, or that of whole GPUs."""
    if not isinstance(pool.place, KubernetesPlace):
        return ()
    return tuple(resource(supply, pool) for supply in pool.supplies)


def supply_of(name: str, pool: Pool) -> Supply | None:
    """Return the supply of a pool's resource. Returns None if the pool does not claim it."""
    return next((supply for supply in pool.supplies if resource(supply, pool) == name), None)


def supply_on(name: str, pool: Pool, labels: Mapping[str, str]) -> Supply | None:
    """Return the supply of a pool's resource on a node with these labels, which tell whether GPUs are shared.

    A node may share its GPUs in another way than the pool says. A pool of whole GPUs has shared ones of
    another name, too: they are the same GPUs. Returns None if the pool does not claim the resource.
    """
    supply = supply_of(name, pool)
    replica = replica_of(name, labels)
    if replica is None:
        return supply
    if supply is None and not pool.slices:
        supply = supply_of(name.removesuffix(SHARED_SUFFIX), pool)
    return None if supply is None else Supply(pool.name, replica)


def device_class_of(supply: Supply, pool: Pool) -> str | None:
    """Return the DeviceClass by which pods claim devices of a supply. Returns None for extended resources."""
    place = pool.place
    if not isinstance(place, KubernetesPlace):
        return None
    return place.device_class if supply.slice is None else place.slice_classes.get(supply.slice)


def is_claimed(supply: Supply, pool: Pool) -> bool:
    """Return whether pods claim devices of a supply, instead of naming them in their limits."""
    return device_class_of(supply, pool) is not None


def claims_devices(pool: Pool) -> bool:
    """Return whether pods claim the devices of a pool."""
    return any(is_claimed(supply, pool) for supply in pool.supplies)


def device_classes(pools: Iterable[Pool]) -> dict[str, str]:
    """Return the resource by which Kueue counts each DeviceClass that a pool names."""
    classes: dict[str, str] = {}
    for pool in pools:
        if isinstance(place := pool.place, KubernetesPlace):
            if place.device_class is not None:
                classes[place.device_class] = place.resource
            classes |= {c: class_resource(c) for c in place.slice_classes.values()}
    return classes


def claimed_resources(pools: Iterable[Pool]) -> frozenset[str]:
    """Return every resource that some pool claims."""
    return frozenset(r for pool in pools for r in resources_of(pool))


@lru_cache(maxsize=1024)  # "8" on every node
def whole_number(quantity: str) -> int:
    """Parse a quantity of devices; anything that is no such number counts as 0."""
    digits = quantity.rstrip("kKMGTi")
    factor = _SUFFIXES.get(quantity[len(digits) :], 1)
    try:
        return int(Decimal(digits) * factor)
    except (InvalidOperation, ValueError, OverflowError):
        return 0
