"""Which queues must keep their order for a while: a large job that later ones have overtaken enough. Pure.

Kueue's BestEffortFIFO lets whatever fits go first, so a stream of small jobs can keep a gang waiting
for ever. Once smaller ones that came later have started on as many devices as it asks for, it is its turn:
its queue becomes StrictFIFO until it runs, or until that has lasted too long to be worth it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fairway.engines.kubernetes.policy.standing import Asking, Standing

MOST_STRICT_SECONDS: Final = 3600.0
"""A queue that waits longer than this for its head does more harm than the head's waiting."""
MOST_WATCHED: Final = 10_000


@dataclass(slots=True)
class Overtaken:
    """What is remembered of a waiting job."""

    by: set[str] = field(default_factory=set)
    """Jobs that came later and started earlier."""
    devices: int = 0
    strict_since: float | None = None


class Starvation:
    """Counts who was overtaken by whom. What it forgets in a restart is counted again."""

    def __init__(self) -> None:
        self._known: dict[str, Overtaken] = {}

    def turn(self, standing: Standing, now: float) -> dict[str, Asking]:
        """ClusterQueues that must be strict now, each with the job whose turn it is."""
        waiting = {a.workload.metadata.uid: a for a in standing.asking[:MOST_WATCHED]}
        self._known = {uid: self._known.get(uid, Overtaken()) for uid in waiting}
        self._count(standing, waiting)
        strict: dict[str, Asking] = {}
        for uid, asking in waiting.items():
            overtaken = self._known[uid]
            if overtaken.devices < asking.devices or not _can_ever_fit(standing, asking):
                continue
            if overtaken.strict_since is None:
                overtaken.strict_since = now
            if now - overtaken.strict_since <= MOST_STRICT_SECONDS:
                strict.setdefault(asking.queue, asking)
        return strict

    def _count(self, standing: Standing, waiting: dict[str, Asking]) -> None:
        by_queue: dict[str, list[tuple[str, Asking]]] = {}
        for uid, asking in waiting.items():
            by_queue.setdefault(asking.queue, []).append((uid, asking))
        for holding in standing.holdings:
            admission = holding.workload.status.admission
            later = holding.workload.metadata
            for uid, asking in by_queue.get(admission.cluster_queue if admission else "", ()):
                overtaken = self._known[uid]
                if (
                    later.uid not in overtaken.by
                    and later.creation_timestamp > asking.workload.metadata.creation_timestamp
                    and holding.priority <= asking.workload.spec.priority
                    and holding.devices < asking.devices  # it fitted where the larger one did not
                ):
                    overtaken.by.add(later.uid)
                    overtaken.devices += holding.devices


def _can_ever_fit(standing: Standing, asking: Asking) -> bool:
    """On an empty pool, within every ceiling around it: else its queue would wait for nothing."""
    for supply in asking.supplies:
        ceilings = [g.ceiling for t in standing.line(asking.team) if (g := t.grant(supply)) is not None]
        if any(most is not None and most < asking.devices for most in ceilings):
            continue
        racks: dict[str, int] = {}
        for room in standing.rooms.get(supply, ()):
            rack = room.labels.get(asking.together, "") if asking.together else ""
            racks[rack] = racks.get(rack, 0) + room.total // max(1, asking.devices_a_pod)
        if any(pods >= asking.pods for pods in racks.values()):
            return True
    return False
