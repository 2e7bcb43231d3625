"""Convert facts of nodes and pods to nodes of the model: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairway.engines.kubernetes.nodes.devices import resources_of, slice_of
from fairway.engines.kubernetes.nodes.facts import NodeFacts, PodDevices
from fairway.model.fleet import KubernetesPlace, Pool
from fairway.model.names import NodeName, PoolName
from fairway.model.observation import Devices, Health, Node

_NOTHING: Final[Counter[str]] = Counter()


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two pools that claim the same devices: the first one in the file gets them."""

    resource: str
    gets: PoolName
    misses: PoolName


@dataclass(frozen=True, slots=True)
class ObservedNodes:
    """The nodes of a cluster, and the devices on them that several pools of the fleet claim."""

    nodes: tuple[Node, ...]
    overlaps: frozenset[Overlap]


def observe_nodes(
    nodes: Mapping[str, NodeFacts], pods: Iterable[PodDevices], pools: tuple[Pool, ...]
) -> ObservedNodes:
    """Return every node of the cluster with its devices by pool, in order of names.

    Nodes that are equal in labels, devices and use share one value: computed once, stored once.
    """
    in_use: dict[str, Counter[str]] = {}
    for pod in pods:
        in_use.setdefault(pod.node, Counter()).update(dict(pod.devices))
    observed: list[Node] = []
    overlaps: set[Overlap] = set()
    cache: dict[object, tuple[Devices, ...]] = {}
    for name, facts in sorted(nodes.items()):
        used = in_use.get(name, _NOTHING)
        key = (facts.labels, facts.capacity, facts.allocatable, tuple(sorted(used.items())))
        devices = cache.get(key)
        if devices is None:
            devices = cache[key] = _devices(facts, used, _owners(facts, pools, overlaps))
        health, reason = _health(facts)
        observed.append(Node(NodeName(name), health, reason, devices))
    return ObservedNodes(tuple(observed), frozenset(overlaps))


def _owners(facts: NodeFacts, pools: tuple[Pool, ...], overlaps: set[Overlap]) -> dict[str, PoolName]:
    """Return the pool that gets each resource of a node."""
    owners: dict[str, PoolName] = {}
    offered = {r for r, _ in facts.capacity}
    for pool in pools:
        if not _matches(pool, facts):
            continue
        for resource in resources_of(pool):
            first = owners.setdefault(resource, pool.name)
            if first != pool.name and resource in offered:
                overlaps.add(Overlap(resource, gets=first, misses=pool.name))
    return owners


def _matches(pool: Pool, facts: NodeFacts) -> bool:
    place = pool.place
    return isinstance(place, KubernetesPlace) and place.node_labels.items() <= dict(facts.labels).items()


def _health(facts: NodeFacts) -> tuple[Health, str]:
    if not facts.ready:
        also = f"; {facts.cordon_reason}" if facts.cordoned else ""
        return Health.DOWN, facts.not_ready_reason + also
    if facts.cordoned:
        return Health.DRAINED, facts.cordon_reason
    return Health.READY, ""


def _devices(facts: NodeFacts, in_use: Counter[str], owners: Mapping[str, PoolName]) -> tuple[Devices, ...]:
    capacity, allocatable = dict(facts.capacity), dict(facts.allocatable)
    found = [
        Devices(
            pool=owners.get(resource),
            kind=resource,
            slice=slice_of(resource),
            # Without its device plugin a node has no capacity, but its pods still hold devices.
            total=max(capacity.get(resource, 0), in_use[resource]),
            in_use=in_use[resource],
            unhealthy=max(0, capacity.get(resource, 0) - allocatable.get(resource, 0)),
        )
        for resource in sorted(capacity.keys() | in_use.keys())
    ]
    # A node cut into slices still offers 0 whole GPUs, which is left out; a pool's node without any is not.
    nonzero = [d for d in found if d.total]
    return tuple(nonzero or [d for d in found if d.pool])
