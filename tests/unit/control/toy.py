"""An engine that is a dictionary: for what the loops do, whatever the engine. Faults and delays on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from fairway.model.fleet import Fleet
from fairway.model.observation import Observation
from fairway.policy.objects import (
    Action,
    Activity,
    Advice,
    Change,
    FoundObject,
    FoundPolicy,
    Intervention,
    ObjectKey,
    Translation,
    Value,
    WantedObject,
)


@dataclass
class World:
    """A cluster that outlives the engines that speak to it."""

    objects: dict[ObjectKey, FoundObject] = field(default_factory=dict)
    jobs: dict[ObjectKey, Activity] = field(default_factory=dict)
    written: list[tuple[Action, ObjectKey]] = field(default_factory=list)
    faults: dict[ObjectKey, Exception] = field(default_factory=dict)
    """What writing such an object meets."""
    advice: list[Advice] = field(default_factory=list)
    detached: Exception | None = None
    behind: Exception | None = None
    deaf: Exception | None = None
    """What every look meets."""
    slow: float = 0.0
    interventions: list[Intervention] = field(default_factory=list)
    looks: int = 0
    closed: int = 0

    def put(self, name: str, value: Value, *, ours: bool = True, by: str | None = None) -> ObjectKey:
        key = ObjectKey("limit", name)
        self.objects[key] = FoundObject(key, {"value": value}, ours=ours, changed_by=by)
        return key

    def values(self) -> dict[str, Value]:
        return {key.name: o.fields["value"] for key, o in sorted(self.objects.items())}


class Toy:
    """One limit for each team of a fleet, its share; each needs the one before it."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def observe(self) -> Observation:
        raise NotImplementedError

    async def find_policy(self) -> FoundPolicy:
        self.world.looks += 1
        if self.world.deaf is not None:
            raise self.world.deaf
        return FoundPolicy("toy 1", tuple(self.world.objects.values()), {})

    def translate(self, fleet: Fleet, found: FoundPolicy) -> Translation:
        wanted: list[WantedObject] = []
        for team in fleet.teams:
            after = (wanted[-1].key,) if wanted else ()
            wanted.append(
                WantedObject(ObjectKey("limit", team.name), {"value": team.share}, after, team.name)
            )
        return Translation(tuple(wanted), advice=tuple(self.world.advice))

    async def activity(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
        return {key: self.world.jobs[key] for key in keys if key in self.world.jobs}

    async def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        for change in changes:
            await asyncio.sleep(self.world.slow)
            if change.key in self.world.faults:
                raise self.world.faults[change.key]
            self.world.written.append((change.action, change.key))
            if change.action is Action.DELETE:
                self.world.objects.pop(change.key, None)
            else:
                assert change.wanted is not None
                self.world.objects[change.key] = FoundObject(change.key, change.wanted, ours=True)
            yield change

    async def confirm(self, changes: Sequence[Change]) -> None:
        if self.world.detached is not None:
            raise self.world.detached
        if changes and self.world.behind is not None:
            raise self.world.behind

    async def intervene(self, fleet: Fleet) -> tuple[Intervention, ...]:
        given, self.world.interventions = tuple(self.world.interventions), []
        return given

    async def close(self) -> None:
        self.world.closed += 1
