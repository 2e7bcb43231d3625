"""Choose the ResourceFlavor and Topology of each pool, so that a change of a pool breaks no guarantee. Pure.

Kueue counts quota and places jobs by flavor: two flavors over the same nodes would both seem to be empty.
So a pool has one flavor. It is changed in place where Kueue allows that: as long as it has no topology, and
its taints. Else the pool keeps its flavor as it is until no job runs in it, and then gets one of a new name.
A flavor that people made stays as it is: Kueue could not change it back when Fairway leaves. What runs in it
without a topology still counts where jobs are placed, for Kueue sees its pods on the nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import Json, ObjectKind
from fairway.engines.kubernetes.nodes.devices import claims_devices
from fairway.engines.kubernetes.policy.fields import Fields, flatten, parse_taint
from fairway.engines.kubernetes.policy.site_queues import site_queue
from fairway.model.fleet import KubernetesPlace, Pool
from fairway.model.names import PoolName
from fairway.policy.objects import FoundObject, FoundPolicy, Notice, ObjectKey, WantedObject

HOSTNAME: Final = "kubernetes.io/hostname"
ANY_NODE: Final = {"kubernetes.io/os": "linux"}
"""Kueue requires at least one label of a flavor with a topology."""

_TOPOLOGY_NAME: Final = "spec.topologyName"
_TAINTS: Final = "spec.nodeTaints"
_LABELS: Final = "spec.nodeLabels"


def used_setting(flavor: str) -> str:
    """Return the name of the setting for the devices that jobs hold in a flavor."""
    return f"used.{flavor}"


def terminating_setting(kind: ObjectKind) -> str:
    """Return the name of the setting for the objects of a kind that are being deleted."""
    return f"terminating.{kind.name}"


@dataclass(frozen=True, slots=True)
class Placement:
    """The flavor and the topology of a pool."""

    topology: str
    """Empty: none. Kueue places pods by the devices of nodes, and does not see those that pods claim."""
    topology_fields: Fields
    flavor: str
    flavor_fields: Fields
    waits: bool = False
    """Whether the pool keeps an old flavor, because jobs run in it."""


def place_pools(
    pools: Sequence[Pool], teams: Collection[str], found: FoundPolicy
) -> dict[PoolName, Placement]:
    """Return the placement of each pool. `teams` are those with queues on this cluster."""
    objects = {o.key: o for o in found.objects}
    others = _used_by_others(found, teams)
    return {pool.name: _place(pool, objects, others, found) for pool in pools}


def _place(
    pool: Pool, objects: Mapping[ObjectKey, FoundObject], others: Collection[str], found: FoundPolicy
) -> Placement:
    topology = ""
    topology_fields: Fields = {}
    if not claims_devices(pool):
        topology_fields = flatten(kinds.TOPOLOGY, _topology(pool))
        topology = _reusable(kinds.TOPOLOGY, pool.name, topology_fields, objects, found)
    fields = flatten(kinds.FLAVOR, _flavor(pool, topology))
    flavors = list(_existing(kinds.FLAVOR, pool.name, objects))
    for name, have in flavors:
        if have.fields == fields:  # one that is not Fairway's is in the way: to be adopted
            return Placement(topology, topology_fields, name, fields)
    in_use = {name for name, _ in flavors if found.settings.get(used_setting(name), "0") != "0"}
    for name, have in sorted(flavors, key=lambda pair: pair[0] not in in_use):
        if have.ours and name not in others and _can_become(have.fields, fields):
            return Placement(topology, topology_fields, name, fields)
        if have.ours and name in in_use and (placement := _as_found(name, have, objects)):
            return placement
    name = _free(kinds.FLAVOR, pool.name, objects, found)
    return Placement(topology, topology_fields, name, fields)


def _as_found(name: str, have: FoundObject, objects: Mapping[ObjectKey, FoundObject]) -> Placement | None:
    """Return the placement of a pool whose flavor stays. Returns None if it has no topology."""
    topology = str(have.fields.get(_TOPOLOGY_NAME, ""))
    found = objects.get(ObjectKey(kinds.TOPOLOGY.name, topology))
    if found is None:
        return None
    return Placement(topology, dict(found.fields), name, dict(have.fields), waits=True)


def _can_become(have: Mapping[str, object], wanted: Fields) -> bool:
    """Return whether Kueue lets a flavor be changed: all of it without a topology, else only its taints."""
    if _TOPOLOGY_NAME not in have:
        return True
    differing = {f for f in have.keys() | wanted.keys() if have.get(f) != wanted.get(f)}
    return differing <= {_TAINTS}


def _reusable(
    kind: ObjectKind,
    pool: str,
    fields: Fields,
    objects: Mapping[ObjectKey, FoundObject],
    found: FoundPolicy,
) -> str:
    """Return the name of an object that is as wanted, or of one that is not Fairway's yet, or a free one."""
    candidates = list(_existing(kind, pool, objects))
    for name, have in candidates:
        if have.fields == fields:
            return name
    return _free(kind, pool, objects, found)


