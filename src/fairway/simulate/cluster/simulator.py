"""Simulate a cluster that keeps the promises of a policy, in memory, on its own clock.

    cluster = Simulator(fleet.pools_of("lab"), terms_of(fleet))
    job = cluster.submit(JobRequest(user, pool, gpus=8, nodes=2, team=team, seconds=3600))
    cluster.advance(until=7200)
    cluster.job(job).state

Time is seconds on a clock that only `advance` moves. The simulation is deterministic: it depends only on the
calls and their order, not on the wall clock or on chance. Refusals and wait reasons are texts for users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

from fairway.model.errors import Refused
from fairway.model.fleet import Pool
from fairway.model.job_change import job_started
from fairway.model.names import NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply
from fairway.simulate.cluster import reasons
from fairway.simulate.cluster.admission import JobAdmission
from fairway.simulate.cluster.events import NO_DELAYS, EventLoop, ObservesAttempts
from fairway.simulate.cluster.jobs import (
    ENDED,
    JobChange,
    JobRequest,
    JobView,
    SimAttempt,
    SimEnding,
    SimJob,
    SimState,
    TeamQuota,
    Wait,
)
from fairway.simulate.cluster.nodes import NodeSnapshot, SimulatedNode, build_nodes
from fairway.simulate.cluster.quota import UNLIMITED
from fairway.simulate.cluster.terms import ClusterTerms

_NO_TEAMS = ClusterTerms()


class Simulator:
    """A simulated cluster: jobs, nodes and terms. See the module for its use."""

    def __init__(
        self,
        pools: Iterable[Pool],
        terms: ClusterTerms = _NO_TEAMS,
        start: float = 0.0,
        *,
        history_size: int = 100_000,
        reserve_after_seconds: float = 60.0,
        start_seconds: float = 0.0,
        requeue_seconds: Mapping[PoolName, float] = NO_DELAYS,
        observer: ObservesAttempts | None = None,
        nodes: Iterable[NodeSnapshot] | None = None,
    ) -> None:
        """`history_size`: how many ended jobs and changes are stored; with 0 no attempts are stored either.

        `reserve_after_seconds`: how long a job must have waited before places are reserved for it, if jobs
        without a time limit run there. `start_seconds`: how long a job holds its devices before it runs on
        them; its attempt begins then. `requeue_seconds`: how long a preempted job waits, by pool, before it
        can start again. `observer` receives each start and end of an attempt.
        `nodes`: the nodes of the pools; None: those that virtual pools say.
        """
        self._indexes, self._nodes = build_nodes(pools, nodes)
        self._loop: Final = EventLoop(
            self._indexes.values(),
            start,
            history_size=history_size,
            reserve_after_seconds=reserve_after_seconds,
            start_seconds=start_seconds,
            requeue_seconds=requeue_seconds,
            observer=observer,
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
        """Arrivals and ends so far, the unit of a run's cost."""
        return self._loop.events

    @property
    def ended(self) -> int:
        """Jobs that have ended so far."""
        return self._loop.ended

    def next_at(self) -> float | None:
        """Return the time of the next event, None if there is none."""
        return self._loop.next_at()

    def advance(self, until: float) -> None:
        """Advance the clock, and process all events until then."""
        self._loop.advance(until)

    # policy

    @property
    def terms(self) -> ClusterTerms:
        return self._terms

    def apply(self, terms: ClusterTerms, *, evict: bool = False) -> None:
        """Change the terms. Unless `evict`, no running job ends and no guaranteed one becomes lent.

        Raises Refused and changes nothing if a team with jobs would be removed. O(teams + jobs).
        """
        self._refuse_removal(terms)
        schedulers = self._loop.schedulers
        protected = {job for scheduler in schedulers for job in reasons.protected_jobs(scheduler.accounting)}
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
            reasons.protect(scheduler.accounting, frozenset() if evict else protected)
        if evict:
            self._evict()
        self._loop.schedule_all()

    def _refuse_removal(self, terms: ClusterTerms) -> None:
        remaining = {team.name for team in terms.teams}
        for job in self._loop.jobs.values():
            name = TeamName(job.quota.name)
            if name not in remaining and job.state not in ENDED:
                raise Refused(
                    "TeamHasJobs",
                    f"team {name} has jobs: it cannot be removed",
                    f"drain it first: set  draining: true  on {name}, apply, and wait for its jobs to end",
                )

    def _recount(self) -> None:
        """Count unfinished jobs against the quotas of the new terms, with the new ranks."""
        unfinished = [job for job in self._loop.jobs.values() if job.state not in ENDED]
        for job in sorted(unfinished, key=lambda job: (job.started, job.id)):
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
            for quota in list(scheduler.accounting.root.iter_subtree()):
                while quota.path and quota.held > quota.ceiling:
                    inside = (job for node in quota.iter_subtree() for job in node.weakest_first(UNLIMITED))
                    self._loop.requeue(next(inside), SimEnding.EVICTED, None)

    # jobs

    def check(self, request: JobRequest) -> None:
        """Raise Refused, with the reason, if the job could never run."""
        self._admission.admit(self._number + 1, request, self.now)

    def submit(self, request: JobRequest, at: float | None = None, *, held: bool = False) -> int:
        """Submit a job, to arrive at `at`; return its number. Raises Refused if it could never run."""
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
        """Submit jobs at the same time: which starts first is decided among all of them."""
        numbers = []
        for request in requests:
            job = self._admit(request, self.now)
            self._loop.arrive(job)
            numbers.append(job.id)
        self._loop.schedule()
        return tuple(numbers)

    def replay(self, trace: Iterable[tuple[float, JobRequest]]) -> None:
        """Submit each job of a trace, sorted by time, at its time; refused ones are left out."""
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

    def restore_waiting(self, number: int, request: JobRequest, submitted: float, seconds: float) -> None:
        """Queue a job of a snapshot, to run for `seconds`. Raises Refused if it could never run.

        `number` is its own from now on, and orders it among the jobs of its team. It is not started before
        `restore` is called.
        """
        job = self._admission.admit(number, request, submitted)
        job.duration = seconds
        self._number = max(self._number, number)
        self._loop.jobs[number] = job
        self._loop.schedulers[job.supply_number].accounting.join(job)

    def restore_running(
        self,
        number: int,
        request: JobRequest,
        submitted: float,
        started: float,
        seconds: float,
        places: tuple[int, ...],
        *,
        protected: bool = False,
    ) -> None:
        """Let a job of a snapshot run, whatever limits it exceeds, until `seconds` after it started.

        `places`: numbers of nodes among those of its supply, each once. `protected`: nothing preempts it.
        Call it in the order of starts. Raises Refused if the cluster has no such team or pool.
        """
        job = self._admission.restore(number, request, submitted)
        job.duration, job.protected = seconds, protected
        self._number = max(self._number, number)
        self._loop.jobs[number] = job
        self._loop.restore(job, places, started)

    def restore(self, recent_use: Mapping[tuple[TeamName, Supply], float]) -> None:
        """Set the recent use of teams, as `recent_use` returned it, and begin to schedule."""
        for (team, supply), devices in recent_use.items():
            quota = self._quotas.get(supply, {}).get(team)
            if quota is not None:
                quota.average, quota.average_at = devices, self.now
                quota.update_average(self.now, self._half_life)
        for scheduler in self._loop.schedulers:
            scheduler.reserve_again(self.now)
        self._loop.schedule_all()

    def recent_use(self) -> dict[tuple[TeamName, Supply], float]:
        """Return the devices that each team held beyond its guarantee lately, as an exponential mean."""
        return {
            (name, supply): quota.current_average(self.now, self._half_life)
            for supply, quotas in self._quotas.items()
            for name, quota in quotas.items()
        }

    def cancel(self, number: int, by: UserName | None = None) -> None:
        """Cancel a job, running or not. `by` is the user, None for an administrator. Raises Refused."""
        self._loop.cancel(self._find_job(number, by, "cancel"))
        self._loop.schedule()

    def hold(self, number: int, by: UserName | None = None) -> None:
        """Hold a waiting job, so that it does not start until it is released."""
        job = self._find_job(number, by, "hold")
        if job.state is SimState.WAITING:
            self._loop.hold(job)
            self._loop.schedule()

    def release(self, number: int, by: UserName | None = None) -> None:
        """Release a held job."""
        job = self._find_job(number, by, "release")
        if job.state is SimState.HELD:
            self._loop.release(job)
            self._loop.schedule()

    def change(self, number: int, request: JobRequest) -> None:
        """Change the request of a job that has not started; it keeps its number and its time of submission.

        Raises Refused, and changes nothing, if it could never run so, or has started with another request. A
        job that has ended stays as it is.
        """
        job = self._find_job(number, None, "change")
        if job.state in ENDED or job.request == request:
            return
        if job.state is SimState.RUNNING:
            raise job_started(f"job {number}")
        changed = self._admission.admit(number, request, job.submitted)
        self._loop.change(job, changed)
        self._loop.schedule()

    def _find_job(self, number: int, by: UserName | None, verb: str) -> SimJob:
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
        """Fail a node: its jobs wait again. Returns their numbers."""
        dead = self._nodes[node]
        dead.lost = True
        lost: dict[SimJob, None] = {}
        for index, place in dead.places.values():
            lost.update(index.jobs_on[place])
        self._update_open(dead)
        for job in lost:
            self._loop.requeue(job, SimEnding.NODE_LOST, None)
        self._loop.schedule_all()
        return tuple(job.id for job in lost)

    def recover(self, node: NodeName) -> None:
        self._nodes[node].lost = False
        self._update_open(self._nodes[node])
        self._loop.schedule_all()

    def drain(self, node: NodeName, reason: str) -> None:
        """Close a node to new jobs; running ones go on."""
        self._nodes[node].drained = reason
        self._update_open(self._nodes[node])
        self._loop.schedule_all()

    def resume(self, node: NodeName) -> None:
        self._nodes[node].drained = None
        self._update_open(self._nodes[node])
        self._loop.schedule_all()

    def set_unhealthy(self, node: NodeName, devices: int, slice_: SliceName | None = None) -> None:
        """Set the number of unhealthy devices of a node."""
        index, place = self._nodes[node].places[slice_]
        before, index.unhealthy[place] = index.unhealthy[place], devices
        index.change_free(place, before - devices)
        self._loop.schedule_all()

    def occupy(self, node: NodeName, devices: int, slice_: SliceName | None = None) -> None:
        """Take devices of a node for something other than a job; a negative number gives them back."""
        index, place = self._nodes[node].places[slice_]
        index.change_free(place, -devices)
        self._loop.schedule_all()

    def _update_open(self, node: SimulatedNode) -> None:
        for index, place in node.places.values():
            self._loop.schedulers[index.number].drop_reservation()
            index.open[place] = node.ready
            index.set_listed(place, node.ready)

    # views

    def job(self, number: int) -> JobView:
        """Return the current state of a job, with the reason if it waits."""
        return self._view(self._find_job(number, None, "see"))

    def has_job(self, number: int) -> bool:
        """Return whether the job exists, or ended and is still in the history."""
        return number in self._loop.jobs

    def jobs(self) -> Iterator[JobView]:
        """Generate all unfinished jobs and those in the history, by number."""
        return (self._view(job) for job in self._loop.jobs.values())

    def unfinished(self) -> Iterator[SimJob]:
        """Generate the records of all unfinished jobs, for reading only, by number."""
        return (job for job in self._loop.jobs.values() if job.state not in ENDED)

    def node_names(self, job: SimJob) -> tuple[NodeName, ...]:
        """Return the nodes on which a job runs."""
        names = self._loop.schedulers[job.supply_number].index.nodes
        return tuple(names[place] for place in job.places)

    def waits(self, most: int) -> dict[int, Wait]:
        """Return why each of the `most` oldest waiting jobs waits. O(jobs in memory)."""
        waiting = (job for job in self._loop.jobs.values() if job.state is SimState.WAITING)
        schedulers = self._loop.schedulers
        return {
            job.id: reasons.wait_reason(job, schedulers[job.supply_number]) for job in islice(waiting, most)
        }

    def ahead(self, number: int) -> tuple[int, ...]:
        """Return the waiting jobs that would start before this one, in order. O(jobs in memory)."""
        job = self._find_job(number, None, "see")
        supply, jobs = job.supply_number, self._loop.jobs.values()
        waiting = [o for o in jobs if o.state is SimState.WAITING and o.supply_number == supply]
        scheduler = self._loop.schedulers[job.supply_number]
        return tuple(other.id for other in reasons.jobs_ahead(job, waiting, scheduler))

    def _view(self, job: SimJob) -> JobView:
        return reasons.view(job, self._loop.schedulers[job.supply_number])

    def attempts(self, number: int, by: UserName | None = None) -> tuple[SimAttempt, ...]:
        """Return all attempts of a job. `by` is the user, who must own it or be a member of its team."""
        return tuple(self._find_job(number, by, "read").history)

    @property
    def change_count(self) -> int:
        """Changes of jobs so far, including those no longer in the journal."""
        return self._loop.change_count

    def changes(self, after: int = 0) -> tuple[JobChange, ...]:
        """Return the changes of jobs after the first `after` ones, as far as the journal still has them."""
        newest = islice(reversed(self._loop.journal), max(0, self.change_count - after))
        return tuple(newest)[::-1]

    def held_devices(self, supply: Supply) -> Mapping[TeamName, int]:
        """Return the devices of a supply that each team holds, including its subteams."""
        return {name: quota.held for name, quota in self._quotas.get(supply, {}).items()}

    def nodes(self) -> Mapping[NodeName, SimulatedNode]:
        """Return the nodes, for reading only; the methods above change them."""
        return self._nodes

    def job_counts(self) -> Counter[tuple[SimState, TeamName, Supply, UserName, PriorityName]]:
        """Count unfinished jobs by state, team, supply, user and priority. O(jobs)."""
        return Counter(
            (job.state, TeamName(job.quota.name), job.request.supply, job.user, job.priority)
            for job in self._loop.jobs.values()
            if job.state not in ENDED
        )

    def waiting(self) -> int:
        """Return the number of waiting jobs."""
        return sum(top.waiting for s in self._loop.schedulers for top in s.accounting.root.children)

    def smallest_waiting(self) -> Mapping[Supply, int]:
        """Return, by supply, the smallest request per node of the jobs that wait for free devices.

        Jobs whose team or user may hold no more are left out. O(queues).
        """
        found: dict[Supply, int] = {}
        for scheduler in self._loop.schedulers:
            for quota in scheduler.accounting.root.iter_subtree():
                for queue in (*quota.queues.firm.values(), *quota.queues.preemptible.values()):
                    if all(team.held + queue.devices <= team.ceiling for team in quota.path):
                        supply = scheduler.index.supply
                        found[supply] = min(found.get(supply, queue.per_node), queue.per_node)
        return found
