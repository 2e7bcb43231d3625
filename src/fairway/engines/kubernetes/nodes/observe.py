"""Convert facts of nodes and pods to nodes of the model: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from fairway.engines.kubernetes.nodes.claims import ClaimFacts
from fairway.engines.kubernetes.nodes.devices import (
    SHARED_SUFFIX,
    replica_of,
    resources_of,
    slice_of,
    supply_on,
)
from fairway.engines.kubernetes.nodes.facts import NodeFacts, PodDevices
from fairway.engines.kubernetes.nodes.slices import DeviceCounts, SliceFacts, count_devices
from fairway.model.fleet import KubernetesPlace, Pool
from fairway.model.names import NodeName, PoolName, SliceName
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
    nodes: Mapping[str, NodeFacts],
    pods: Iterable[PodDevices],
    pools: tuple[Pool, ...],
    slices: Iterable[SliceFacts] = (),
    claims: Iterable[ClaimFacts] = (),
) -> ObservedNodes:
    """Return every node of the cluster with its devices by pool, in order of names.

    Claims hold the devices of `slices`, pods all others. Nodes that are equal in labels, devices and use
    share one value: computed once, stored once.
    """
    in_use: dict[str, Counter[str]] = {}
    for pod in pods:
        in_use.setdefault(pod.node, Counter()).update(dict(pod.devices))
    held = {device for claim in claims for device in claim.held}
    claimable = count_devices(
        slices, held, lambda name: claimed_on(dict(nodes[name].labels) if name in nodes else {}, pools)
    )
    observed: list[Node] = []
    overlaps: set[Overlap] = set()
    cache: dict[object, tuple[Devices, ...]] = {}
    for name, reported in sorted(nodes.items()):
        facts, used = reported, in_use.get(name, _NOTHING)
        if published := claimable.get(name):
            facts, used = _with_claimable(facts, used, published)
        key = (facts.labels, facts.capacity, facts.allocatable, tuple(sorted(used.items())))
        devices = cache.get(key)
        if devices is None:
            devices = cache[key] = _devices(facts, used, _owners(facts, pools, overlaps))
        health, reason = node_health(facts)
        observed.append(Node(NodeName(name), health, reason, devices))
    return ObservedNodes(tuple(observed), frozenset(overlaps))


def _with_claimable(
    facts: NodeFacts, used: Counter[str], published: Mapping[str, DeviceCounts]
) -> tuple[NodeFacts, Counter[str]]:
    """Add devices that drivers publish to those that the node itself reports."""
    capacity = {r: counts.total for r, counts in published.items()}
    allocatable = {r: counts.total - counts.unhealthy for r, counts in published.items()}
    both = replace(
        facts,
        capacity=tuple(sorted((dict(facts.capacity) | capacity).items())),
        allocatable=tuple(sorted((dict(facts.allocatable) | allocatable).items())),
    )
    return both, used + Counter({r: counts.in_use for r, counts in published.items()})


def _owners(facts: NodeFacts, pools: tuple[Pool, ...], overlaps: set[Overlap]) -> dict[str, Pool]:
    """Return the pool that gets each resource of a node."""
    owners: dict[str, Pool] = {}
    offered = {r for r, _ in facts.capacity}
    for pool in pools:
        if not _matches(pool, dict(facts.labels)):
            continue
        for resource in resources_of(pool):
            first = owners.setdefault(resource, pool)
            if first is not pool and resource in offered:
                overlaps.add(Overlap(resource, gets=first.name, misses=pool.name))
    # Shared GPUs of another name are the same GPUs, unless a pool has that name.
    for resource in offered - owners.keys():
        whole = owners.get(resource.removesuffix(SHARED_SUFFIX))
        if whole is not None and supply_on(resource, whole, dict(facts.labels)) is not None:
            owners[resource] = whole
    return owners


def _matches(pool: Pool, labels: Mapping[str, str]) -> bool:
    place = pool.place
    return isinstance(place, KubernetesPlace) and place.node_labels.items() <= labels.items()


def claimed_on(labels: Mapping[str, str], pools: Iterable[Pool]) -> frozenset[str]:
    """Return the resources that pools claim on a node with these labels."""
    return frozenset(r for pool in pools if _matches(pool, labels) for r in resources_of(pool))


def node_health(facts: NodeFacts) -> tuple[Health, str]:
    if not facts.ready:
        also = f"; {facts.cordon_reason}" if facts.cordoned else ""
        return Health.DOWN, facts.not_ready_reason + also
    if facts.cordoned:
        return Health.DRAINED, facts.cordon_reason
    return Health.READY, ""


def _slice(resource: str, pool: Pool | None, labels: Mapping[str, str]) -> SliceName | None:
    """Return the slice that a resource is: as its node and pool have it, else by its name."""
    supply = supply_on(resource, pool, labels) if pool is not None else None
    return (replica_of(resource, labels) or slice_of(resource)) if supply is None else supply.slice


def _devices(facts: NodeFacts, in_use: Counter[str], owners: Mapping[str, Pool]) -> tuple[Devices, ...]:
    capacity, allocatable, labels = dict(facts.capacity), dict(facts.allocatable), dict(facts.labels)
    found = [
        Devices(
            pool=owners[resource].name if resource in owners else None,
            kind=resource,
            slice=_slice(resource, owners.get(resource), labels),
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
