"""Restore a simulated cluster from a snapshot, to play it forward, and take a snapshot of one. Pure.

    restored = restore(snapshot, lambda job: 3600.0)
    restored.simulator.advance(snapshot.at + 7200)

Whoever submitted what is in a snapshot was allowed to, so users are made members of the teams of their jobs.
A running job of a team that the fleet does not have belongs to a team of its own: it holds its devices until
it ends, and nothing preempts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from fairway.model.errors import Refused
from fairway.model.fleet import Capacity, Pool
from fairway.model.job import JobId
from fairway.model.names import ClusterName, NodeName, TeamName, UserName
from fairway.model.team import Grant, Supply, Team
from fairway.simulate.cluster import ClusterTerms, JobRequest, NodeSnapshot, SimState, Simulator
from fairway.simulate.cluster.events import ObservesAttempts
from fairway.simulate.cluster.jobs import FOREVER
from fairway.simulate.snapshot import ClusterSnapshot, RunningJob, WaitingJob

OUTSIDE: Final = TeamName("(outside the fleet)")

SecondsOf = Callable[[RunningJob | WaitingJob], float]
"""Returns how long a job runs in all, also before the snapshot."""


@dataclass(frozen=True, slots=True)
class RestoredCluster:
    """A simulated cluster in the state of a snapshot."""

    simulator: Simulator
    waiting: Mapping[int, JobId]
    """The waiting jobs by the number that the simulator knows them by."""
    refused: Mapping[JobId, Refused]
    """Jobs that could never run as they are, and why."""


class SnapshotPlan:
    """Restores one snapshot several times; looks up terms, numbers and places once. O(jobs + nodes)."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot: Final = snapshot
        self._supplies: Final = frozenset(node.supply for node in snapshot.nodes)
        self._spot: Final = frozenset(p.name for p in snapshot.pools if p.capacity is Capacity.SPOT)
        teams = {team.name for team in snapshot.terms.teams}
        self._terms: Final = _terms_for(snapshot, teams)
        places: dict[Supply, dict[NodeName, int]] = {}
        for node in snapshot.nodes:
            of = places.setdefault(node.supply, {})
            of[node.name] = len(of)
        numbers = _numbers(snapshot)
        self._running: Final[list[tuple[int, RunningJob, JobRequest, tuple[int, ...], bool]]] = []
        parts = len(numbers)
        for job in snapshot.running:
            outside = job.request.team not in teams
            request = replace(job.request, team=OUTSIDE) if outside else job.request
            for n, (part, where) in enumerate(_parts(request, job.nodes, places.get(request.supply, {}))):
                parts += n > 0
                number = numbers[job.job] if n == 0 else parts
                self._running.append((number, job, part, where, outside))
        self._waiting: Final = [
            (numbers[job.job], job, self._tolerant(job.request))
            for job in sorted(snapshot.waiting, key=lambda job: numbers[job.job])
        ]

    def _tolerant(self, request: JobRequest) -> JobRequest:
        """Return a request with what the engine that accepted it must have been told."""
        return replace(request, tolerates_loss=True) if request.pool in self._spot else request

    def restore(
        self,
        seconds_of: SecondsOf,
        *,
        observer: ObservesAttempts | None = None,
        history_size: int = 0,
        reserve_after_seconds: float = 60.0,
    ) -> RestoredCluster:
        """Make a simulated cluster of the snapshot, in which each job runs for `seconds_of`."""
        snapshot = self._snapshot
        simulator = Simulator(
            snapshot.pools,
            self._terms,
            snapshot.at,
            history_size=history_size,
            reserve_after_seconds=reserve_after_seconds,
            requeue_seconds=snapshot.requeue_seconds,
            observer=observer,
            nodes=snapshot.nodes,
        )
        for number, running, part, places, outside in self._running:
            if running.request.supply in self._supplies:
                seconds = FOREVER if running.service else seconds_of(running)
                simulator.restore_running(
                    number, part, running.submitted, running.started, seconds, places, protected=outside
                )
        waiting: dict[int, JobId] = {}
        refused: dict[JobId, Refused] = {}
        for number, job, request in self._waiting:
            try:
                simulator.restore_waiting(number, request, job.submitted, seconds_of(job))
            except Refused as error:
                refused[job.job] = error
            else:
                waiting[number] = job.job
        simulator.restore(snapshot.recent_use)
        return RestoredCluster(simulator, waiting, refused)


