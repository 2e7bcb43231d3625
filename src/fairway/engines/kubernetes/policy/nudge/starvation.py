"""Detect starvation: a large job that smaller, later ones have overtaken too often. Pure.

Kueue's BestEffortFIFO lets whatever fits go first, so a stream of small jobs can keep a gang waiting for
ever. Once smaller ones that came later have started on as many devices as it requests, it is its turn: its
own queue becomes StrictFIFO, and others that overtook it borrow nothing new, until it runs, or until that
has lasted too long to be worth it. No running job is touched, and no guarantee.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from fairway.engines.kubernetes.policy.nudge.snapshot import RunningWorkload, Snapshot, WaitingWorkload
from fairway.model.team import Supply

MOST_TURN_SECONDS: Final = 3600.0
"""Queues that wait longer than this for one job do more harm than its waiting."""
MOST_WATCHED: Final = 100
"""So many waiting jobs, the oldest, are watched."""


@dataclass(slots=True)
class Overtaken:
    """The jobs that overtook a waiting job."""

    by: set[str] = field(default_factory=set)
    """Jobs that came later and started earlier."""
    devices: int = 0
    own_queue: bool = False
    """Whether jobs of its own queue are among them."""
    teams: set[str] = field(default_factory=set)
    """Other branches they belong to: the outermost team that is no ancestor of the waiting job's team."""
    queues: set[str] = field(default_factory=set)
    """Their ClusterQueues where there is no such team: low ones, and those of its own team."""
    turn_since: float | None = None


@dataclass(frozen=True, slots=True)
class StarvedJob:
    """A job whose turn it is: it gets what comes free."""

    asking: WaitingWorkload
    supply: Supply
    strict: bool
    """Its own queue keeps its order."""
    teams: frozenset[str]
    queues: frozenset[str]
    """ClusterQueues that borrow nothing new; as do `teams`."""


class Starvation:
    """Counts which jobs were overtaken by which. What it forgets in a restart is counted again."""

    def __init__(self) -> None:
        self._known: dict[str, Overtaken] = {}

    def turn(self, snapshot: Snapshot, now: float) -> StarvedJob | None:
        """Return the turn of the most overtaken job. Returns None if no job is overtaken too much."""
        oldest = sorted(snapshot.asking, key=lambda a: a.workload.metadata.creation_timestamp)[:MOST_WATCHED]
        waiting = {a.workload.metadata.uid: a for a in oldest if not a.low}
        self._known = {uid: self._known.get(uid, Overtaken()) for uid in waiting}
        for asking in waiting.values():
            self._count(snapshot, asking)
        for uid in sorted(waiting, key=lambda u: -self._known[u].devices):
            asking, overtaken = waiting[uid], self._known[uid]
            supply = next(_could_fit(snapshot, asking), None)
            if overtaken.devices < asking.devices or supply is None:
                continue
            if overtaken.turn_since is None:
                overtaken.turn_since = now
            if now - overtaken.turn_since <= MOST_TURN_SECONDS:
                return StarvedJob(
                    asking,
                    supply,
                    overtaken.own_queue,
                    frozenset(overtaken.teams),
                    frozenset(overtaken.queues),
                )
        return None

    def _count(self, snapshot: Snapshot, asking: WaitingWorkload) -> None:
        overtaken = self._known[asking.workload.metadata.uid]
        since = asking.workload.metadata.creation_timestamp
        for holding in snapshot.holdings:
            later = holding.workload.metadata
            if (
                later.creation_timestamp > since
                and holding.devices < asking.devices  # it fitted where the larger one did not
                and holding.supply in asking.supplies
                and later.uid not in overtaken.by
            ):
                overtaken.by.add(later.uid)
                if _competes(snapshot, asking, holding):
                    self._note(snapshot, asking, holding, overtaken)

    def _note(
        self, snapshot: Snapshot, asking: WaitingWorkload, holding: RunningWorkload, overtaken: Overtaken
    ) -> None:
        admission = holding.workload.status.admission
        queue = admission.cluster_queue if admission else ""
        if queue == asking.queue:
            if holding.priority > asking.workload.spec.priority:
                return
            overtaken.own_queue = True
        else:
            around = {team.name for team in snapshot.line(asking.team)}
            outer = [team.name for team in snapshot.line(holding.team) if team.name not in around]
            if holding.low or not outer:
                overtaken.queues.add(queue)
            else:
                overtaken.teams.add(outer[-1])
        overtaken.devices += holding.devices


def _competes(snapshot: Snapshot, asking: WaitingWorkload, holding: RunningWorkload) -> bool:
    """Return whether what `holding` holds would help: not if the waiting job's own ceiling keeps it waiting.

    Those inside the ceiling fill it, and so do compete.
    """
    inside = {team.name for team in snapshot.line(holding.team)}
    return all(
        level.name in inside
        for level in snapshot.line(asking.team)
        if (grant := level.grant(holding.supply)) is not None
        and grant.ceiling is not None
        and snapshot.used[level.name, holding.supply] + asking.devices > grant.ceiling
    )


def _could_fit(snapshot: Snapshot, asking: WaitingWorkload) -> Iterator[Supply]:
    """Yield supplies that would do if they were empty, within every ceiling around it."""
    for supply in asking.supplies:
        ceilings = [g.ceiling for t in snapshot.line(asking.team) if (g := t.grant(supply)) is not None]
        if any(most is not None and most < asking.devices for most in ceilings):
            continue
        racks: dict[str, int] = {}
        for room in snapshot.rooms.get(supply, ()):
            rack = room.labels.get(asking.together, "") if asking.together else ""
            racks[rack] = racks.get(rack, 0) + room.total // max(1, asking.devices_a_pod)
        if any(pods >= asking.pods for pods in racks.values()):
            yield supply
