"""Place jobs: rank the supplies that a job may use, and say why the others do not fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from fairway.model.errors import FairwayError, PermanentError
from fairway.model.fleet import Capacity, EngineKind, Fleet, Pool
from fairway.model.gpu import replicas_of
from fairway.model.job import GpuRequest, JobSpec, Placement, Tolerates
from fairway.model.names import ClusterName, TeamName, UserName
from fairway.model.team import Priority, Supply, Team, TeamTree
from fairway.model.text import duration_text, first_few, nearest

MAX_LISTED: Final = 12
"""Maximum number of names listed in a message."""


class NotAllowed(PermanentError):
    """Raised if the user may not submit the job: not a member of the team, or a priority it may not use."""


class NoPoolFits(PermanentError):
    """Raised if no pool of the fleet could ever run the job; the message says why for each pool."""


@dataclass(frozen=True, slots=True)
class SupplyState:
    """The last known state of a supply."""

    total: int | None = None
    """None if it has not been observed yet."""
    free: int = 0
    largest_node: int | None = None
    """The maximum number of devices on one node; None if unknown."""
    reachable: bool = True
    busy: Mapping[TeamName, int] = field(default_factory=lambda: MappingProxyType({}))
    """Devices that jobs of each team, including its descendants, run on or wait for."""
    waiting: int = 0
    """Devices that all jobs wait for, including those without a team."""
    lent: int = 0
    """Devices that running jobs of teams hold beyond their guarantees: only these can be reclaimed."""
    left: bool = False
    """Whether Fairway has left the cluster: it sends no job there any more."""
    user_held: int = 0
    """Devices that running jobs of the submitting user hold for the job's team."""


_UNKNOWN: Final = SupplyState()


class Start(IntEnum):
    """When a job would start, soonest first."""

    GUARANTEED = 0
    """Now, within the team's guarantee."""
    RECLAIMED = 1
    """As soon as other teams return borrowed devices of the team's guarantee."""
    LENT = 2
    """Now, on borrowed devices that may be reclaimed."""
    WAITS = 3
    UNREACHABLE = 4
    """Its cluster is currently unreachable."""


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """A supply on which a job can run."""

    cluster: ClusterName
    supply: Supply
    start: Start
    queue: float
    """Devices that jobs wait for per device of the supply; 0 if the job starts at once."""
    price: Decimal
    """The pool's price per GPU-hour."""
    why: str
    """The current situation in a few words."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """A supply on which a job cannot run, and why."""

    supply: Supply
    why: str
    hint: str
    steps: int
    """The number of checks passed: the hint of the misfit with the most is shown."""


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """The supplies that fit a job, best first, and those that do not."""

    fits: tuple[PlacementOption, ...]
    misfits: tuple[Misfit, ...]


def team_of(fleet: Fleet, spec: JobSpec, user: UserName) -> Team:
    """Return the team of a user's job. Raises NotAllowed."""
    if fleet.is_reserved(user):  # a stored fleet may name it as a member
        raise NotAllowed(
            "SystemUser",
            f"{user} is a user of the system or of Fairway itself, so no jobs are submitted as it",
            "submit as the owner of the job, and remove it from members in the fleet file",
        )
    if spec.team is None:
        name = fleet.default_teams().get(user)
        if name is None:
            raise NotAllowed(
                "NoTeam",
                f"{user} is a member of no team",
                "ask an operator to add you to a team:  fairway get teams  lists the teams",
            )
    else:
        name = spec.team
    team = next((t for t in fleet.teams if t.name == name), None)
    if team is None:
        raise NotAllowed(
            "NoSuchTeam", f"the fleet has no team {name!r}", suggest_name(name, [t.name for t in fleet.teams])
        )
    if user not in team.members:
        own = sorted(t.name for t in fleet.teams if user in t.members)
        raise NotAllowed(
            "NotAMember",
            f"{user} is not a member of team {name}",
            f"submit it for one of your teams: {', '.join(own)}"
            if own
            else "ask its lead or an operator to add you",
        )
    if team.draining:
        raise NotAllowed(
            "TeamDraining",
            f"team {name} is draining: nothing of it starts any more",
            "submit it for another team",
        )
    if spec.project is not None and team.projects and spec.project not in team.projects:
        raise NotAllowed(
            "ProjectNotAllowed",
            f"team {name} has no project {spec.project!r}",
            f"its projects: {first_few(team.projects, 10)}; an operator adds one to  projects  of the team",
        )
    return team


