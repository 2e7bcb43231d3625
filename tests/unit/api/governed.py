"""A cluster that only remembers: objects by name, no jobs, no scheduler. What a route needs of an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from fairway.engines.port import Unreachable
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.policy.objects import (
    Activity,
    Change,
    FoundObject,
    FoundPolicy,
    Notice,
    ObjectKey,
    Translation,
    WantedObject,
)
from fairway.policy.recent_use import TakenAway


class Memory:
    """What the clusters of a test have; `lost` ones do not answer."""

    def __init__(self) -> None:
        self.objects: dict[str, list[FoundObject]] = {}
        self.lost: set[str] = set()
        self.taken: tuple[TakenAway, ...] = ()
        self.built: list[Cluster] = []

    def build(self, cluster: Cluster, pools: tuple[Pool, ...]) -> RememberingEngine:
        self.built.append(cluster)
        return RememberingEngine(self, cluster)


class RememberingEngine:
    """An account for each team, with its share."""

    def __init__(self, memory: Memory, cluster: Cluster) -> None:
        self._memory = memory
        self._cluster = cluster

    async def find_policy(self) -> FoundPolicy:
        if self._cluster.name in self._memory.lost:
            raise Unreachable("Unreachable", f"{self._cluster.name} is off", "turn it on")
        return FoundPolicy("memory 1.0", tuple(self._memory.objects.get(self._cluster.name, ())), {})

    def translate(self, fleet: Fleet, found: FoundPolicy) -> Translation:
        wanted = tuple(
            WantedObject(ObjectKey("account", team.name), {"share": team.share}, team=team.name)
            for team in fleet.teams
        )
        return Translation(wanted, (Notice("Forgets", "it forgets", "write it down", "memory"),))

    async def activity(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
        return {}

    async def taken_away(
        self, fleet: Fleet, found: FoundPolicy, changes: Sequence[Change]
    ) -> tuple[TakenAway, ...]:
        return self._memory.taken

    async def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        for change in changes:
            yield change

    async def close(self) -> None:
        return
