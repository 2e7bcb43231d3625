"""Detect starvation: a large job that smaller, later ones have overtaken too often. Pure.

With Kueue's BestEffortFIFO any job that fits goes first, so a stream of small jobs can keep a gang waiting
for ever. A job counts as starved once smaller, later ones have started on as many devices as it requests.
Then its own queue becomes StrictFIFO, and the other teams and queues that overtook it may not borrow anything
new, until it runs or until a time limit. No running job and no guarantee is affected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from fairway.engines.kubernetes.policy.intervention.snapshot import RunningWorkload, Snapshot, WaitingWorkload
from fairway.model.team import Supply

MAX_HELP_SECONDS: Final = 3600.0
"""How long other queues are restricted for one job; longer does more harm than its waiting."""
MAX_TRACKED: Final = 100
"""How many waiting jobs, the oldest, are tracked."""


@dataclass(slots=True)
class Overtaken:
    """The jobs that overtook a waiting job."""

    by: set[str] = field(default_factory=set)
    """Uids of Workloads that were created later and started earlier."""
    devices: int = 0
    own_queue: bool = False
    """Whether jobs of its own queue are among them."""
    teams: set[str] = field(default_factory=set)
    """Their teams outside its own branch: the outermost that is no ancestor of the waiting job's team."""
    queues: set[str] = field(default_factory=set)
    """Their ClusterQueues where there is no such team: low ones, and those of its own team."""
    helped_since: float | None = None


@dataclass(frozen=True, slots=True)
class StarvedJob:
    """A starved job, and what to restrict so that it gets the devices that become free."""

    waiting: WaitingWorkload
    supply: Supply
    strict_fifo: bool
    """Whether its own queue must become StrictFIFO."""
    blocked_teams: frozenset[str]
    """Teams that may not borrow anything new."""
    blocked_queues: frozenset[str]
    """ClusterQueues that may not borrow anything new."""


class Starvation:
    """A record of which waiting jobs were overtaken by which. After a restart it begins anew."""

    def __init__(self) -> None:
        self._overtaken: dict[str, Overtaken] = {}

    def find_starved_job(self, snapshot: Snapshot, now: float) -> StarvedJob | None:
        """Return the most overtaken job that can be helped. Returns None if no job is starved."""
        oldest = sorted(snapshot.waiting, key=lambda w: w.workload.metadata.creation_timestamp)[:MAX_TRACKED]
        by_uid = {w.workload.metadata.uid: w for w in oldest if not w.low}
        self._overtaken = {uid: self._overtaken.get(uid, Overtaken()) for uid in by_uid}
        for uid, waiting in by_uid.items():
            _count(snapshot, waiting, self._overtaken[uid])
        for uid in sorted(by_uid, key=lambda u: -self._overtaken[u].devices):
            waiting, overtaken = by_uid[uid], self._overtaken[uid]
            supply = next(_could_fit(snapshot, waiting), None)
            if overtaken.devices < waiting.devices or supply is None:
                continue
            if overtaken.helped_since is None:
                overtaken.helped_since = now
            if now - overtaken.helped_since <= MAX_HELP_SECONDS:
                teams, queues = frozenset(overtaken.teams), frozenset(overtaken.queues)
                return StarvedJob(waiting, supply, overtaken.own_queue, teams, queues)
        return None


def _count(snapshot: Snapshot, waiting: WaitingWorkload, overtaken: Overtaken) -> None:
    """Add the running jobs that overtook a waiting one since the last snapshot."""
    for running in snapshot.running:
        later = running.workload.metadata
        if (
            later.creation_timestamp > waiting.workload.metadata.creation_timestamp
            and running.devices < waiting.devices  # it fitted where the larger one did not
            and running.supply in waiting.supplies
            and later.uid not in overtaken.by
        ):
            overtaken.by.add(later.uid)
            if _competes(snapshot, waiting, running):
                _add(snapshot, waiting, running, overtaken)


def _add(
    snapshot: Snapshot, waiting: WaitingWorkload, running: RunningWorkload, overtaken: Overtaken
) -> None:
    admission = running.workload.status.admission
    queue = admission.cluster_queue if admission else ""
    if queue == waiting.queue:
        if running.priority > waiting.workload.spec.priority:
            return
        overtaken.own_queue = True
    else:
        common = {team.name for team in snapshot.with_ancestors(waiting.team)}
        outside = [t.name for t in snapshot.with_ancestors(running.team) if t.name not in common]
        if running.low or not outside:
            overtaken.queues.add(queue)
        else:
            overtaken.teams.add(outside[-1])
    overtaken.devices += running.devices


def _competes(snapshot: Snapshot, waiting: WaitingWorkload, running: RunningWorkload) -> bool:
    """Return whether the devices of a running job would help the waiting one.

    They would not if the waiting job is limited by a ceiling of its own team or of an ancestor, unless the
    running job is under the same ceiling and so helps to fill it.
    """
    supply = running.supply
    around_running = {team.name for team in snapshot.with_ancestors(running.team)}
    return all(
        team.name in around_running
        for team in snapshot.with_ancestors(waiting.team)
        if (grant := team.grant(supply)) is not None
        and grant.ceiling is not None
        and snapshot.used[team.name, supply] + waiting.devices > grant.ceiling
    )


def _could_fit(snapshot: Snapshot, waiting: WaitingWorkload) -> Iterator[Supply]:
    """Yield supplies that would be enough if they were empty, within all ceilings that apply to the job."""
    for supply in waiting.supplies:
        grants = [g for t in snapshot.with_ancestors(waiting.team) if (g := t.grant(supply)) is not None]
        if any(g.ceiling is not None and g.ceiling < waiting.devices for g in grants):
            continue
        pods_by_rack: Counter[str] = Counter()
        for node in snapshot.nodes.get(supply, ()):
            rack = node.labels.get(waiting.topology_label, "") if waiting.topology_label else ""
            pods_by_rack[rack] += node.total // max(1, waiting.devices_a_pod)
        if any(pods >= waiting.pods for pods in pods_by_rack.values()):
            yield supply
