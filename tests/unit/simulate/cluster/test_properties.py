"""Whatever people do to a virtual cluster, at every event: ceilings hold, devices add up, gangs are whole."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.model.errors import Refused
from fairway.model.fleet import Capacity, Pool, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, NodeName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Fairness, Grant, Limits, Supply, Team
from fairway.simulate.cluster import scheduler as scheduler_module
from fairway.simulate.cluster.jobs import (
    JobChange,
    JobRequest,
    SimEnding,
    SimJob,
    SimState,
    TeamQuota,
)
from fairway.simulate.cluster.quota import UNLIMITED
from fairway.simulate.cluster.scheduler import JobControl, SupplyScheduler
from fairway.simulate.cluster.simulator import Simulator
from fairway.simulate.cluster.terms import ClusterTerms
from tests.tier import examples

POOL = PoolName("gpu")
SUPPLY = Supply(POOL)
NODES, PER_NODE = 4, 4
CAPACITY = NODES * PER_NODE
PRIORITIES = tuple(PriorityName(name) for name in ("urgent", "normal", "low"))


def pool() -> Pool:
    gpu = GpuType("A100-80GB", memory_gb=80)
    place = VirtualPlace(NODES, PER_NODE, nodes_per_rack=2)
    return Pool(POOL, ClusterName("lab"), gpu, Capacity.OWNED, Decimal(1), place)


def team(name: str, parent: str | None, guarantee: int, borrow: int | None, **rest: Any) -> Team:
    return Team(
        TeamName(name),
        None if parent is None else TeamName(parent),
        grants=(Grant(SUPPLY, guarantee, borrow),),
        priorities=PRIORITIES,
        members=(UserName(f"of-{name}"),),
        **rest,
    )


@st.composite
def terms(draw: st.DrawFn) -> ClusterTerms:
    """Three teams, the first with two children; guarantees that the cluster can keep."""
    sizes = st.integers(0, 8)
    borrow = st.one_of(st.none(), st.integers(0, 12))
    share = st.integers(1, 3)
    a = draw(sizes)
    b = draw(st.integers(0, CAPACITY - a))
    c = draw(st.integers(0, CAPACITY - a - b))
    a1 = draw(st.integers(0, a))
    a2 = draw(st.integers(0, a - a1))
    limits = Limits(user_gpus=draw(st.one_of(st.none(), st.integers(4, 12))))
    return ClusterTerms(
        (
            team("a", None, a, draw(borrow), share=draw(share)),
            team("a1", "a", a1, draw(borrow), share=draw(share)),
            team("a2", "a", a2, draw(borrow), share=draw(share)),
            team("b", None, b, draw(borrow), share=draw(share), limits=limits),
            team("c", None, c, draw(borrow), share=draw(share), draining=draw(st.integers(0, 9)) == 0),
        ),
        fairness=Fairness(draw(st.sampled_from([60, 3600]))),
    )


@dataclass(frozen=True)
class Step:
    verb: str
    number: int = 0
    request: JobRequest | None = None
    terms: ClusterTerms | None = None


@st.composite
def requests(draw: st.DrawFn) -> JobRequest:
    name = draw(st.sampled_from(["a", "a1", "a2", "b", "c"]))
    nodes = draw(st.sampled_from([1, 1, 1, 2, 3]))
    seconds = float(draw(st.integers(1, 30)))
    return JobRequest(
        UserName(f"of-{name}"),
        POOL,
        draw(st.integers(1, PER_NODE)),
        nodes,
        team=TeamName(name),
        seconds=seconds,
        limit_seconds=draw(st.sampled_from([None, seconds, 2 * seconds, 10.0])),
        priority=draw(st.sampled_from([None, None, *PRIORITIES])),
        together=draw(st.integers(0, 4)) == 0,
    )


def steps(with_terms: bool) -> st.SearchStrategy[list[Step]]:
    numbers = st.integers(0, 60)
    verbs: list[st.SearchStrategy[Step]] = [
        *[st.builds(Step, st.just("submit"), request=requests())] * 5,
        *[st.builds(Step, st.just("advance"), numbers)] * 2,
        st.builds(Step, st.sampled_from(["cancel", "hold", "release"]), numbers),
        st.builds(Step, st.sampled_from(["lose", "recover", "drain", "resume"]), st.integers(0, NODES - 1)),
    ]
    if with_terms:
        verbs.append(st.builds(Step, st.just("apply"), terms=terms()))
    return st.lists(st.one_of(verbs), min_size=15, max_size=60)


def play(simulator: Simulator, todo: list[Step]) -> None:
    """Do it; what is refused is refused."""
    for step in todo:
        with contextlib.suppress(Refused):
            do(simulator, step)
        check(simulator)


def do(simulator: Simulator, step: Step) -> None:
    node = NodeName(f"gpu-{step.number % NODES + 1:04}")
    if step.verb == "submit":
        assert step.request is not None
        simulator.submit(step.request)
    elif step.verb == "apply":
        assert step.terms is not None
        simulator.apply(step.terms)
    elif step.verb == "advance":
        until = simulator.now + step.number
        while (coming := simulator.next_at()) is not None and coming <= until:
            simulator.advance(coming)
            check(simulator)
        simulator.advance(until)
    elif step.verb in ("lose", "recover", "resume"):
        getattr(simulator, step.verb)(node)
    elif step.verb == "drain":
        simulator.drain(node, "test")
    else:
        getattr(simulator, step.verb)(step.number)


def firm(simulator: Simulator, team: TeamName) -> int:
    """Devices that a team with all inside it holds, but for what is preemptible always."""
    (quotas,) = simulator._quotas.values()
    return quotas[team].firm


def running(simulator: Simulator) -> list[SimJob]:
    return [job for job in simulator._loop.jobs.values() if job.places]


def check(simulator: Simulator) -> None:
    """The books agree with the jobs, devices add up, gangs are whole, indexes are right."""
    (scheduler,) = simulator._loop.schedulers
    index = scheduler.index
    jobs = running(simulator)
    used = [0] * NODES
    for job in jobs:
        assert len(set(job.places)) == job.nodes, "a gang is whole, each part on a node of its own"
        assert not job.together or len({index.rack(p) for p in job.places}) == 1
        for place in job.places:
            used[place] += job.per_node
            assert index.open[place] or simulator.nodes()[index.nodes[place]].drained is not None
    assert [index.total[p] - used[p] for p in range(NODES)] == index.free
    assert all(free >= 0 for free in index.free)
    kept = () if scheduler.reservation is None else scheduler.reservation.places
    for place in range(NODES):
        listed = index.open[place] and place not in kept
        assert index.listed[place] == listed
        assert (place in index.buckets[index.free[place]]) == listed
    assert index.free_total == sum(index.free[p] for p in range(NODES) if index.listed[p])
    for quota in scheduler.accounting.root.iter_subtree():
        inside = [job for job in jobs if quota in job.quota.path]
        if quota.path:
            assert quota.held == sum(job.devices for job in inside)
            assert quota.firm == sum(job.devices for job in inside if not job.preemptible)
            waits = [j for j in simulator._loop.jobs.values() if j.state is SimState.WAITING]
            assert quota.waiting == sum(quota in job.quota.path for job in waits)
            assert (quota in scheduler.accounting.below_guarantee) == (quota.firm < quota.guarantee)
    assert scheduler.accounting.preemptible_held == sum(job.devices for job in jobs if job.preemptible)


def check_ceilings(simulator: Simulator, changes: tuple[JobChange, ...], terms: ClusterTerms) -> None:
    """From the changes alone, one by one: never above guarantee plus borrow, not for an instant."""
    parents = {t.name: t.parent for t in terms.teams}
    ceilings = {t.name: t.grants[0].ceiling for t in terms.teams}
    held: dict[int, int] = {}
    for event in changes:
        held[event.job] = event.devices
        sums: dict[TeamName, int] = {}
        for number, devices in held.items():
            name: TeamName | None = simulator.job(number).team
            while name is not None:
                sums[name] = sums.get(name, 0) + devices
                name = parents[name]
        for name, total in sums.items():
            ceiling = ceilings[name]
            assert ceiling is None or total <= ceiling
        assert sum(held.values()) <= CAPACITY


@settings(max_examples=examples(150), deadline=None)
@given(terms(), steps(with_terms=False))
def test_ceilings_and_books_hold_at_every_event(policy: ClusterTerms, todo: list[Step]) -> None:
    simulator = Simulator((pool(),), policy, reserve_after_seconds=5)
    play(simulator, todo)
    check_ceilings(simulator, simulator.changes(), policy)


@settings(max_examples=examples(100), deadline=None)
@given(terms(), steps(with_terms=True))
def test_changed_terms_end_nothing(policy: ClusterTerms, todo: list[Step]) -> None:
    simulator = Simulator((pool(),), policy, reserve_after_seconds=5)
    for step in todo:
        protected = {job.id for job in running(simulator) if not simulator.job(job.id).lent}
        within = {t.name: min(firm(simulator, t.name), t.grants[0].guarantee) for t in simulator.terms.teams}
        try:
            do(simulator, step)
        except Refused:
            continue
        check(simulator)
        if step.verb == "apply":
            now = {job.id for job in running(simulator)}
            outranked = {
                e.job
                for e in simulator.changes()
                if e.at == simulator.now and e.ending is SimEnding.OUTRANKED
            }
            # Which of a team's jobs are the lent ones is open: another may go where only its place will do,
            # but never so many that the team is left with less than it was guaranteed.
            for number in protected - now - outranked:
                team = simulator.job(number).team
                assert firm(simulator, team) >= within[team], "what ran within a guarantee goes on"


@settings(max_examples=examples(60), deadline=None)
@given(terms(), steps(with_terms=True))
def test_the_same_calls_give_the_same_cluster(policy: ClusterTerms, todo: list[Step]) -> None:
    told = []
    for _ in range(2):
        simulator = Simulator((pool(),), policy)
        play(simulator, todo)
        told.append((simulator.changes(), tuple(simulator.jobs())))
    assert told[0] == told[1]


@settings(max_examples=examples(100), deadline=None)
@given(terms(), steps(with_terms=False))
def test_nobody_within_a_guarantee_waits_for_what_is_lent(policy: ClusterTerms, todo: list[Step]) -> None:
    """By brute force: no set of jobs that may be taken back would let somebody entitled start who waits."""
    simulator = Simulator((pool(),), policy)
    play(simulator, [step for step in todo if step.verb not in ("hold", "release")])
    while any(job.requeued_at == simulator.now for job in running(simulator)):
        simulator.advance(simulator.now + 1)  # nobody is taken back twice in one moment, but in the next
    (scheduler,) = simulator._loop.schedulers
    scheduler.drop_reservation()  # what is kept for others is kept for whoever is as entitled
    for job in list(simulator._loop.jobs.values()):
        quota = job.quota
        if not job.queued or job.preemptible or quota.stopped or not quota.within_guarantee(job.devices):
            continue
        if quota.user_held.get(job.user, 0) + job.devices > quota.user_limit:
            continue
        if scheduler._is_behind_reserved(job):
            continue
        assert yardstick(job, scheduler, running(simulator)) is None, f"job {job.id} could start"


@settings(max_examples=examples(100), deadline=None)
@given(terms(), steps(with_terms=True))
def test_nobody_waits_who_fits(policy: ClusterTerms, todo: list[Step]) -> None:
    """What is free goes to whoever asks, but for places that are kept for somebody."""
    simulator = Simulator((pool(),), policy, reserve_after_seconds=5)
    for step in todo:
        with contextlib.suppress(Refused):
            do(simulator, step)
        (scheduler,) = simulator._loop.schedulers
        for job in simulator._loop.jobs.values():
            quota = job.quota
            if (
                not job.queued
                or quota.stopped
                or quota.headroom() < job.devices
                or scheduler._is_behind_reserved(job)
            ):
                continue
            if quota.user_held.get(job.user, 0) + job.devices <= quota.user_limit:
                assert scheduler.index.find_for(job) is None, f"job {job.id} could start after {step}"


def yardstick(
    job: SimJob, scheduler: SupplyScheduler, jobs: list[SimJob], *, leaving_guarantees: bool = False
) -> int | None:
    """The fewest devices whose going lets the job start, weighed over every set; None: no set does."""
    may_go = [j for j in jobs if j.preemptible or (beyond_for(job, j) and not j.protected)]
    best: int | None = None
    for count in range(len(may_go) + 1):
        for some in combinations(may_go, count):
            cost = sum(j.devices for j in some)
            if (
                (best is None or cost < best)
                and fits(job, scheduler, some)
                and fair(job, some, leaving_guarantees)
            ):
                best = cost
    return best


def fits(job: SimJob, scheduler: SupplyScheduler, gone: tuple[SimJob, ...]) -> bool:
    index = scheduler.index
    for quota in job.quota.path:
        freed = sum(j.devices for j in gone if quota in j.quota.path)
        if quota.held - freed + job.devices > quota.ceiling:
            return False
    free = list(index.free)
    for other in gone:
        for place in other.places:
            free[place] += other.per_node
    room = [p for p in range(NODES) if index.open[p] and free[p] >= job.per_node]
    if not job.together:
        return len(room) >= job.nodes
    return any(sum(index.rack(p) == rack for p in room) >= job.nodes for rack in range(2))


def fair(job: SimJob, gone: tuple[SimJob, ...], leaving_guarantees: bool) -> bool:
    """Taken one after the other, the largest last, each from teams beyond their guarantees.

    `leaving_guarantees`: and nobody falls below its own by it.
    """
    left: dict[TeamQuota, int] = {}
    for other in sorted((j for j in gone if not j.preemptible), key=lambda j: j.devices):
        for quota in other.quota.path:
            if quota in job.quota.path:
                break
            firm = left.get(quota, quota.firm)
            after = left[quota] = firm - other.devices
            if firm <= quota.guarantee or (leaving_guarantees and after < quota.guarantee):
                return False
    return True


def beyond_for(job: SimJob, other: SimJob) -> bool:
    """Whether `other` is lent as seen from `job`: written down again, by the two paths up from them."""
    mine = [b for b in job.quota.path if b not in other.quota.path]
    theirs = [b for b in other.quota.path if b not in job.quota.path]
    return (
        bool(mine)
        and mine[-1].firm + job.devices <= mine[-1].guarantee
        and all(b.firm > b.guarantee for b in theirs)
    )


class Watched:
    """Carries out what a scheduler decides, and checks every taking at the moment it is done."""

    def __init__(self, control: JobControl) -> None:
        self._control = control

    def start(self, job: SimJob, places: tuple[int, ...]) -> None:
        self._control.start(job, places)

    def requeue(self, job: SimJob, ending: SimEnding, by: SimJob) -> None:
        if ending is SimEnding.RECLAIMED:
            assert not by.preemptible
            assert not job.protected
            assert beyond_for(by, job), f"job {job.id} was not lent as job {by.id} sees it"
        if ending is SimEnding.OUTRANKED:
            assert job.rank < by.rank
            assert job.preemptible or job.quota is by.quota
        self._control.requeue(job, ending, by)


needs_python = pytest.mark.skipif(
    not scheduler_module.__file__.endswith(".py"), reason="a compiled scheduler cannot be watched"
)


def watched(policy: ClusterTerms, **options: float) -> Simulator:
    """A simulator whose schedulers are all watched."""
    simulator = Simulator((pool(),), policy, **options)  # type: ignore[arg-type]
    for scheduler in simulator._loop.schedulers:
        scheduler._control = Watched(scheduler._control)  # type: ignore[misc]
    return simulator


@needs_python
@settings(max_examples=examples(100), deadline=None)
@given(terms(), steps(with_terms=True))
def test_nothing_is_taken_but_what_is_lent_or_outranked(policy: ClusterTerms, todo: list[Step]) -> None:
    play(watched(policy, reserve_after_seconds=5), todo)


@st.composite
def full_of_lent(draw: st.DrawFn) -> tuple[ClusterTerms, list[JobRequest], JobRequest]:
    """Two teams that borrowed all there is in jobs of all shapes, and one that was promised most of it."""
    policy = ClusterTerms(
        (
            team("a", None, 12, 4),
            team("b", None, draw(st.integers(0, 2)), None),
            team("c", None, draw(st.integers(0, 2)), None),
        )
    )
    lent = []
    for _ in range(9):
        name = draw(st.sampled_from(["b", "c"]))
        nodes = draw(st.sampled_from([1, 1, 1, 2, 3]))
        gpus = draw(st.integers(1, PER_NODE))
        lent.append(JobRequest(UserName(f"of-{name}"), POOL, gpus, nodes, team=TeamName(name)))
    nodes = draw(st.integers(1, 3))
    gpus = draw(st.integers(1, PER_NODE))
    together = draw(st.booleans()) and nodes < 3
    return (
        policy,
        lent,
        JobRequest(UserName("of-a"), POOL, gpus, nodes, team=TeamName("a"), together=together),
    )


@needs_python
@settings(max_examples=examples(150), deadline=None)
@given(full_of_lent())
def test_no_more_is_taken_than_needed(world: tuple[ClusterTerms, list[JobRequest], JobRequest]) -> None:
    policy, lent, asked = world
    simulator = watched(policy)
    simulator.submit_many(lent)
    (scheduler,) = simulator._loop.schedulers
    scheduler.drop_reservation()
    before = running(simulator)
    wanted = simulator._admission.admit(10**6, asked, simulator.now)
    needed = yardstick(wanted, scheduler, before, leaving_guarantees=True)
    if needed is None:
        needed = yardstick(wanted, scheduler, before)

    number = simulator.submit(asked)

    taken = {e.job for e in simulator.changes() if e.by == number}
    if needed is None:
        assert not taken
    else:
        assert simulator.job(number).state is SimState.RUNNING
        assert sum(j.devices for j in before if j.id in taken) == needed


def test_boundless_is_more_than_any_cluster() -> None:
    assert UNLIMITED > 10**15