def _existing(
    kind: ObjectKind, pool: str, objects: Mapping[ObjectKey, FoundObject]
) -> Iterator[tuple[str, FoundObject]]:
    """Yield the objects of a pool's names, the first name first."""
    prefix = f"{pool}."
    names = sorted(
        (int(key.name.removeprefix(prefix)) if key.name != pool else 1, key)
        for key in objects
        if key.kind == kind.name
        and (key.name == pool or (key.name.startswith(prefix) and key.name.removeprefix(prefix).isdigit()))
    )
    for _, key in names:
        yield key.name, objects[key]


def _free(kind: ObjectKind, pool: str, objects: Mapping[ObjectKey, FoundObject], found: FoundPolicy) -> str:
    """Return the first name that no object has, nor one that is being deleted."""
    taken = set(found.settings.get(terminating_setting(kind), "").split(","))
    names = (pool if n == 1 else f"{pool}.{n}" for n in count(1))
    return next(n for n in names if n not in taken and ObjectKey(kind.name, n) not in objects)


def _used_by_others(found: FoundPolicy, teams: Collection[str]) -> set[str]:
    """Return the flavors in ClusterQueues and Cohorts of the site: no team's, or a copy of the site's."""
    copies = {site_queue(team) for team in teams}
    return {
        key.name
        for o in found.objects
        if o.key.kind in {kinds.CLUSTER_QUEUE.name, kinds.COHORT.name}
        and (o.key.name in copies or (not o.ours and o.key.name.partition(".")[0] not in teams))
        for key in o.after
        if key.kind == kinds.FLAVOR.name
    }


def flavors_of_others(
    placements: Mapping[PoolName, Placement], teams: Collection[str], found: FoundPolicy
) -> Iterator[WantedObject]:
    """Yield Fairway's old flavors that queues of others use, with their topologies: they stay as they are."""
    others = _used_by_others(found, teams)
    wanted = {p.flavor for p in placements.values()}
    topologies = {p.topology for p in placements.values()}
    objects = {o.key: o for o in found.objects}
    for name in sorted(others - wanted):
        have = objects.get(ObjectKey(kinds.FLAVOR.name, name))
        if have is None or not have.ours:
            continue
        yield WantedObject(have.key, have.fields, have.after)
        for key in have.after:
            topology = objects.get(key)
            if topology is not None and topology.ours and key.name not in topologies:
                topologies.add(key.name)
                yield WantedObject(key, topology.fields)


def flavor_notices(placements: Mapping[PoolName, Placement], found: FoundPolicy) -> Iterator[Notice]:
    """Yield the notices about old flavors in which jobs run."""
    for name, used in _old_flavors(placements, found):
        yield Notice(
            "OldFlavorInUse",
            f"jobs hold {used} GPUs in ResourceFlavor {name}, which stays as it is: they run on, and count "
            "against no guarantee or ceiling until they end",
            "nothing to do: new jobs of teams do not start in it",
            promise="guarantee",
        )
    for pool, placement in placements.items():
        if placement.waits:
            used = found.settings.get(used_setting(placement.flavor), "0")
            yield Notice(
                "PoolChangeWaits",
                f"pool {pool}: new node labels or topology are applied when no job runs in it ({used} "
                "GPUs in use "
                "now), because two ResourceFlavors over the same nodes would break guarantees; all else of "
                "the policy changes now",
                "apply again when it is empty; to empty it, drain its teams:  draining: true",
                promise="guarantee",
            )


def _old_flavors(placements: Mapping[PoolName, Placement], found: FoundPolicy) -> Iterator[tuple[str, str]]:
    """Yield the flavors that people made for nodes of a pool and jobs run in, with the devices they hold."""
    taken = {p.flavor for p in placements.values()}
    for have in found.objects:
        used = found.settings.get(used_setting(have.key.name), "0")
        if have.key.kind != kinds.FLAVOR.name or have.ours or have.key.name in taken or used == "0":
            continue
        if any(_share_nodes(have.fields, p.flavor_fields) for p in placements.values()):
            yield have.key.name, used


def _share_nodes(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Return whether one of two flavors selects nodes by a part of the other's labels, or by the same."""
    first, second = ({f: v for f, v in fields.items() if f.startswith(_LABELS)} for fields in (one, other))
    return first.items() <= second.items() or second.items() <= first.items()


def _flavor(pool: Pool, topology: str) -> Json:
    place = pool.place
    if not isinstance(place, KubernetesPlace):  # `files` gives a pool the place of its cluster's engine
        raise TypeError(f"pool {pool.name} is not on Kubernetes")
    spec: Json = {"nodeLabels": dict(place.node_labels) or dict(ANY_NODE)}
    if place.taints:
        spec["nodeTaints"] = [parse_taint(t) for t in place.taints]
    # Without a topology Kueue assigns quota but no nodes, and a guaranteed job may wait in the scheduler.
    if topology:
        spec["topologyName"] = topology
    return {"spec": spec}


def _topology(pool: Pool) -> Json:
    levels = [*(level for level in pool.topology if level != HOSTNAME), HOSTNAME]
    return {"spec": {"levels": [{"nodeLabel": level} for level in levels]}}
