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
from fairway.engines.virtual import views
from fairway.engines.virtual.admission import Admission
from fairway.engines.virtual.clock import Kind
from fairway.engines.virtual.clockwork import Clockwork
from fairway.engines.virtual.desk import Desk
from fairway.engines.virtual.jobs import (
    ENDED,
    Attempt,
    Ending,
    Happening,
    Job,
    JobRequest,
    JobState,
    JobView,
)
from fairway.engines.virtual.nodes import Machine, build
from fairway.engines.virtual.quota import Branch
from fairway.engines.virtual.terms import Terms
from fairway.model.fleet import Pool
from fairway.model.names import NodeName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply

_NOBODY = Terms()


class Simulator(Clockwork):
    """Jobs, nodes and terms of one cluster. See the module for how it is used."""

    def __init__(
        self,
        pools: Iterable[Pool],
        terms: Terms = _NOBODY,
        start: float = 0.0,
        *,
        remember: int = 100_000,
        patience_seconds: float = 60.0,
    ) -> None:
        """`remember`: how many ended jobs, and how many happenings, are kept; 0: none, nor any attempts.

        `patience_seconds`: how long a job must have waited before places are kept idle for it, where jobs
        without a time limit stand in its way.
        """
        super().__init__(start, remember)
        stocks, self._machines = build(pools)
        self._number = 0
        self._desks: Final[dict[Supply, Desk]] = {}
        self._branches: dict[Supply, dict[TeamName, Branch]] = {}
        self._half_life = 1.0
        for supply, stock in stocks.items():
            self._desks[supply] = Desk(stock, self, patience_seconds)
            self._branches[supply] = {}
        self.apply(terms)

    # policy

    @property
    def terms(self) -> Terms:
        return self._terms

    def apply(self, terms: Terms, *, evict: bool = False) -> None:
        """Change the terms. Nothing that runs ends and nothing guaranteed becomes lent, unless `evict`.

        Raises Refused, having changed nothing, if a team goes that has jobs. O(teams + jobs).
        """
        self._refuse_removal(terms)
        protected = {job for desk in self._desks.values() for job in views.protected(desk)}
        for desk in self._desks.values():
            desk.drop_reservation()
        before, half_life = self._branches, self._half_life
        self._terms = terms
        self._half_life = float(max(1, terms.fairness.half_life_seconds))
        for supply, desk in self._desks.items():
            self._branches[supply] = desk.reset(terms, before[supply], self.now, half_life)
        self._admission = Admission(terms, self._desks, self._branches)
        self._rebook()
        for desk in self._desks.values():
            views.keep(desk, frozenset() if evict else protected)
        if evict:
            self._evict()
        self._serve_all()

    def _refuse_removal(self, terms: Terms) -> None:
        staying = {team.name for team in terms.teams}
        for job in self._jobs.values():
            name = TeamName(job.branch.name)
            if name not in staying and job.state not in ENDED:
                raise Refused(
                    "TeamHasJobs",
                    f"team {name} has jobs: it cannot be removed",
                    f"drain it first: set  draining: true  on {name}, apply, and wait for its jobs to end",
                )

    def _rebook(self) -> None:
        """Every job that is not over, on the branches of the new terms, by the rank its priority has now."""
        alive = [job for job in self._jobs.values() if job.state not in ENDED]
        for job in sorted(alive, key=lambda job: (job.started, job.id)):
            job.branch = self._branches[job.stock.supply][TeamName(job.branch.name)]
            priority = self._terms.priority(job.priority)
            if priority is not None:
                job.rank, job.low = priority.rank, priority.preemptible
            if job.places:
                job.desk.book(job, 1, self.now)
            elif job.state is JobState.WAITING:
                job.desk.join(job)

    def _evict(self) -> None:
        for desk in self._desks.values():
            for branch in list(desk.root.all_inside()):
                while branch.path and branch.held > branch.ceiling:
                    inside = (job for b in branch.all_inside() for job in b.weakest_first(1 << 60))
                    self.take(next(inside), Ending.EVICTED, None)

    # people

    def check(self, request: JobRequest) -> None:
        """Raises Refused, with the reason, if it may never run."""
        self._admission.admit(self._number + 1, request, self.now)

    def submit(self, request: JobRequest, at: float | None = None, *, held: bool = False) -> int:
        """The job's number. Raises Refused, with the reason, if it may never run. `at`: arrives then."""
        job = self._admit(request, self.now if at is None else at)
        if held:
            job.state = JobState.HELD
            if self._remember:
                self._note(job)
        elif at is not None and at > self.now:
            self._agenda.add(at, Kind.ARRIVE, job)
        else:
            self._arrive(job)
            self._serve()
        return job.id

    def submit_many(self, requests: Iterable[JobRequest]) -> tuple[int, ...]:
        """Jobs of one moment: who starts first is decided among all of them."""
        numbers = []
        for request in requests:
            job = self._admit(request, self.now)
            self._arrive(job)
            numbers.append(job.id)
        self._serve()
        return tuple(numbers)

    def replay(self, trace: Iterable[tuple[float, JobRequest]]) -> None:
        """Submit each job when its moment comes; refused ones are left out. The trace is in order of time."""
        for at, request in trace:
            if at > self.now:
                self.advance(at)
            with suppress(Refused):
                self._arrive(self._admit(request, self.now))
                self._serve()

    def _admit(self, request: JobRequest, at: float) -> Job:
        job = self._admission.admit(self._number + 1, request, at)
        self._number += 1
        self._jobs[job.id] = job
        return job

    def cancel(self, number: int, by: UserName | None = None) -> None:
        """End a job, running or not. `by`: the person who asks; None: an administrator. Raises Refused."""
        job = self._known(number, by, "cancel")
        if job.places:
            self._stop(job, Ending.CANCELLED)
        elif job.state in (JobState.WAITING, JobState.HELD, JobState.EXPECTED):
            if job.state is JobState.WAITING:
                job.desk.leave(job)
            self._over(job, JobState.CANCELLED)
        self._serve()

    def hold(self, number: int, by: UserName | None = None) -> None:
        """Keep a waiting job from starting until it is released."""
        job = self._known(number, by, "hold")
        if job.state is JobState.WAITING:
            job.desk.leave(job)
            job.state = JobState.HELD
            if self._remember:
                self._note(job)
            self._dirty[job.desk] = None
            self._serve()

    def release(self, number: int, by: UserName | None = None) -> None:
        """Let a held job start again when it can."""
        job = self._known(number, by, "release")
        if job.state is JobState.HELD:
            job.desk.join(job)
            if self._remember:
                self._note(job)
            self._dirty[job.desk] = None
            self._serve()

    def _known(self, number: int, by: UserName | None, verb: str) -> Job:
        job = self._jobs.get(number)
        if job is None:
            raise Refused("UnknownJob", f"there is no job {number}", "fairway get jobs")
        if by is not None and not self._admission.may_touch(by, job):
            raise Refused(
                "NotYourTeam",
                f"{by} may not {verb} job {number}: it is {job.request.user}'s, of team {job.branch.name}",
                f"ask {job.request.user} or somebody of team {job.branch.name}",
            )
        return job

    # nodes

    def lose(self, node: NodeName) -> tuple[int, ...]:
        """The node dies and what runs there with it; those jobs wait again. Gives their numbers."""
        machine = self._machines[node]
        machine.lost = True
        lost: dict[Job, None] = {}
        for stock, place in machine.places.values():
            lost.update(stock.jobs_on[place])
        self._reopen(machine)
        for job in lost:
            self.take(job, Ending.NODE_LOST, None)
        self._serve_all()
        return tuple(job.id for job in lost)

    def recover(self, node: NodeName) -> None:
        self._machines[node].lost = False
        self._reopen(self._machines[node])
        self._serve_all()

    def drain(self, node: NodeName, reason: str) -> None:
        """Close the node to new work; what runs there goes on."""
        self._machines[node].drained = reason
        self._reopen(self._machines[node])
        self._serve_all()

    def resume(self, node: NodeName) -> None:
        self._machines[node].drained = None
        self._reopen(self._machines[node])
        self._serve_all()

    def sicken(self, node: NodeName, devices: int, slice_: SliceName | None = None) -> None:
        """So many devices of the node are unhealthy now; 0 heals them."""
        stock, place = self._machines[node].places[slice_]
        before, stock.sick[place] = stock.sick[place], devices
        stock.change_free(place, before - devices)
        self._serve_all()

    def occupy(self, node: NodeName, devices: int, slice_: SliceName | None = None) -> None:
        """Something that is no job takes devices of the node; below 0: gives them back."""
        stock, place = self._machines[node].places[slice_]
        stock.change_free(place, -devices)
        self._serve_all()

    def _reopen(self, machine: Machine) -> None:
        for stock, place in machine.places.values():
            self._desks[stock.supply].drop_reservation()
            stock.open[place] = machine.ready
            stock.set_listed(place, machine.ready)

    def _serve_all(self) -> None:
        self._dirty.update(dict.fromkeys(self._desks.values()))
        self._serve()

    # seeing

    def job(self, number: int) -> JobView:
        """One job as it is now, with why it waits."""
        return self._view(self._known(number, None, "see"))

    def remembers(self, number: int) -> bool:
        """Whether there is such a job, or was not long ago."""
        return number in self._jobs

    def jobs(self) -> Iterator[JobView]:
        """Every job that is remembered, by number."""
        return (self._view(job) for job in self._jobs.values())

    def _view(self, job: Job) -> JobView:
        return views.view(job, job.desk)

    def attempts(self, number: int, by: UserName | None = None) -> tuple[Attempt, ...]:
        """Each run of a job. `by`: who reads; only members of its team may."""
        return tuple(self._known(number, by, "read").history)

    def happenings(self, after: int = 0) -> tuple[Happening, ...]:
        """What happened to jobs, after that many happenings; those too old to be remembered are left out."""
        newest = islice(reversed(self._journal), max(0, self.noted - after))
        return tuple(newest)[::-1]

    def holdings(self, supply: Supply) -> Mapping[TeamName, views.Holding]:
        """What each team holds of a supply, everything inside it counted in."""
        return views.holdings(self._branches[supply], self.now, self._half_life)

    def machines(self) -> Mapping[NodeName, Machine]:
        """The nodes, to look at; changes go through the methods above."""
        return self._machines

    def under(self) -> Counter[tuple[JobState, TeamName, Supply, UserName, PriorityName]]:
        """How many jobs that are not over stand under which words of the policy. O(jobs)."""
        return Counter(
            (job.state, TeamName(job.branch.name), job.stock.supply, job.request.user, job.priority)
            for job in self._jobs.values()
            if job.state not in ENDED
        )

    def waiting(self) -> int:
        """How many jobs wait."""
        return sum(c.waiting for desk in self._desks.values() for c in desk.root.children)
