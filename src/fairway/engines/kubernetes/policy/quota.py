"""How much of each supply a queue or cohort may have, as Kueue's resource groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fairway.engines.kubernetes.gpu_resources import resource_of, resources_of
from fairway.engines.kubernetes.policy.fields import Json
from fairway.model.fleet import KubernetesPlace, Pool
from fairway.model.names import PoolName
from fairway.model.team import Supply


@dataclass(frozen=True, slots=True)
class Quota:
    """Devices of one supply."""

    nominal: int
    borrowing: int | None = None
    """None: as much as there is."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Pools whose resources are counted together: Kueue wants every flavor of a group to list all of them."""

    resources: tuple[str, ...]
    pools: tuple[Pool, ...]


class Shelves:
    """The pools of a cluster as resource groups."""

    def __init__(self, pools: Sequence[Pool], flavors: Mapping[PoolName, str]) -> None:
        """`flavors`: the ResourceFlavor of each pool."""
        self._flavors = flavors
        self._shelves = _shelve(pools)

    def groups(self, quota_of: Callable[[Supply], Quota | None]) -> list[Json]:
        """The groups of a queue that may have these; pools of which it may have nothing are not in them."""
        groups = []
        for shelf in self._shelves:
            flavors = [f for pool in shelf.pools if (f := self._flavor(shelf, pool, quota_of))]
            if flavors:
                groups.append({"coveredResources": list(shelf.resources), "flavors": flavors})
        return groups

    def _flavor(self, shelf: Shelf, pool: Pool, quota_of: Callable[[Supply], Quota | None]) -> Json | None:
        quotas = {resource(s, pool): quota_of(s) for s in pool.supplies}
        if not any(quotas.values()):
            return None
        return {
            "name": self._flavors[pool.name],
            "resources": [_resource(r, quotas.get(r)) for r in shelf.resources],
        }


def resource(supply: Supply, pool: Pool) -> str:
    """What the devices of a supply are called on nodes."""
    if supply.slice is not None:
        return resource_of(supply.slice)
    return pool.place.resource if isinstance(pool.place, KubernetesPlace) else "nvidia.com/gpu"


def _resource(name: str, quota: Quota | None) -> Json:
    if quota is None:  # covered by the group, but not for this queue
        quota = Quota(0, 0)
    limit = {} if quota.borrowing is None else {"borrowingLimit": quota.borrowing}
    return {"name": name, "nominalQuota": quota.nominal, **limit}


def _shelve(pools: Sequence[Pool]) -> list[Shelf]:
    """Pools that share a resource, directly or through others, stand on one shelf."""
    shelves: list[tuple[set[str], list[Pool]]] = []
    for pool in pools:
        wanted, members = set(resources_of(pool)), [pool]
        apart = []
        for resources, others in shelves:
            if resources & wanted:
                wanted |= resources
                members = [*others, *members]
            else:
                apart.append((resources, others))
        shelves = [*apart, (wanted, members)]
    order = {pool.name: i for i, pool in enumerate(pools)}
    made = [Shelf(tuple(sorted(r)), tuple(sorted(ps, key=lambda p: order[p.name]))) for r, ps in shelves]
    return sorted(made, key=lambda shelf: order[shelf.pools[0].name])
