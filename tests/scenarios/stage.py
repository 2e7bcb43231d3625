"""Where a scenario plays: a fleet applied to one cluster, users who submit, eyes that sample all the while.

Scenarios see a `Stage` and nothing else. What differs between engines is behind `Hand` (hand.py). Policy goes
the real way: fleet file -> files -> engine.translate -> policy.plan -> engine.write.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fairway.control.loops.budget import write_holds
from fairway.cost.budgets import with_holds
from fairway.engines.port import Governs, Intervenes
from fairway.files import parse_fleet
from fairway.model.budget import Hold
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.policy.objects import Intervention
from fairway.policy.plan import ClusterPlan
from tests.scenarios.hand import Denied, Hand, JobSeen, Order, State, Weighs
from tests.scenarios.policies import apply_fleet, plan_fleet

INTERVENE_EVERY_SECONDS = 1.0
MAX_SHOWN = 12
UNSEEN = JobSeen(State.WAITING)


class Verdict(StrEnum):
    """How an engine keeps a promise."""

    KEPT = "kept"
    CAVEAT = "caveat"
    """Kept but for a stated case."""
    DIFFERS = "differs"
    """Out of the engine's reach, shown by its own words; `plan` warns of it."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was submitted."""

    id: str
    order: Order

    @property
    def devices(self) -> int:
        return self.order.gpus * self.order.nodes


Jobs = tuple[Job, ...]


