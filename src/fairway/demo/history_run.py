"""Simulate the demo's history: the virtual engine's simulator, on its own clock, runs the generated jobs.

So the history obeys the policy: capacity is never exceeded, guarantees hold, lent GPUs are reclaimed, and
a preempted job has several attempts. Nodes fail and are repaired, spot nodes come and go.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from random import Random
from typing import Final

from fairway.demo.history_jobs import HistoricJob
from fairway.demo.jobs import DAY, HOUR
from fairway.model.errors import Refused
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool
from fairway.model.names import ClusterName, NodeName, PoolName
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.simulate.cluster import SimState, Simulator, terms_of
from fairway.simulate.cluster.jobs import SimAttempt, SimEnding

MAX_WAITING: Final = 70
"""Waiting jobs in a cluster above which users submit less."""
LAST_SECONDS: Final = 1200
"""Jobs that run at the end are ended within these last seconds, because the live clusters start empty."""
_PROGRESS_EVERY: Final = 500


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A finished job; each task of an array is one."""

    planned: HistoricJob
    cluster: ClusterName
    number: int
    """Of the cluster's simulator: attempts name the job that preempted them by it."""
    task: int
    state: SimState
    ended: float
    attempts: tuple[SimAttempt, ...]


@dataclass(frozen=True, slots=True)
class Outage:
    """A period during which a node was down or drained."""

    node: NodeName
    pool: PoolName
    start: int
    end: int
    health: Health


