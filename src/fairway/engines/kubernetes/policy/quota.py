"""Convert the quota of queues and cohorts to Kueue's resource groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fairway.engines.kubernetes.api.kinds import Json
from fairway.engines.kubernetes.nodes.devices import resource, resources_of
from fairway.model.fleet import Pool
from fairway.model.names import PoolName
from fairway.model.team import Supply


@dataclass(frozen=True, slots=True)
class Quota:
    """Devices of one supply."""

    nominal: int
    borrowing: int | None = None
    """None: no limit."""


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Pools whose resources Kueue counts together: every flavor of a group must list all of them."""

    resources: tuple[str, ...]
    pools: tuple[Pool, ...]


class ResourceGroups:
    """The pools of a cluster as resource groups."""

    def __init__(self, pools: Sequence[Pool], flavors: Mapping[PoolName, str]) -> None:
        """Group the pools; `flavors` has the ResourceFlavor of each pool."""
        self._flavors = flavors
        self._groups = _group(pools)

    def groups(self, quota_of: Callable[[Supply], Quota | None]) -> list[Json]:
        """Return the resource groups of a queue with these quotas; pools without any are left out."""
        groups = []
        for group in self._groups:
            flavors = [f for pool in group.pools if (f := self._flavor(group, pool, quota_of))]
            if flavors:
                groups.append({"coveredResources": list(group.resources), "flavors": flavors})
        return groups

    def _flavor(
        self, group: ResourceGroup, pool: Pool, quota_of: Callable[[Supply], Quota | None]
    ) -> Json | None:
        quotas = {resource(s, pool): quota_of(s) for s in pool.supplies}
        if not any(quotas.values()):
            return None
        return {
            "name": self._flavors[pool.name],
            "resources": [_resource(r, quotas.get(r)) for r in group.resources],
        }


def _resource(name: str, quota: Quota | None) -> Json:
    quota = quota or Quota(0, 0)  # every flavor lists all resources of its group, also those without quota
    limit = {} if quota.borrowing is None else {"borrowingLimit": quota.borrowing}
    return {"name": name, "nominalQuota": quota.nominal, **limit}


def _group(pools: Sequence[Pool]) -> list[ResourceGroup]:
    """Put pools that share a resource, directly or through others, into one group."""
    groups: list[tuple[set[str], list[Pool]]] = []
    for pool in pools:
        merged, members = set(resources_of(pool)), [pool]
        separate = []
        for resources, others in groups:
            if resources & merged:
                merged |= resources
                members = [*others, *members]
            else:
                separate.append((resources, others))
        groups = [*separate, (merged, members)]
    order = {pool.name: i for i, pool in enumerate(pools)}
    result = [
        ResourceGroup(tuple(sorted(r)), tuple(sorted(ps, key=lambda p: order[p.name]))) for r, ps in groups
    ]
    return sorted(result, key=lambda group: order[group.pools[0].name])
