"""Which lent jobs must go so that a guaranteed one has a place: the least that helps. Pure.

Kueue takes back by priority and time, not by place, and stops at the lender's guarantee: what it frees may
lie in pieces on several nodes, and a job of a whole node waits for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from fairway.engines.kubernetes.policy.standing import Asking, Holding, Room, Standing
from fairway.model.team import Supply

MOST_NODES: Final = 64
"""So many nodes, those with most of their devices free, are weighed against each other."""
MOST_COMBINED: Final = 10
"""Up to so many jobs of a node every combination is tried; beyond, the largest first."""


@dataclass(slots=True)
class _Chosen:
    """What goes so far, and the room that makes."""

    victims: dict[str, Holding] = field(default_factory=dict)
    freed: Counter[str] = field(default_factory=Counter)
    """Devices by node."""
    placed: Counter[str] = field(default_factory=Counter)
    """Pods of the waiting job by node."""
    lost: Counter[str] = field(default_factory=Counter)
    """Devices that each team, and those around it, lose."""
    own: Counter[str] = field(default_factory=Counter)
    """The same, of its own jobs only."""

    @property
    def cost(self) -> int:
        return sum(v.devices for v in self.victims.values())


def make_room(standing: Standing, asking: Asking) -> tuple[Supply, tuple[Holding, ...]] | None:
    """The cheapest set of lawful victims; None if there is none, or if the job fits without."""
    best: tuple[int, Supply, tuple[Holding, ...]] | None = None
    for supply in asking.supplies:
        if not standing.entitled(asking, supply):
            continue
        for rooms in _domains(standing.rooms.get(supply, []), asking.together):
            chosen = _choose(standing, asking, supply, rooms)
            if chosen is not None and (best is None or chosen.cost < best[0]):
                best = chosen.cost, supply, tuple(chosen.victims.values())
    return None if best is None or not best[2] else (best[1], best[2])


def _domains(rooms: Sequence[Room], level: str) -> Iterator[list[Room]]:
    """All nodes, or those of each rack where the job must stay in one."""
    if not level:
        yield list(rooms)
        return
    racks: dict[str, list[Room]] = {}
    for room in rooms:
        racks.setdefault(room.labels.get(level, ""), []).append(room)
    yield from racks.values()


def _choose(standing: Standing, asking: Asking, supply: Supply, rooms: list[Room]) -> _Chosen | None:
    size = asking.devices_a_pod
    by_node: dict[str, list[Holding]] = {}
    for holding in standing.holdings:
        if holding.supply == supply and holding.workload.spec.active:
            for node in holding.nodes:
                by_node.setdefault(node, []).append(holding)
    near = sorted((r for r in rooms if r.total >= size), key=lambda r: -r.free)[:MOST_NODES]
    chosen = _Chosen()
    for _ in range(asking.pods):
        options = [
            (cost, number, victims)
            for number, room in enumerate(near)
            if (victims := _free(standing, asking, room, by_node.get(room.name, []), chosen)) is not None
            for cost in (sum(v.devices for v in victims),)
        ]
        if not options:
            return None
        _, number, victims = min(options, key=lambda option: option[:2])
        for victim in victims:
            _take(standing, chosen, victim)
        chosen.placed[near[number].name] += 1
    return chosen


def _free(
    standing: Standing, asking: Asking, room: Room, here: list[Holding], chosen: _Chosen
) -> tuple[Holding, ...] | None:
    """The cheapest victims of one node that make room for one more pod on it; None: there are none."""
    held = (chosen.placed[room.name] + 1) * asking.devices_a_pod
    missing = held - room.free - chosen.freed[room.name]
    if missing <= 0:
        return ()
    lawful = [
        h
        for h in here
        if h.workload.metadata.uid not in chosen.victims and _is_lawful(standing, asking, h, chosen)
    ]
    best: tuple[tuple[int, int, int], tuple[Holding, ...]] | None = None
    for some in _sets(lawful, room.name, missing):
        if sum(h.nodes[room.name] for h in some) < missing or not _all_lawful(standing, asking, some, chosen):
            continue
        rank = (sum(h.devices for h in some), max(h.priority for h in some), len(some))
        if best is None or rank < best[0]:
            best = rank, some
    return None if best is None else best[1]


def _sets(lawful: list[Holding], node: str, missing: int) -> Iterator[tuple[Holding, ...]]:
    if len(lawful) <= MOST_COMBINED:
        for size in range(1, len(lawful) + 1):
            yield from combinations(lawful, size)
        return
    for order in (
        sorted(lawful, key=lambda h: (h.priority, -h.nodes[node])),
        sorted(lawful, key=lambda h: -h.nodes[node]),
    ):
        freed, some = 0, []
        for holding in order:
            if freed >= missing:
                break
            some.append(holding)
            freed += holding.nodes[node]
        yield tuple(some)


def _all_lawful(standing: Standing, asking: Asking, some: Sequence[Holding], chosen: _Chosen) -> bool:
    trial = _Chosen(
        dict(chosen.victims),
        Counter(chosen.freed),
        chosen.placed,
        Counter(chosen.lost),
        Counter(chosen.own),
    )
    for holding in some:
        if not _is_lawful(standing, asking, holding, trial):
            return False
        _take(standing, trial, holding)
    return True


def _is_lawful(standing: Standing, asking: Asking, victim: Holding, chosen: _Chosen) -> bool:
    """Low jobs, lower ones of the same team, and what a team holds beyond its guarantee, at every level."""
    if victim.low:
        return True
    if victim.team == asking.team:
        return victim.priority < asking.workload.spec.priority
    around = {team.name for team in standing.line(asking.team)}
    team, supply = victim.team, victim.supply
    if standing.own[team.name, supply] - chosen.own[team.name] - victim.devices < standing.left(team, supply):
        return False
    return all(
        standing.used[level.name, victim.supply] - chosen.lost[level.name] - victim.devices
        >= standing.guarantee(level, victim.supply)
        for level in standing.line(victim.team)
        if level.name not in around
    )


def _take(standing: Standing, chosen: _Chosen, victim: Holding) -> None:
    chosen.victims[victim.workload.metadata.uid] = victim
    chosen.freed.update(victim.nodes)
    if not victim.low:
        chosen.own[victim.team.name] += victim.devices
        for level in standing.line(victim.team):
            chosen.lost[level.name] += victim.devices
