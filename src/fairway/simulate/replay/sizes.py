"""Give every pool of a fleet a size, which a fleet file states for virtual clusters only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fairway.model.errors import Refused
from fairway.model.fleet import Fleet, Pool, VirtualPlace
from fairway.model.names import PoolName

PoolSizes = Mapping[PoolName, VirtualPlace]
"""Nodes, GPUs on each, slices of each GPU, and nodes in a rack, by pool."""


def sizes_of(fleet: Fleet) -> dict[PoolName, VirtualPlace]:
    """Return the sizes that the fleet file itself states: those of pools on virtual clusters."""
    return {pool.name: pool.place for pool in fleet.pools if isinstance(pool.place, VirtualPlace)}


def size_of(pool: Pool) -> VirtualPlace:
    """Return the size of a pool of a fleet from `with_sizes`."""
    if not isinstance(pool.place, VirtualPlace):
        raise TypeError(f"pool {pool.name} has no size")
    return pool.place


def with_sizes(fleet: Fleet, sizes: PoolSizes) -> Fleet:
    """Return the fleet with every pool on a virtual place of this size, and without pools of no nodes.

    Raises Refused if the size of a pool is not known.
    """
    known = sizes_of(fleet) | dict(sizes)
    missing = [pool.name for pool in fleet.pools if pool.name not in known]
    if missing:
        raise Refused(
            "PoolSizeUnknown",
            f"the size of {', '.join(missing)} is not known: the fleet file does not state it",
            f"state it:  fairway simulate … --nodes {missing[0]}=16x8   (16 nodes with 8 GPUs each)",
        )
    pools = tuple(_sized(pool, known[pool.name]) for pool in fleet.pools if known[pool.name].nodes > 0)
    return replace(fleet, pools=pools)


def _sized(pool: Pool, size: VirtualPlace) -> Pool:
    if pool.slices and not size.slices_per_gpu:
        counts = {s: profile.max_instances for s in pool.slices[:1] if (profile := pool.gpu.profile(s))}
        size = replace(size, slices_per_gpu=counts)
    return replace(pool, place=size, slices=tuple(size.slices_per_gpu))
