"""Choose the lent jobs to preempt so that a guaranteed one has a place: the fewest that help. Pure.

Kueue reclaims by priority and time, not by place, and stops at the lender's guarantee: what it frees may be
scattered over several nodes, and a job that needs a whole node waits for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from fairway.engines.kubernetes.policy.nudge.snapshot import (
    RunningWorkload,
    SchedulableNode,
    Snapshot,
    WaitingWorkload,
)
from fairway.model.team import Supply

MOST_NODES: Final = 64
"""So many nodes, those with most devices free, are compared."""
MOST_COMBINED: Final = 10
"""Up to so many jobs of a node every combination is tried; beyond, the largest first."""


@dataclass(slots=True)
class _Chosen:
    """The victims so far, and the room they make."""

    victims: dict[str, RunningWorkload] = field(default_factory=dict)
    freed: Counter[str] = field(default_factory=Counter)
    """Devices by node."""
    placed: Counter[str] = field(default_factory=Counter)
    """Pods of the waiting job by node."""
    lost: Counter[str] = field(default_factory=Counter)
    """Devices that each team, and its ancestors, lose."""
    own: Counter[str] = field(default_factory=Counter)
    """The same, of its own jobs only."""

    @property
    def cost(self) -> int:
        return sum(v.devices for v in self.victims.values())


def select_victims(
    standing: Snapshot, asking: WaitingWorkload
) -> tuple[Supply, tuple[RunningWorkload, ...]] | None:
    """Return the cheapest set of lawful victims.

    Returns None if there is none, or if the job fits without.
    """
    best: tuple[int, Supply, tuple[RunningWorkload, ...]] | None = None
    for supply in asking.supplies:
        if not standing.entitled(asking, supply):
            continue
        for rooms in _domains(standing.rooms.get(supply, []), asking.together):
            chosen = _choose(standing, asking, supply, rooms)
            if chosen is not None and (best is None or chosen.cost < best[0]):
                best = chosen.cost, supply, tuple(chosen.victims.values())
    return None if best is None or not best[2] else (best[1], best[2])


def _domains(rooms: Sequence[SchedulableNode], level: str) -> Iterator[list[SchedulableNode]]:
    """Yield all nodes, or those of each rack where the job must stay in one."""
    if not level:
        yield list(rooms)
        return
    racks: dict[str, list[SchedulableNode]] = {}
    for room in rooms:
        racks.setdefault(room.labels.get(level, ""), []).append(room)
    yield from racks.values()


def _choose(
    standing: Snapshot, asking: WaitingWorkload, supply: Supply, rooms: list[SchedulableNode]
) -> _Chosen | None:
    size = asking.devices_a_pod
    by_node: dict[str, list[RunningWorkload]] = {}
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
    standing: Snapshot,
    asking: WaitingWorkload,
    room: SchedulableNode,
    here: list[RunningWorkload],
    chosen: _Chosen,
) -> tuple[RunningWorkload, ...] | None:
    """Return the cheapest victims of one node that make room for one more pod on it, or None."""
    held = (chosen.placed[room.name] + 1) * asking.devices_a_pod
    missing = held - room.free - chosen.freed[room.name]
    if missing <= 0:
        return ()
    lawful = [
        h
        for h in here
        if h.workload.metadata.uid not in chosen.victims and _is_lawful(standing, asking, h, chosen)
    ]
    best: tuple[tuple[int, int, int], tuple[RunningWorkload, ...]] | None = None
    for some in _sets(lawful, room.name, missing):
        if sum(h.nodes[room.name] for h in some) < missing or not _all_lawful(standing, asking, some, chosen):
            continue
        rank = (sum(h.devices for h in some), max(h.priority for h in some), len(some))
        if best is None or rank < best[0]:
            best = rank, some
    return None if best is None else best[1]


def _sets(lawful: list[RunningWorkload], node: str, missing: int) -> Iterator[tuple[RunningWorkload, ...]]:
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


def _all_lawful(
    standing: Snapshot, asking: WaitingWorkload, some: Sequence[RunningWorkload], chosen: _Chosen
) -> bool:
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


def _is_lawful(standing: Snapshot, asking: WaitingWorkload, victim: RunningWorkload, chosen: _Chosen) -> bool:
    """Return whether a job may be preempted.

    Low jobs may, lower ones of the same team, and what a team holds beyond its guarantee, at every level.
    """
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


def _take(standing: Snapshot, chosen: _Chosen, victim: RunningWorkload) -> None:
    chosen.victims[victim.workload.metadata.uid] = victim
    chosen.freed.update(victim.nodes)
    if not victim.low:
        chosen.own[victim.team.name] += victim.devices
        for level in standing.line(victim.team):
            chosen.lost[level.name] += victim.devices