def priority_of(fleet: Fleet, spec: JobSpec, team: Team) -> Priority:
    """Return the priority of a team's job. Raises NotAllowed."""
    if spec.priority is None:
        default = fleet.default_priority
        if default.name in team.priorities:
            return default
        if team.priorities:  # the nearest below the default, else the team's lowest
            ranked = [fleet.priority(name) for name in team.priorities]
            below = [p for p in ranked if p.rank <= default.rank]
            return below[0] if below else ranked[-1]
        return default
    if not any(p.name == spec.priority for p in fleet.priorities):
        raise NotAllowed(
            "NoSuchPriority",
            f"the fleet has no priority {spec.priority!r}",
            suggest_name(spec.priority, [p.name for p in fleet.priorities]),
        )
    if spec.priority not in team.priorities:
        raise NotAllowed(
            "PriorityNotAllowed",
            f"jobs of team {team.name} may not use the priority {spec.priority}",
            f"it may use: {', '.join(team.priorities) or 'none'}",
        )
    return fleet.priority(spec.priority)


def suggest_name(name: str, choices: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest choice, else a list of the choices."""
    names = list(choices)
    close = nearest(name, names, most=1)
    return f"did you mean {close[0]}?" if close else f"it has: {', '.join(names[:MAX_LISTED]) or 'none'}"


def options(
    spec: JobSpec,
    team: Team,
    priority: Priority,
    fleet: Fleet,
    supplies: Mapping[Supply, SupplyState],
    refusals: Mapping[Supply, FairwayError] = MappingProxyType({}),
    tree: TeamTree | None = None,
    today: date | None = None,
) -> PlacementOptions:
    """Check every supply of the fleet for this job, and rank those that fit. Raises NoPoolFits.

    `refusals`: errors of engines that can never run it. `tree`: the fleet's teams, for frequent callers.
    `today`: the day of the prices to use; without it the first ones.
    """
    if spec.pool is not None and not any(p.name == spec.pool for p in fleet.pools):
        raise NoPoolFits(
            "NoSuchPool",
            f"the fleet has no pool {spec.pool!r}",
            suggest_name(spec.pool, [p.name for p in fleet.pools]),
        )
    tree = tree or TeamTree(fleet.teams)
    fits: list[PlacementOption] = []
    misfits: list[Misfit] = []
    for pool in fleet.pools:
        for supply in pool.supplies:
            price = pool.price if today is None else pool.list_price(today)
            state = supplies.get(supply, _UNKNOWN)
            check = _PlacementCheck(spec, team, priority, fleet, tree, pool, supply, state, price)
            if (misfit := check.misfit(refusals.get(supply))) is not None:
                misfits.append(misfit)
            else:
                fits.append(check.option())
    # Sorting keeps the order of the file where nothing else tells two apart.
    fits.sort(key=lambda o: (o.start, o.queue, o.price))
    return PlacementOptions(tuple(fits), tuple(misfits))


def choose(found: PlacementOptions) -> Placement:
    """Return the best option with the reason. Raises NoPoolFits if none fits."""
    if not found.fits:
        raise _none_fits(found.misfits)
    best = found.fits[0]
    return Placement(best.cluster, best.supply, _comparison(best, found.fits[1:]))


def _comparison(best: PlacementOption, others: Sequence[PlacementOption]) -> str:
    """Compare the chosen supply with the next best one by room, queue and price, in one sentence."""
    chosen = f"{best.supply} {best.why}"
    if not others:
        return f"{chosen}, and is the only pool that fits"
    other = others[0]
    both = f"{chosen}; {other.supply} {other.why}"
    if best.start < other.start:
        return f"{both}. {best.supply} starts it sooner{_price_note(best, other, subject='')}"
    if best.queue < other.queue:
        queues = f"{best.queue:.1f} vs {other.queue:.1f} requested for each GPU"
        return (
            f"{both}. The queue of {best.supply} is shorter for its size ({queues}){_price_note(best, other)}"
        )
    if best.price < other.price:
        wait = "The wait is similar" if best.start is Start.WAITS else "Both can start it"
        return f"{both}. {wait}{_price_note(best, other)}"
    return f"{both}. Both are equal, and {best.supply} is first in the fleet file"


def _price_note(best: PlacementOption, other: PlacementOption, subject: str | None = None) -> str:
    """Compare the prices; `subject` is empty if the sentence is about the best one already."""
    name = f"{best.supply} " if subject is None else subject
    prices = f"({best.price:.2f} vs {other.price:.2f} per GPU-hour)"
    if best.price == other.price:
        return f", at the same price of {best.price:.2f} per GPU-hour"
    if best.price < other.price:
        return f", and {name}is cheaper {prices}"
    return f", but {name}costs more {prices}"


@dataclass(frozen=True, slots=True)
class _PlacementCheck:
    """One job checked against one supply."""

    spec: JobSpec
    team: Team
    priority: Priority
    fleet: Fleet
    tree: TeamTree
    pool: Pool
    supply: Supply
    state: SupplyState
    price: Decimal

    def misfit(self, refusal: FairwayError | None) -> Misfit | None:
        """Return the first check that fails, the most obvious one first. Returns None if all pass."""
        checks = (
            self._other_pool,
            self._other_engine,
            self._other_gpu,
            self._no_grant,
            self._spot,
            self._image,
            self._limits,
            self._ceiling,
            self._too_large,
            self._left,
        )
        for steps, check in enumerate(checks):
            failure = check()
            if failure is not None:
                return Misfit(self.supply, *failure, steps)
        if refusal is not None:
            return Misfit(self.supply, f"would refuse it: {refusal.message}", refusal.hint, len(checks))
        return None

    def option(self) -> PlacementOption:
        start = self._start()
        queue = 0.0 if start <= Start.LENT else self.state.waiting / max(1, self.state.total or 0)
        return PlacementOption(self.pool.cluster, self.supply, start, queue, self.price, self._why(start))

    def _other_pool(self) -> tuple[str, str] | None:
        if self.spec.pool in {None, self.pool.name}:
            return None
        return "is not the requested pool", "omit the pool, and Fairway chooses one"

    def _other_engine(self) -> tuple[str, str] | None:
        engine = self.fleet.cluster(self.pool.cluster).engine
        if self.spec.manifest is None or engine is EngineKind.KUBERNETES:
            return None
        return (
            f"is on {engine}, and a manifest runs on Kubernetes only",
            "write a job file, which runs on every engine:  fairway schema job",
        )

    def _other_gpu(self) -> tuple[str, str] | None:
        if matches(self.spec.gpus, self.pool, self.supply):
            return None
        if self.spec.manifest and self.supply.slice and replicas_of(self.supply.slice) is not None:
            return None  # it names a resource, which the engine compares
        has = f"slices {self.supply.slice}" if self.supply.slice else f"whole {self.pool.gpu.name}"
        return f"has {has}, not {_gpu_text(self.spec.gpus)}", "fairway get pools  shows the GPUs of each pool"

    def _no_grant(self) -> tuple[str, str] | None:
        if self.team.grant(self.supply) is not None:
            return None
        return (
            f"is not granted to team {self.team.name}",
            f"ask an operator for a grant on {self.supply}:  teams.{self.team.name} in the fleet file",
        )

    def _left(self) -> tuple[str, str] | None:
        if not self.state.left:
            return None
        cluster = self.pool.cluster
        return (
            f"is on cluster {cluster}, which Fairway no longer manages",
            f"use the tools of {cluster} itself, or manage it again:  fairway apply -f fleet.yaml",
        )

    def _spot(self) -> tuple[str, str] | None:
        if self.pool.capacity is not Capacity.SPOT or Tolerates.SPOT in self.spec.tolerates:
            return None
        return "is spot capacity, whose nodes can be lost", "submit it with  --tolerates spot"

    def _image(self) -> tuple[str, str] | None:
        if self.spec.image is None or self.fleet.cluster(self.pool.cluster).engine is not EngineKind.SLURM:
            return None
        if self.spec.pool is not None or self.spec.setup is not None:
            return None  # a user who names the pool, or has a setup, knows that Slurm ignores the image
        return "is on Slurm, which ignores images", f"set  setup, or  pool: {self.pool.name}, to run without"

    def _limits(self) -> tuple[str, str] | None:
        limits, devices, seconds = self.team.limits, self.spec.devices, self.spec.time_seconds
        for limit, whose in ((limits.job_gpus, "one job"), (limits.user_gpus, "one user")):
            if limit is not None and devices > limit:
                return (
                    f"allows {limit} {self._noun(limit)} for {whose} of team {self.team.name}, and the "
                    "request "
                    f"is for {devices}",
                    f"request {limit} or fewer:  {self._largest_request(limit)}",
                )
        if limits.job_seconds is not None and seconds is not None and seconds > limits.job_seconds:
            longest = duration_text(limits.job_seconds)
            return (
                f"allows {longest} for one job of team {self.team.name}, and the request is for "
                f"{duration_text(seconds)}",
                f"request less time:  --time {longest}",
            )
        return None

    def _ceiling(self) -> tuple[str, str] | None:
        devices = self.spec.devices
        for team, ceiling in self._ceilings():
            if devices > ceiling:
                return (
                    f"allows team {team.name} {ceiling} {self._noun(ceiling)}, and the request is for "
                    f"{devices}",
                    f"request {ceiling} or fewer, or ask for a larger grant:  "
                    f"{self._largest_request(ceiling)}",
                )
        return None

    def _too_large(self) -> tuple[str, str] | None:
        devices, total = self.spec.devices, self.state.total
        if total is not None and devices > total:
            return (
                f"has {total} {self._noun(total)}, and the request is for {devices}",
                f"request {total} or fewer:  {self._largest_request(total)}",
            )
        largest = self.state.largest_node
        if largest is not None and self.spec.gpus.count > largest:
            return (
                f"has at most {largest} {self._noun(largest)} on one node, and the request is for "
                f"{self.spec.gpus.count}",
                f"spread it over nodes, {largest} on each:  {self._largest_request(devices)}",
            )
        return None

    def _largest_request(self, most: int) -> str:
        """Return flags of the largest request of up to `most` devices that the pool's nodes can hold.

        It is within every limit that is checked, so that the hint is right the first time.
        """
        bounds = [most, self.spec.devices, self.state.total, *(ceiling for _, ceiling in self._ceilings())]
        limits = self.team.limits
        most = min(b for b in (*bounds, limits.job_gpus, limits.user_gpus) if b is not None)
        per_node = self.state.largest_node
        each = min(self.spec.gpus.count, most if per_node is None else min(per_node, most))
        gpus = f"{each}x{self.supply.slice}" if self.supply.slice else str(each)
        nodes = max(1, most // max(1, each))
        return f"--gpus {gpus}" + (f" --nodes {nodes}" if nodes > 1 or self.spec.nodes > 1 else "")

    def _start(self) -> Start:
        if not self.state.reachable:
            return Start.UNREACHABLE
        if self.state.total is None:
            return Start.WAITS
        devices = self.spec.devices
        grant = self.team.grant(self.supply)
        busy = self.state.busy.get(self.team.name, 0)
        guaranteed = grant is not None and busy + devices <= grant.guarantee and not self.priority.preemptible
        if self._user_at_limit():
            return Start.WAITS
        if guaranteed and self.state.free >= devices:
            return Start.GUARANTEED
        if guaranteed and self.state.free + self.state.lent >= devices:
            return Start.RECLAIMED
        enough_free = self.state.free - self.state.waiting >= devices
        below_ceilings = all(
            self.state.busy.get(team.name, 0) + devices <= ceiling for team, ceiling in self._ceilings()
        )
        return Start.LENT if enough_free and below_ceilings else Start.WAITS

    def _user_at_limit(self) -> bool:
        limit = self.team.limits.user_gpus
        return limit is not None and self.state.user_held + self.spec.devices > limit

    def _ceilings(self) -> Iterator[tuple[Team, int]]:
        """Yield the team and its ancestors with their ceilings, where they have one."""
        for team in (self.team, *self.tree.ancestors(self.team)):
            grant = team.grant(self.supply)
            if grant is not None and grant.ceiling is not None:
                yield team, grant.ceiling

    def _why(self, start: Start) -> str:
        state = self.state
        match start:
            case Start.GUARANTEED | Start.LENT:
                return f"has {state.free} {self._noun(state.free)} free"
            case Start.RECLAIMED:
                return (
                    f"has guaranteed {self._noun(2)} of {self.team.name} on loan, which will be reclaimed now"
                )
            case Start.UNREACHABLE:
                return "is on a cluster that is unreachable now"
            case Start.WAITS:
                if state.total is None:
                    return "has not been observed yet"
                if self._user_at_limit():
                    limit = self.team.limits.user_gpus
                    return (
                        f"has {state.free} {self._noun(state.free)} free, but you already use "
                        f"{state.user_held} of the {limit} that one user of {self.team.name} may use, so the "
                        "job waits"
                    )
                return (
                    f"has {state.free} of {state.total} {self._noun(state.total)} free "
                    f"and {state.waiting} requested by waiting jobs"
                )

    def _noun(self, count: int) -> str:
        return ("slice" if self.supply.slice else "GPU") + ("" if count == 1 else "s")


def matches(request: GpuRequest, pool: Pool, supply: Supply) -> bool:
    """Return whether a supply satisfies a GPU request."""
    if request.slice is not None:
        return supply.slice == request.slice
    if supply.slice is not None:
        return False
    if request.model is not None:
        want, have = request.model.casefold(), pool.gpu.name.casefold()
        return have == want or have.startswith(f"{want}-")
    if request.memory_gb is not None:
        low, high = request.memory_gb
        return low <= pool.gpu.memory_gb and (high is None or pool.gpu.memory_gb <= high)
    return True


def _gpu_text(request: GpuRequest) -> str:
    if request.slice is not None:
        return f"slices {request.slice}"
    if request.model is not None:
        return request.model
    if request.memory_gb is not None:
        low, high = request.memory_gb
        return f"{low}GB..{high}GB" if high is not None else f"{low}GB or more"
    return "whole GPUs"


def _none_fits(misfits: Iterable[Misfit]) -> NoPoolFits:
    # The nearest first: it is the one that a user would correct.
    ordered = sorted(misfits, key=lambda m: -m.steps)
    if not ordered:
        return NoPoolFits("NoPoolFits", "the fleet has no pools", "add one to the fleet file")
    parts = [f"{m.supply} {m.why}" for m in ordered[:MAX_LISTED]]
    if len(ordered) > MAX_LISTED:
        parts.append(f"and {len(ordered) - MAX_LISTED} more do not fit")
    return NoPoolFits("NoPoolFits", f"no pool fits: {'; '.join(parts)}", ordered[0].hint)