def _size(job: Job) -> int:
    return job.devices


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at every job."""

    at: float
    jobs: Mapping[str, JobSeen]
    known: Sequence[Job]
    """Every job of the scenario."""

    def __getitem__(self, job: Job) -> JobSeen:
        return self.jobs.get(job.id, UNSEEN)

    def running(self, jobs: Iterable[Job]) -> Jobs:
        return tuple(j for j in jobs if self[j].state is State.RUNNING)

    def held(self, jobs: Iterable[Job]) -> int:
        """Devices these jobs hold together."""
        return sum(self[j].devices for j in jobs)

    def held_by(self, *teams: str, pool: str = "gpu") -> int:
        """Devices of the pool that count against the ceilings of these teams together."""
        return sum(self[j].counted for j in self.known if j.order.team in teams and j.order.pool == pool)


Condition = Callable[[Sample], bool]


def running(jobs: Iterable[Job]) -> Condition:
    """All of them run."""
    wanted = tuple(jobs)
    return lambda seen: all(seen[j].state is State.RUNNING for j in wanted)


def started(jobs: Iterable[Job]) -> Condition:
    """Each has started at least once, and may have ended."""
    wanted = tuple(jobs)
    return lambda seen: all(seen[j].attempts > 0 for j in wanted)


def over(jobs: Iterable[Job]) -> Condition:
    """Each has ended, well or not."""
    wanted = tuple(jobs)
    return lambda seen: all(seen[j].state in (State.DONE, State.ENDED) for j in wanted)


def number_running(jobs: Iterable[Job], count: int) -> Condition:
    """At least so many of them run."""
    wanted = tuple(jobs)
    return lambda seen: len(seen.running(wanted)) >= count


@dataclass(frozen=True, slots=True)
class Stream:
    """Endless demand of one team: whenever fewer than `depth` of its jobs wait, another comes."""

    order: Order
    depth: int


class TooLate(AssertionError):
    """Something that must come did not come in time. Only this may be tried again: machines are busy."""


@dataclass
class Stage:
    """One scenario's view of one cluster."""

    hand: Hand
    soon: float = 30
    """Seconds in which what should happen soon has happened, on a busy machine."""
    evidence: list[str] = field(default_factory=list)
    exceptions: list[str] = field(default_factory=list)
    """Why it is not simply kept."""
    verdict: Verdict = Verdict.KEPT
    too_late: bool = False
    jobs: list[Job] = field(default_factory=list)
    interventions: list[Intervention] = field(default_factory=list)
    intervening: bool = True
    fleet: Fleet | None = None
    warnings: set[str | None] = field(default_factory=set)
    """Promises that an applied plan warned of."""
    samples: int = 0
    _history: list[tuple[float, Counter[tuple[str | None, str]]]] = field(default_factory=list)
    _streams: list[Stream] = field(default_factory=list)
    _engine: Governs | None = None
    _intervener: asyncio.Task[None] | None = None
    _checks: list[tuple[str, Condition]] = field(default_factory=list)

    # the policy

    def read(self, teams: str) -> Fleet:
        """The fleet whose file has the cluster's head and then `teams` (and what else it says)."""
        return parse_fleet(self.hand.head + teams, f"{self.hand.name}.yaml")

    async def plan(self, teams: str) -> ClusterPlan:
        """What the fleet would change now."""
        return await plan_fleet(self._adapter(self.read(teams)), self.read(teams))

    async def apply(self, teams: str, *, force: bool = False) -> ClusterPlan:
        """Make the fleet so, and have the administrator do what only they can; gives the applied plan.

        The first fleet of a scenario replaces whatever the last one left. After that PlanRefused is raised if
        something speaks against the plan, and force is not given or does not help.
        """
        fleet = self.read(teams)
        engine = self._adapter(fleet)
        plan = await apply_fleet(self.hand, engine, fleet, force=force or self.fleet is None)
        self.fleet = fleet
        self.warnings |= {notice.promise for notice in plan.notices}
        if self.intervening and self._intervener is None and isinstance(engine, Intervenes):
            self._intervener = asyncio.create_task(self._intervene(engine))
        return plan

    async def hold(self, **holds: Hold) -> None:
        """Hold these teams for their budgets, as the server's loop does, and let every other one go."""
        assert self.fleet is not None, "apply a fleet first"
        self.fleet = with_holds(self.fleet, {TeamName(team): hold for team, hold in holds.items()})
        await write_holds(self._adapter(self.fleet), self.fleet, self.fleet.clusters[0].name)

    def _adapter(self, fleet: Fleet) -> Governs:
        if self._engine is None:
            self._engine = self.hand.engine(fleet)
        return self._engine

    async def _intervene(self, engine: Intervenes) -> None:
        """As the server's loop does."""
        while True:
            await self.hand.pause(INTERVENE_EVERY_SECONDS)
            if self.fleet is not None:
                self.interventions += await engine.intervene(self.fleet)

    async def without_fairway(self) -> None:
        """Stop everything of Fairway's that runs: only what it wrote is left."""
        self.intervening = False
        if self._intervener is not None:
            self._intervener.cancel()
            await asyncio.gather(self._intervener, return_exceptions=True)
            self._intervener = None
        if self._engine is not None:
            await self._engine.close()
            self._engine = None

    # users

    async def submit(
        self, team: str | None, *, count: int = 1, user: str | None = None, **wish: object
    ) -> Jobs:
        """`count` like jobs of a member of the team, as Order has them. Raises Denied."""
        order = Order(user=user or self._member(team), team=team, **wish)  # type: ignore[arg-type]
        made = tuple([Job(await self.hand.submit(order), order) for _ in range(count)])
        self.jobs += made
        return made

    def _member(self, team: str | None) -> str:
        assert self.fleet is not None, "apply a fleet first"
        members = next(t.members for t in self.fleet.teams if t.name == team)
        assert members, f"team {team} has no members: say who submits"
        return str(members[0])

    async def stopped(self, team: str | None, *, watch: float = 3, **wish: object) -> str:
        """The words with which a job is refused, or held while we watch. Fails if it starts."""
        try:
            (job,) = await self.submit(team, **wish)  # type: ignore[arg-type]
        except Denied as refusal:
            return f"refused: {refusal}"
        await self.stays(lambda seen: seen[job].attempts == 0, watch, f"{job.order} must not start")
        words = await self.hand.words(job.id)
        await self.hand.cancel(job.id, job.order.user)
        return f"held: {words}"

    async def stream(self, team: str, *, depth: int = 4, **wish: object) -> None:
        """From now on, as long as we look: endless like jobs of the team."""
        self._streams.append(Stream(Order(user=self._member(team), team=team, **wish), depth))  # type: ignore[arg-type]
        await self._feed(Sample(self.hand.now(), {}, ()))

    async def _feed(self, seen: Sample) -> None:
        for stream in self._streams:
            waiting = sum(j.order is stream.order and seen[j].state is State.WAITING for j in seen.known)
            for _ in range(stream.depth - waiting):
                self.jobs.append(Job(await self.hand.submit(stream.order), stream.order))

    async def cancel(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            await self.hand.cancel(job.id, job.order.user)

    async def weigh(self) -> None:
        """Past use counts from now on, on engines that would take a minute to notice."""
        if isinstance(self.hand, Weighs):
            await self.hand.weigh()

    # eyes

    async def look(self) -> Sample:
        """A sample of now. What `always` demands is checked on it, and on all since the last one."""
        for jobs in await self.hand.look():
            seen = Sample(self.hand.now(), jobs, tuple(self.jobs))
            self.samples += 1
            held: Counter[tuple[str | None, str]] = Counter()
            for job in self.jobs:
                held[job.order.team, job.order.pool] += seen[job].counted
            self._history.append((seen.at, held))
            for what, true in self._checks:
                assert true(seen), f"{what}: {self.show(seen)}"
        await self._feed(seen)
        if self._intervener is not None and self._intervener.done():
            self._intervener.result()
        return seen

    def always(self, what: str, true: Condition) -> None:
        """From now on this must hold at every sample."""
        self._checks.append((what, true))

    def peak(self, *teams: str, pool: str = "gpu") -> int:
        """The most these teams were ever seen holding together."""
        return max((sum(held[team, pool] for team in teams) for _, held in self._history), default=0)

    def gpu_seconds(self, team: str, *, beyond: int = 0, since: float = 0, pool: str = "gpu") -> float:
        """What the team held beyond so many devices, summed over the time since then."""
        total, (last, held) = 0.0, (since, 0)
        for at, counted in self._history:
            total += held * max(0.0, at - max(last, since))
            last, held = at, max(0, counted[team, pool] - beyond)
        return total

    async def until(self, true: Condition, within: float | None = None, what: str = "") -> float:
        """Sample until it is true; seconds it took. Fails when it takes longer."""
        begun, bound = self.hand.now(), self.soon if within is None else within
        while True:
            seen = await self.look()
            if true(seen):
                return self.hand.now() - begun
            if self.hand.now() - begun >= bound:
                raise TooLate(f"{what or 'it'}: not within {bound:g} s: {await self._tell(seen)}")
            await self.hand.pause(0.1)

    async def comes(self, true: Condition, within: float) -> float | None:
        """As until, but None if it does not come: for scenarios that go on either way."""
        begun = self.hand.now()
        while not true(await self.look()):
            if self.hand.now() - begun >= within:
                return None
            await self.hand.pause(0.1)
        return self.hand.now() - begun

    async def until_or_caveat(self, true: Condition, within: float, caveat: str) -> float | None:
        """As until, where an engine may fall short of it: a caveat then, which `plan` must have warned of."""
        took = await self.comes(true, within)
        if took is None:
            seen = await self.look()
            waiting = max((j for j in self.jobs if seen[j].state is State.WAITING), key=_size, default=None)
            self.caveat(f"{caveat}: {await self.hand.words(waiting.id) if waiting else self.show(seen)}")
        return took

    async def stays(self, true: Condition, seconds: float, what: str = "") -> None:
        """Sample for so long; it must hold at each."""
        begun = self.hand.now()
        while True:
            seen = await self.look()
            assert true(seen), f"{what or 'it'} did not stay true: {await self._tell(seen)}"
            if self.hand.now() - begun >= seconds:
                return
            await self.hand.pause(0.1)

    def show(self, seen: Sample) -> str:
        """Every job that is not over in a few words; of many the largest."""
        alive = [j for j in self.jobs if seen[j].state in (State.WAITING, State.RUNNING)]
        shown = sorted(alive, key=_size)[-MAX_SHOWN:]
        return "; ".join(
            f"{j.id} {j.order.team}/{j.order.user} {j.order.nodes}x{j.order.gpus} {seen[j].state}"
            f" {','.join(seen[j].nodes)} #{seen[j].attempts} {seen[j].reason}".rstrip()
            for j in shown
        ) + (f"; {len(alive) - len(shown)} more" if len(alive) > len(shown) else "")

    async def _tell(self, seen: Sample) -> str:
        waiting = [j for j in self.jobs if seen[j].state is State.WAITING]
        words = [f"{j.id}: {await self.hand.words(j.id)}" for j in sorted(waiting, key=_size)[-2:]]
        return f"{self.show(seen)} | {' | '.join(words)}"

    async def taken(self, jobs: Sequence[Job]) -> Jobs:
        """Which of them lost an attempt: ran, and wait or run anew."""
        seen = await self.look()
        return tuple(
            j
            for j in jobs
            if seen[j].attempts > 1 or (seen[j].attempts == 1 and seen[j].state is State.WAITING)
        )

    # what is found

    def note(self, text: str) -> None:
        """Evidence for the table."""
        self.evidence.append(text)

    def caveat(self, text: str) -> None:
        """Kept but for a case that `text` states, with the engine's own words."""
        self.exceptions.append(text)
        if self.verdict is Verdict.KEPT:
            self.verdict = Verdict.CAVEAT

    def differs(self, text: str) -> None:
        """Out of the engine's reach, as its own words in `text` show."""
        self.exceptions.append(text)
        self.verdict = Verdict.DIFFERS

    async def clear(self) -> None:
        """End and forget every job; the policy stays."""
        self._streams.clear()
        self._checks.clear()
        self.jobs.clear()
        await self.hand.clear()

    async def close(self) -> None:
        """Leave the cluster to the next scenario."""
        await self.without_fairway()
        await self.clear()
