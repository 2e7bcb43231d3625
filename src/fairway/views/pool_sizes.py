"""Return the observed sizes of pools: a fleet file states those of virtual clusters only. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from fairway.model.fleet import Fleet, Pool, VirtualPlace
from fairway.model.names import PoolName, SliceName
from fairway.wire import fleet as wire


def observed_sizes(fleet: Fleet, seen: Iterable[wire.Pool]) -> dict[PoolName, VirtualPlace]:
    """Return the size of each pool that is not virtual and was observed, as if all its nodes were alike."""
    by_name = {pool.name: pool for pool in seen}
    found = {}
    for pool in fleet.pools:
        counts = by_name.get(pool.name)
        if counts is None or isinstance(pool.place, VirtualPlace):
            continue
        size = _sliced(pool, counts) if pool.slices else _whole(counts)
        if size is not None:
            found[pool.name] = size
    return found


def _whole(seen: wire.Pool) -> VirtualPlace | None:
    counts = seen.gpus
    if counts is None or not counts.nodes or not counts.total:
        return None
    return VirtualPlace(counts.nodes, ceil(counts.total / counts.nodes))


def _sliced(pool: Pool, seen: wire.Pool) -> VirtualPlace | None:
    """Return a size whose GPUs are all cut alike: as many as the slices of a node need."""
    cuts = [cut for cut in seen.slices or () if cut.total and cut.nodes]
    if not cuts:
        return None
    nodes = max(cut.nodes for cut in cuts)
    profiles = {cut.slice: pool.gpu.profile(SliceName(cut.slice)) for cut in cuts}
    each = {cut.slice: ceil(cut.total / nodes) for cut in cuts}
    parts = sum(count / (p.max_instances if (p := profiles[name]) else 1) for name, count in each.items())
    gpus = max(1, ceil(parts))
    return VirtualPlace(nodes, gpus, {SliceName(name): ceil(count / gpus) for name, count in each.items()})
