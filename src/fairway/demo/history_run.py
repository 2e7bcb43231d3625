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

from fairway.demo.history_jobs import DAY, HOUR, HistoricJob
from fairway.engines.port import Refused
from fairway.engines.virtual import SimState, Simulator, terms_of
from fairway.engines.virtual.simulator.jobs import SimAttempt, SimEnding
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool
from fairway.model.names import ClusterName, NodeName, PoolName
from fairway.model.observation import Health

HELD_BACK: Final = 70
"""Waiting jobs in a cluster above which users submit less."""
LAST_SECONDS: Final = 1200
"""Jobs that run at the end are ended within these last seconds, because the live clusters start empty."""
_TELL_EVERY: Final = 500


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished job; each task of an array is one."""

    asked: HistoricJob
    cluster: ClusterName
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
class PastRun:
    """The result of a simulated run."""

    start: int
    end: int
    jobs: tuple[Ran, ...]
    """In order of submission."""
    outages: tuple[Outage, ...]


def outages(fleet: Fleet, start: int, end: int, seed: int) -> tuple[Outage, ...]:
    """Generate outages: rare and long of owned nodes, frequent and short of spot nodes; one maintenance."""
    random = Random(seed)  # noqa: S311 - nothing secret
    found = [one for pool in fleet.pools for one in _of_pool(pool, start, end, random)]
    return tuple(sorted(found, key=lambda one: (one.start, one.node)))


def run(
    fleet: Fleet,
    asked: Iterable[HistoricJob],
    broken: tuple[Outage, ...],
    start: int,
    end: int,
    tell: Callable[[float], None] = lambda _part: None,
) -> PastRun:
    """Run the simulation; `tell` gets the completed fraction. It takes seconds of CPU time: use a thread."""
    clusters = {cluster.name: _Played(fleet, cluster, broken, start, end) for cluster in fleet.clusters}
    of_pool = {pool.name: clusters[pool.cluster] for pool in fleet.pools}
    for place, one in enumerate(asked):
        of_pool[one.supply.pool].send(one)
        if place % _TELL_EVERY == 0:
            tell((one.at - start) / (end - start))
    ran = [job for played in clusters.values() for job in played.over()]
    ran.sort(key=lambda job: (job.asked.at, job.asked.number, job.task))
    return PastRun(start, end, tuple(ran), broken)


class _Played:
    """The simulation of one cluster."""

    def __init__(
        self, fleet: Fleet, cluster: Cluster, broken: tuple[Outage, ...], start: int, end: int
    ) -> None:
        pools = fleet.pools_of(cluster.name)
        mine = {pool.name for pool in pools}
        self._cluster = cluster.name
        self._end = end
        self._simulator = Simulator(pools, terms_of(fleet), float(start), remember=1_000_000)
        self._asked: dict[int, tuple[HistoricJob, int]] = {}
        self._numbers = count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._random = Random(end)  # noqa: S311 - nothing secret
        for outage in broken:
            if outage.pool in mine:
                self._plan_outage(outage)

    def send(self, one: HistoricJob) -> None:
        """Submit a job at its time, unless many jobs wait already."""
        self._advance(one.at)
        waiting = self._simulator.waiting()
        if waiting > HELD_BACK and self._random.random() < 1 - HELD_BACK / waiting:
            return
        request = one.request()
        for task in range(one.tasks):
            try:
                number = self._simulator.submit(request)
            except Refused:
                return  # nobody of its team may run this: it never was
            self._asked[number] = (one, task)
            if one.patience is not None:
                self._at(one.at + one.patience, partial(self._give_up, number))

    def over(self) -> Iterator[Ran]:
        """Return all jobs that started or were cancelled; jobs that still wait at the end are dropped."""
        self._advance(self._end)
        for view in self._simulator.jobs():
            one, task = self._asked[view.id]
            attempts = self._simulator.attempts(view.id)
            if view.ended is not None:
                cancelled = one.regretted and view.state is SimState.DONE
                if cancelled:
                    attempts = (*attempts[:-1], replace(attempts[-1], ending=SimEnding.CANCELLED))
                state = SimState.CANCELLED if cancelled else view.state
                yield Ran(one, self._cluster, task, state, view.ended, attempts)
            elif attempts:
                yield self._cut_off(one, task, attempts)

    def _cut_off(self, one: HistoricJob, task: int, attempts: tuple[SimAttempt, ...]) -> Ran:
        """End a job that is running, or waiting again after an attempt, at the end of the history."""
        last = attempts[-1]
        if last.ended is not None:
            return Ran(one, self._cluster, task, SimState.CANCELLED, float(self._end), attempts)
        ended = max(last.started + 1, self._end - LAST_SECONDS * self._random.random())
        ended = min(round(ended, 3), float(self._end))
        state, ending = (
            (SimState.CANCELLED, SimEnding.CANCELLED) if one.regretted else (SimState.DONE, SimEnding.DONE)
        )
        return Ran(
            one,
            self._cluster,
            task,
            state,
            ended,
            (*attempts[:-1], replace(last, ended=ended, ending=ending)),
        )

    def _advance(self, until: float) -> None:
        while self._agenda and self._agenda[0][0] <= until:
            at, _, happens = heapq.heappop(self._agenda)
            self._simulator.advance(at)
            happens()
        self._simulator.advance(until)

    def _at(self, at: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at, next(self._numbers), happens))

    def _give_up(self, number: int) -> None:
        if self._simulator.job(number).state is SimState.WAITING:
            self._simulator.cancel(number)

    def _plan_outage(self, outage: Outage) -> None:
        simulator, node = self._simulator, outage.node
        if outage.health is Health.DOWN:
            self._at(outage.start, lambda: void(simulator.lose(node)))
            self._at(outage.end, lambda: simulator.recover(node))
        else:
            self._at(outage.start, lambda: simulator.drain(node, "maintenance"))
            self._at(outage.end, lambda: simulator.resume(node))


def void(_value: object) -> None:
    """Discard a value."""


def _of_pool(pool: Pool, start: int, end: int, random: Random) -> Iterator[Outage]:
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
        yield from _maintained(pool, nodes[: max(1, len(nodes) // 3)], free_at, start, end)


def _maintained(
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
