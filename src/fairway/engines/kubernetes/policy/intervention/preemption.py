"""Select the jobs to preempt so that a guaranteed one can start: the fewest that help. Pure.

Kueue reclaims borrowed quota by priority and start time, not by node, and stops at the lender's guarantee:
the GPUs it frees may be scattered over several nodes, and a job that needs a whole node waits for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

from fairway.engines.kubernetes.policy.intervention.snapshot import (
    RunningWorkload,
    SchedulableNode,
    Snapshot,
    WaitingWorkload,
)
from fairway.model.team import Supply

MAX_NODES: Final = 64
"""How many nodes, those with the most free devices, are compared."""
MAX_COMBINED: Final = 10
"""Up to this many jobs on a node every combination is tried; for more, only the largest first."""


@dataclass(slots=True)
class _Selection:
    """The victims selected so far for a waiting job, and the devices they free."""

    snapshot: Snapshot
    waiting: WaitingWorkload
    victims: dict[str, RunningWorkload] = field(default_factory=dict)
    """By uid."""
    freed: Counter[str] = field(default_factory=Counter)
    """Devices by node."""
    placed: Counter[str] = field(default_factory=Counter)
    """Pods of the waiting job by node."""
    lost: Counter[str] = field(default_factory=Counter)
    """Devices that each team and its child teams lose."""
    own_lost: Counter[str] = field(default_factory=Counter)
    """The same without the child teams."""

    @property
    def cost(self) -> int:
        return sum(v.devices for v in self.victims.values())

    def add(self, victim: RunningWorkload) -> None:
        self.victims[victim.workload.metadata.uid] = victim
        self.freed.update(victim.nodes)
        if not victim.low:
            self.own_lost[victim.team.name] += victim.devices
            for team in self.snapshot.with_ancestors(victim.team):
                self.lost[team.name] += victim.devices

    def may_preempt(self, victim: RunningWorkload) -> bool:
        """Return whether a job may be preempted in addition to the victims so far.

        That holds for low jobs, for jobs of the same team with lower priority, and for what a team holds
        beyond its guarantee, where no ancestor falls below its own guarantee either.
        """
        if victim.low:
            return True
        if victim.team == self.waiting.team:
            return victim.priority < self.waiting.workload.spec.priority
        snapshot, team, supply = self.snapshot, victim.team, victim.supply
        own_after = snapshot.own[team.name, supply] - self.own_lost[team.name] - victim.devices
        if own_after < snapshot.own_guarantee(team, supply):
            return False
        common = {t.name for t in snapshot.with_ancestors(self.waiting.team)}
        return all(
            snapshot.used[t.name, supply] - self.lost[t.name] - victim.devices
            >= snapshot.guarantee(t, supply)
            for t in snapshot.with_ancestors(team)
            if t.name not in common
        )

    def may_preempt_all(self, victims: Sequence[RunningWorkload]) -> bool:
        trial = replace(
            self,
            victims=dict(self.victims),
            freed=Counter(self.freed),
            lost=Counter(self.lost),
            own_lost=Counter(self.own_lost),
        )
        for victim in victims:
            if not trial.may_preempt(victim):
                return False
            trial.add(victim)
        return True


def select_victims(
    snapshot: Snapshot, waiting: WaitingWorkload
) -> tuple[Supply, tuple[RunningWorkload, ...]] | None:
    """Return the cheapest set of victims that may be preempted, and the supply they free.

    Returns None if there is none, or if the job fits without.
    """
    best: tuple[int, Supply, tuple[RunningWorkload, ...]] | None = None
    for supply in waiting.supplies:
        if not snapshot.is_guaranteed(waiting, supply):
            continue
        for nodes in _domains(snapshot.nodes.get(supply, []), waiting.topology_label):
            selection = _select(snapshot, waiting, supply, nodes)
            if selection is not None and (best is None or selection.cost < best[0]):
                best = selection.cost, supply, tuple(selection.victims.values())
    return None if best is None or not best[2] else (best[1], best[2])


def _domains(nodes: Sequence[SchedulableNode], label: str) -> Iterator[list[SchedulableNode]]:
    """Yield all nodes, or those of each rack where the job must stay in one."""
    if not label:
        yield list(nodes)
        return
    racks: dict[str, list[SchedulableNode]] = {}
    for node in nodes:
        racks.setdefault(node.labels.get(label, ""), []).append(node)
    yield from racks.values()


def _select(
    snapshot: Snapshot, waiting: WaitingWorkload, supply: Supply, nodes: list[SchedulableNode]
) -> _Selection | None:
    """Place the pods of the waiting job one after the other, each on the node where that costs least."""
    by_node: dict[str, list[RunningWorkload]] = {}
    for running in snapshot.running:
        if running.supply == supply and running.workload.spec.active:
            for name in running.nodes:
                by_node.setdefault(name, []).append(running)
    large = sorted((n for n in nodes if n.total >= waiting.devices_a_pod), key=lambda n: -n.free)
    selection = _Selection(snapshot, waiting)
    for _ in range(waiting.pods):
        options = [
            (victims, node)
            for node in large[:MAX_NODES]
            if (victims := _victims_on(node, by_node.get(node.name, []), selection)) is not None
        ]
        if not options:
            return None
        victims, node = min(options, key=lambda option: sum(v.devices for v in option[0]))
        for victim in victims:
            selection.add(victim)
        selection.placed[node.name] += 1
    return selection


def _victims_on(
    node: SchedulableNode, running: list[RunningWorkload], selection: _Selection
) -> tuple[RunningWorkload, ...] | None:
    """Return the cheapest victims on a node that free the devices for one more pod, or None."""
    needed = (selection.placed[node.name] + 1) * selection.waiting.devices_a_pod
    missing = needed - node.free - selection.freed[node.name]
    if missing <= 0:
        return ()
    allowed = [
        r for r in running if r.workload.metadata.uid not in selection.victims and selection.may_preempt(r)
    ]
    sufficient = (
        group
        for group in _groups(allowed, node.name, missing)
        if sum(r.nodes[node.name] for r in group) >= missing and selection.may_preempt_all(group)
    )
    return min(
        sufficient,
        key=lambda group: (sum(r.devices for r in group), max(r.priority for r in group), len(group)),
        default=None,
    )


def _groups(allowed: list[RunningWorkload], node: str, missing: int) -> Iterator[tuple[RunningWorkload, ...]]:
    """Yield the groups of jobs to compare: every combination of a few; of many, by priority and by size."""
    if len(allowed) <= MAX_COMBINED:
        for size in range(1, len(allowed) + 1):
            yield from combinations(allowed, size)
        return
    for order in (
        sorted(allowed, key=lambda r: (r.priority, -r.nodes[node])),
        sorted(allowed, key=lambda r: -r.nodes[node]),
    ):
        freed, group = 0, []
        for running in order:
            if freed >= missing:
                break
            group.append(running)
            freed += running.nodes[node]
        yield tuple(group)