def restore(snapshot: ClusterSnapshot, seconds_of: SecondsOf) -> RestoredCluster:
    """Make a simulated cluster of a snapshot, in which each job runs for `seconds_of`."""
    return SnapshotPlan(snapshot).restore(seconds_of, history_size=len(snapshot.waiting) + 1000)


def _terms_for(snapshot: ClusterSnapshot, teams: set[TeamName]) -> ClusterTerms:
    """Return the terms with the members that the jobs tell of, and a team of the jobs outside the fleet."""
    members: dict[TeamName, set[UserName]] = {}
    for job in (*snapshot.waiting, *snapshot.arrivals):
        if job.request.team is not None:
            members.setdefault(job.request.team, set()).add(job.request.user)
    supplies = dict.fromkeys(node.supply for node in snapshot.nodes)
    outside = Team(OUTSIDE, grants=tuple(Grant(supply) for supply in supplies))
    known = (
        replace(team, members=(*team.members, *sorted(new)))
        if (new := members.get(team.name, set()).difference(team.members))
        else team
        for team in snapshot.terms.teams
    )
    return replace(snapshot.terms, teams=(*known, outside))


def _numbers(snapshot: ClusterSnapshot) -> dict[JobId, int]:
    """Number all jobs from 1: waiting ones in their order, running ones among them by age.

    A running job that is preempted waits where its age places it.
    """
    keys: list[tuple[float, JobId]] = []
    latest = 0.0
    for job in snapshot.waiting:
        latest = max(latest, job.submitted)
        keys.append((latest, job.job))
    ordered = iter([job for _, job in keys])
    waiting = {job.job for job in snapshot.waiting}
    keys += [(job.submitted, job.job) for job in snapshot.running]
    found: dict[JobId, int] = {}
    for number, (_, job_id) in enumerate(sorted(keys), start=1):
        # Among waiting jobs, only their own order counts, however old they are.
        found[next(ordered) if job_id in waiting else job_id] = number
    return found


def _parts(
    request: JobRequest, nodes: tuple[NodeName, ...], places: Mapping[NodeName, int]
) -> Iterator[tuple[JobRequest, tuple[int, ...]]]:
    """Split a running job by how many of its parts are on one node; what is on no known node is left out.

    The simulator gives a job the same on each of its nodes; pods of one job may share a node.
    """
    together: dict[int, list[int]] = {}
    for name, parts in Counter(nodes).items():
        if name in places:
            together.setdefault(parts, []).append(places[name])
    if len(nodes) < request.nodes and len(together) == 1 and 1 in together:
        # An engine may name each node once, whatever runs there.
        each, rest = divmod(request.nodes, len(nodes))
        if not rest:
            together = {each: together[1]}
    for parts, where in together.items():
        whole = parts == 1 and len(where) == request.nodes
        part = request if whole else replace(request, gpus=request.gpus * parts, nodes=len(where))
        yield part, tuple(where)


def snapshot_of(simulator: Simulator, cluster: ClusterName, pools: Iterable[Pool]) -> ClusterSnapshot:
    """Take a snapshot of a simulated cluster: its own numbers become ids. O(jobs in memory + nodes)."""
    nodes = [
        NodeSnapshot(
            node.name,
            Supply(node.pool.name, slice_),
            index.total[place],
            index.unhealthy[place],
            node.ready,
            index.racks[place],
        )
        for node in simulator.nodes().values()
        for slice_, (index, place) in node.places.items()
    ]
    running: list[tuple[int, RunningJob]] = []
    waiting: list[WaitingJob] = []
    for job in sorted(simulator.unfinished(), key=lambda job: job.id):
        limit = None if job.time_limit == FOREVER else job.time_limit
        request = replace(
            job.request, team=TeamName(job.quota.name), priority=job.priority, limit_seconds=limit
        )
        if job.state is SimState.RUNNING:
            names = simulator.node_names(job)
            one = RunningJob(JobId(job.id), request, job.submitted, job.started, names)
            running.append((job.start_number, one))
        elif job.state is SimState.WAITING:
            waiting.append(WaitingJob(JobId(job.id), request, job.submitted))
    running.sort(key=lambda started: (started[1].started, started[0]))
    return ClusterSnapshot(
        cluster,
        simulator.now,
        tuple(pools),
        simulator.terms,
        tuple(nodes),
        tuple(job for _, job in running),
        tuple(waiting),
        MappingProxyType(simulator.recent_use()),
    )