@dataclass(frozen=True, slots=True)
class Fragment:
    """Free devices of a node at a full hour that are too few for any job that waits for them."""

    at: int
    supply: Supply
    node: NodeName
    devices: int


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The result of a simulated run."""

    start: int
    end: int
    jobs: tuple[FinishedJob, ...]
    """In order of submission."""
    outages: tuple[Outage, ...]
    fragments: tuple[Fragment, ...] = ()
    """In order of time for each node."""


def generate_outages(fleet: Fleet, start: int, end: int, seed: int) -> tuple[Outage, ...]:
    """Generate outages: rare and long of owned nodes, frequent and short of spot nodes; one maintenance."""
    random = Random(seed)  # noqa: S311 - nothing secret
    found = [outage for pool in fleet.pools for outage in _pool_outages(pool, start, end, random)]
    return tuple(sorted(found, key=lambda outage: (outage.start, outage.node)))


def run(
    fleet: Fleet,
    jobs: Iterable[HistoricJob],
    outages: tuple[Outage, ...],
    start: int,
    end: int,
    on_progress: Callable[[float], None] = lambda _fraction: None,
) -> SimulatedRun:
    """Run the simulation and report the completed fraction. It takes seconds of CPU time: use a thread."""
    clusters = {cluster.name: _ClusterRun(fleet, cluster, outages, start, end) for cluster in fleet.clusters}
    by_pool = {pool.name: clusters[pool.cluster] for pool in fleet.pools}
    for number, job in enumerate(jobs):
        by_pool[job.supply.pool].submit(job)
        if number % _PROGRESS_EVERY == 0:
            on_progress((job.at - start) / (end - start))
    finished = [job for cluster_run in clusters.values() for job in cluster_run.finished_jobs()]
    finished.sort(key=lambda job: (job.planned.at, job.planned.number, job.task))
    fragments = tuple(found for cluster_run in clusters.values() for found in cluster_run.fragments)
    return SimulatedRun(start, end, tuple(finished), outages, fragments)


class _ClusterRun:
    """The simulation of one cluster."""

    def __init__(
        self, fleet: Fleet, cluster: Cluster, outages: tuple[Outage, ...], start: int, end: int
    ) -> None:
        pools = fleet.pools_of(cluster.name)
        pool_names = {pool.name for pool in pools}
        self._cluster = cluster.name
        self._end = end
        self._simulator = Simulator(pools, terms_of(fleet), float(start), history_size=1_000_000)
        self._submitted: dict[int, tuple[HistoricJob, int]] = {}
        self._numbers = count()
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._random = Random(end)  # noqa: S311 - nothing secret
        self.fragments: Final[list[Fragment]] = []
        for outage in outages:
            if outage.pool in pool_names:
                self._plan_outage(outage)
        for hour in range(start - start % HOUR + HOUR, end, HOUR):
            self._schedule(hour, partial(self._sample_fragments, hour))

    def submit(self, job: HistoricJob) -> None:
        """Submit a job at its time, unless many jobs wait already."""
        self._advance(job.at)
        waiting = self._simulator.waiting()
        if waiting > MAX_WAITING and self._random.random() < 1 - MAX_WAITING / waiting:
            return
        request = job.request()
        for task in range(job.tasks):
            try:
                number = self._simulator.submit(request)
            except Refused:
                return  # its team may not run it: leave it out
            self._submitted[number] = (job, task)
            if job.gives_up_after is not None:
                self._schedule(job.at + job.gives_up_after, partial(self._give_up, number))

    def finished_jobs(self) -> Iterator[FinishedJob]:
        """Return all jobs that started or were cancelled; jobs that still wait at the end are dropped."""
        self._advance(self._end)
        for view in self._simulator.jobs():
            planned, task = self._submitted[view.id]
            attempts = self._simulator.attempts(view.id)
            state, ended = view.state, view.ended
            if ended is None:
                if not attempts:
                    continue
                state, ended, attempts = self._end_now(planned, attempts)
            elif planned.cancelled and state is SimState.DONE:
                state = SimState.CANCELLED
                attempts = (*attempts[:-1], replace(attempts[-1], ending=SimEnding.CANCELLED))
            yield FinishedJob(planned, self._cluster, view.id, task, state, ended, attempts)

    def _end_now(
        self, planned: HistoricJob, attempts: tuple[SimAttempt, ...]
    ) -> tuple[SimState, float, tuple[SimAttempt, ...]]:
        """End a job that is running, or waiting again after an attempt, at the end of the history."""
        last = attempts[-1]
        if last.ended is not None:
            return SimState.CANCELLED, float(self._end), attempts
        ended = max(last.started + 1, self._end - LAST_SECONDS * self._random.random())
        ended = min(round(ended, 3), float(self._end))
        state, ending = (
            (SimState.CANCELLED, SimEnding.CANCELLED)
            if planned.cancelled
            else (SimState.DONE, SimEnding.DONE)
        )
        return state, ended, (*attempts[:-1], replace(last, ended=ended, ending=ending))

    def _advance(self, until: float) -> None:
        while self._agenda and self._agenda[0][0] <= until:
            at, _, action = heapq.heappop(self._agenda)
            self._simulator.advance(at)
            action()
        self._simulator.advance(until)

    def _schedule(self, at: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._agenda, (at, next(self._numbers), action))

    def _give_up(self, number: int) -> None:
        if self._simulator.job(number).state is SimState.WAITING:
            self._simulator.cancel(number)

    def _sample_fragments(self, at: int) -> None:
        smallest = self._simulator.smallest_waiting()
        for node in self._simulator.nodes().values():
            if node.ready:
                for slice_ in node.places:
                    supply = Supply(node.pool.name, slice_)
                    if 0 < (free := node.free(slice_)) < smallest.get(supply, 0):
                        self.fragments.append(Fragment(at, supply, node.name, free))

    def _plan_outage(self, outage: Outage) -> None:
        simulator, node = self._simulator, outage.node
        if outage.health is Health.DOWN:
            self._schedule(outage.start, partial(simulator.lose, node))
            self._schedule(outage.end, partial(simulator.recover, node))
        else:
            self._schedule(outage.start, partial(simulator.drain, node, "maintenance"))
            self._schedule(outage.end, partial(simulator.resume, node))


def _pool_outages(pool: Pool, start: int, end: int, random: Random) -> Iterator[Outage]:
    nodes = sorted(Simulator([pool]).nodes())
    spot = pool.capacity is Capacity.SPOT
    every, gone = (14 * HOUR, (900, 5400)) if spot else (9 * DAY, (2 * HOUR, 20 * HOUR))
    free_at = dict.fromkeys(nodes, start)
    at = start + int(random.expovariate(1 / every))
    while at < end:
        node = random.choice(nodes)
        until = at + int(random.uniform(*gone))
        if free_at[node] <= at and until < end - HOUR:
            free_at[node] = until + HOUR
            yield Outage(node, pool.name, at, until, Health.DOWN)
        at += 1 + int(random.expovariate(1 / every))
    if pool.capacity is Capacity.OWNED and not pool.slices:
        yield from _maintenance(pool, nodes[: max(1, len(nodes) // 3)], free_at, start, end)


def _maintenance(
    pool: Pool, nodes: list[NodeName], free_at: dict[NodeName, int], start: int, end: int
) -> Iterator[Outage]:
    """Generate one maintenance of six hours on a Tuesday morning, about two thirds into the history."""
    day = start + (end - start) * 2 // 3 // DAY * DAY
    day -= day % DAY
    while (day // DAY + 3) % 7 != 1:
        day += DAY
    begins, ends = day + 6 * HOUR, day + 12 * HOUR
    if start < begins and ends < end - HOUR:
        for node in nodes:
            if free_at[node] <= begins:
                yield Outage(node, pool.name, begins, ends, Health.DRAINED)
