"""A cluster that keeps the promises of a policy, in memory, on its own clock.

    cluster = Simulator(fleet.pools_of("lab"), terms_of(fleet))
    job = cluster.submit(JobRequest(user, pool, gpus=8, nodes=2, team=team, seconds=3600))
    cluster.advance(until=7200)
    cluster.job(job).state

Time is seconds on a clock that only `advance` moves. Everything is decided by what was called in which order:
no wall clock, no chance. What a refusal or a wait is about is said in words that a user understands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

from fairway.engines.port import Refused
from fairway.engines.virtual.simulator import reasons
from fairway.engines.virtual.simulator.admission import JobAdmission
from fairway.engines.virtual.simulator.events import EventLoop
from fairway.engines.virtual.simulator.jobs import (
    ENDED,
    JobChange,
    JobRequest,
    JobView,
    SimAttempt,
    SimEnding,
    SimJob,
    SimState,
    TeamQuota,
)
from fairway.engines.virtual.simulator.nodes import SimulatedNode, build_nodes
from fairway.engines.virtual.simulator.quota import BOUNDLESS
from fairway.engines.virtual.simulator.terms import ClusterTerms
from fairway.model.fleet import Pool
from fairway.model.names import NodeName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply

_NOBODY = ClusterTerms()


class Simulator:
    """Jobs, nodes and terms of one cluster. See the module for how it is used."""

    def __init__(
        self,
        pools: Iterable[Pool],
        terms: ClusterTerms = _NOBODY,
        start: float = 0.0,
        *,
        remember: int = 100_000,
        patience_seconds: float = 60.0,
    ) -> None:
        """`remember`: how many ended jobs, and how many changes, are kept; 0: none, nor any attempts.

        `patience_seconds`: how long a job must have waited before places are kept idle for it, where jobs
        without a time limit stand in its way.
        """
        self._indexes, self._nodes = build_nodes(pools)
        self._loop: Final = EventLoop(
            self._indexes.values(), start, remember=remember, patience_seconds=patience_seconds
        )
        self._quotas: dict[Supply, dict[TeamName, TeamQuota]] = {supply: {} for supply in self._indexes}
        self._half_life = 1.0
        self._number = 0
        self.apply(terms)

    # time

    @property
    def now(self) -> float:
        return self._loop.now

    @property
    def events(self) -> int:
        """Arrivals and ends so far: what the cost of a run is counted in."""
        return self._loop.events

    @property
    def ended(self) -> int:
        """Jobs that are over, so far."""
        return self._loop.ended

    def next_at(self) -> float | None:
        """When the next thing happens by itself; None: nothing will."""
        return self._loop.next_at()

    def advance(self, until: float) -> None:
        """Let time pass."""
        self._loop.advance(until)

    # policy

    @property
    def terms(self) -> ClusterTerms:
        return self._terms

    def apply(self, terms: ClusterTerms, *, evict: bool = False) -> None:
        """Change the terms. Nothing that runs ends and nothing guaranteed becomes lent, unless `evict`.

        Raises Refused, having changed nothing, if a team goes that has jobs. O(teams + jobs).
        """
        self._refuse_removal(terms)
        schedulers = self._loop.schedulers
        protected = {job for scheduler in schedulers for job in reasons.protected(scheduler.accounting)}
        for scheduler in schedulers:
            scheduler.drop_reservation()
        before, half_life = self._quotas, self._half_life
        self._terms = terms
        self._half_life = float(max(1, terms.fairness.half_life_seconds))
        for supply, scheduler in zip(self._indexes, schedulers, strict=True):
            self._quotas[supply] = scheduler.accounting.reset(terms, before[supply], self.now, half_life)
        self._admission = JobAdmission(terms, self._indexes, self._quotas)
        self._recount()
        for scheduler in schedulers:
            reasons.keep(scheduler.accounting, frozenset() if evict else protected)
        if evict:
            self._evict()
        self._loop.schedule_all()

    def _refuse_removal(self, terms: ClusterTerms) -> None:
        staying = {team.name for team in terms.teams}
        for job in self._loop.jobs.values():
            name = TeamName(job.quota.name)
            if name not in staying and job.state not in ENDED:
                raise Refused(
                    "TeamHasJobs",
                    f"team {name} has jobs: it cannot be removed",
                    f"drain it first: set  draining: true  on {name}, apply, and wait for its jobs to end",
                )

    def _recount(self) -> None:
        """Count jobs that are not over on the quotas of the new terms, by the ranks of their priorities."""
        alive = [job for job in self._loop.jobs.values() if job.state not in ENDED]
        for job in sorted(alive, key=lambda job: (job.started, job.id)):
            accounting = self._loop.schedulers[job.supply_number].accounting
            job.quota = self._quotas[accounting.index.supply][TeamName(job.quota.name)]
            priority = self._terms.priority(job.priority)
            if priority is not None:
                job.set_rank(priority.rank, priority.preemptible)
            if job.places:
                accounting.count_held(job, 1, self.now)
            elif job.state is SimState.WAITING:
                accounting.join(job)

    def _evict(self) -> None:
        for scheduler in self._loop.schedulers:
            for quota in list(scheduler.accounting.root.all_inside()):
                while quota.path and quota.held > quota.ceiling:
                    inside = (job for node in quota.all_inside() for job in node.weakest_first(BOUNDLESS))
                    self._loop.requeue(next(inside), SimEnding.EVICTED, None)

    # people

    def check(self, request: JobRequest) -> None:
        """Raises Refused, with the reason, if it may never run."""
        self._admission.admit(self._number + 1, request, self.now)

    def submit(self, request: JobRequest, at: float | None = None, *, held: bool = False) -> int:
        """The job's number. Raises Refused, with the reason, if it may never run. `at`: arrives then."""
        loop = self._loop
        job = self._admit(request, loop.now if at is None else at)
        if held:
            loop.hold(job)
        elif at is not None and at > loop.now:
            loop.arrive_later(job, at)
        else:
            loop.arrive(job)
            loop.schedule()
        return job.id

    def submit_many(self, requests: Iterable[JobRequest]) -> tuple[int, ...]:
        """Jobs of one moment: who starts first is decided among all of them."""
        numbers = []
        for request in requests:
            job = self._admit(request, self.now)
            self._loop.arrive(job)
            numbers.append(job.id)
        self._loop.schedule()
        return tuple(numbers)

    def replay(self, trace: Iterable[tuple[float, JobRequest]]) -> None:
        """Submit each job when its moment comes; refused ones are left out. The trace is in order of time."""
        loop = self._loop
        for at, request in trace:
            if at > loop.now:
                loop.advance(at)
            with suppress(Refused):
                loop.arrive(self._admit(request, loop.now))
                loop.schedule()

    def _admit(self, request: JobRequest, at: float) -> SimJob:
        job = self._admission.admit(self._number + 1, request, at)
        self._number += 1
        self._loop.jobs[job.id] = job
        return job

    def cancel(self, number: int, by: UserName | None = None) -> None:
        """End a job, running or not. `by`: the person who asks; None: an administrator. Raises Refused."""
        self._loop.cancel(self._known(number, by, "cancel"))
        self._loop.schedule()

    def hold(self, number: int, by: UserName | None = None) -> None:
        """Keep a waiting job from starting until it is released."""
        job = self._known(number, by, "hold")
        if job.state is SimState.WAITING:
            self._loop.hold(job)
            self._loop.schedule()

    def release(self, number: int, by: UserName | None = None) -> None:
        """Let a held job start again when it can."""
        job = self._known(number, by, "release")
        if job.state is SimState.HELD:
            self._loop.release(job)
            self._loop.schedule()

    def _known(self, number: int, by: UserName | None, verb: str) -> SimJob:
        job = self._loop.jobs.get(number)
        if job is None:
            raise Refused("UnknownJob", f"there is no job {number}", "fairway get jobs")
        if by is not None and not self._admission.may_touch(by, job):
            raise Refused(
                "NotYourTeam",
                f"{by} may not {verb} job {number}: it is {job.user}'s, of team {job.quota.name}",
                f"ask {job.user} or somebody of team {job.quota.name}",
            )
        return job

    # nodes

    def lose(self, node: NodeName) -> tuple[int, ...]:
        """The node dies and what runs there with it; those jobs wait again. Gives their numbers."""
        dead = self._nodes[node]
        dead.lost = True
        lost: dict[SimJob, None] = {}
        for index, place in dead.places.values():
            lost.update(index.jobs_on[place])
        self._reopen(dead)
        for job in lost:
            self._loop.requeue(job, SimEnding.NODE_LOST, None)
        self._loop.schedule_all()
        return tuple(job.id for job in lost)

    def recover(self, node: NodeName) -> None:
        self._nodes[node].lost = False
        self._reopen(self._nodes[node])
        self._loop.schedule_all()

    def drain(self, node: NodeName, reason: str) -> None:
        """Close the node to new work; what runs there goes on."""
        self._nodes[node].drained = reason
        self._reopen(self._nodes[node])
        self._loop.schedule_all()

    def resume(self, node: NodeName) -> None:
        self._nodes[node].drained = None
        self._reopen(self._nodes[node])
        self._loop.schedule_all()

    def sicken(self, node: NodeName, devices: int, slice_: SliceName | None = None) -> None:
        """So many devices of the node are unhealthy now; 0 heals them."""
        index, place = self._nodes[node].places[slice_]
        before, index.sick[place] = index.sick[place], devices
        index.change_free(place, before - devices)
        self._loop.schedule_all()

    def occupy(self, node: NodeName, devices: int, slice_: SliceName | None = None) -> None:
        """Something that is no job takes devices of the node; below 0: gives them back."""
        index, place = self._nodes[node].places[slice_]
        index.change_free(place, -devices)
        self._loop.schedule_all()

    def _reopen(self, node: SimulatedNode) -> None:
        for index, place in node.places.values():
            self._loop.schedulers[index.number].drop_reservation()
            index.open[place] = node.ready
            index.set_listed(place, node.ready)

    # seeing

    def job(self, number: int) -> JobView:
        """One job as it is now, with why it waits."""
        return self._view(self._known(number, None, "see"))

    def remembers(self, number: int) -> bool:
        """Whether there is such a job, or was not long ago."""
        return number in self._loop.jobs

    def jobs(self) -> Iterator[JobView]:
        """Every job that is remembered, by number."""
        return (self._view(job) for job in self._loop.jobs.values())

    def _view(self, job: SimJob) -> JobView:
        return reasons.view(job, self._loop.schedulers[job.supply_number])

    def attempts(self, number: int, by: UserName | None = None) -> tuple[SimAttempt, ...]:
        """Each run of a job. `by`: who reads; only members of its team may."""
        return tuple(self._known(number, by, "read").history)

    @property
    def change_count(self) -> int:
        """Changes of jobs so far, whether or not they are still remembered."""
        return self._loop.change_count

    def changes(self, after: int = 0) -> tuple[JobChange, ...]:
        """Changes of jobs, after the first `after` ones; those too old to be remembered are left out."""
        newest = islice(reversed(self._loop.journal), max(0, self.change_count - after))
        return tuple(newest)[::-1]

    def held_devices(self, supply: Supply) -> Mapping[TeamName, reasons.HeldDevices]:
        """What each team holds of a supply, everything inside it counted in."""
        return reasons.held_devices(self._quotas[supply], self.now, self._half_life)

    def nodes(self) -> Mapping[NodeName, SimulatedNode]:
        """The nodes, to look at; changes go through the methods above."""
        return self._nodes

    def under(self) -> Counter[tuple[SimState, TeamName, Supply, UserName, PriorityName]]:
        """How many jobs that are not over stand under which words of the policy. O(jobs)."""
        return Counter(
            (job.state, TeamName(job.quota.name), job.request.supply, job.user, job.priority)
            for job in self._loop.jobs.values()
            if job.state not in ENDED
        )

    def waiting(self) -> int:
        """How many jobs wait."""
        return sum(top.waiting for s in self._loop.schedulers for top in s.accounting.root.children)
