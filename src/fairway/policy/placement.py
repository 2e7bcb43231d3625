"""Place jobs: rank the supplies that a job may use, and say why the others do not fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from fairway.model.errors import FairwayError, PermanentError
from fairway.model.fleet import Capacity, EngineKind, Fleet, Pool
from fairway.model.job import GpuRequest, JobSpec, Placement, Tolerates
from fairway.model.names import ClusterName, TeamName, UserName
from fairway.model.team import Priority, Supply, Team, TeamTree
from fairway.model.text import nearest

NAMED: Final = 12
"""Maximum number of names listed in a message."""


class NotAllowed(PermanentError):
    """Raised if the user may not submit the job: not a member of the team, or a priority it may not use."""


def team_of(fleet: Fleet, spec: JobSpec, user: UserName) -> Team:
    """Return the team of a user's job. Raises NotAllowed."""
    if spec.team is None:
        name = fleet.default_teams().get(user)
        if name is None:
            raise NotAllowed(
                "NoTeam",
                f"{user} is a member of no team",
                "ask a platform engineer for one:  fairway get teams  shows them",
            )
    else:
        name = spec.team
    team = next((t for t in fleet.teams if t.name == name), None)
    if team is None:
        raise NotAllowed(
            "NoSuchTeam", f"the fleet has no team {name!r}", near(name, [t.name for t in fleet.teams])
        )
    if user not in team.members:
        own = sorted(t.name for t in fleet.teams if user in t.members)
        raise NotAllowed(
            "NotAMember",
            f"{user} is no member of team {name}",
            f"submit it for a team of yours: {', '.join(own)}" if own else "ask its lead to add you",
        )
    if team.draining:
        raise NotAllowed(
            "TeamDraining",
            f"team {name} is draining: nothing of it starts any more",
            "submit it for another team",
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
            near(spec.priority, [p.name for p in fleet.priorities]),
        )
    if spec.priority not in team.priorities:
        raise NotAllowed(
            "PriorityNotAllowed",
            f"jobs of team {team.name} may not have priority {spec.priority}",
            f"it may use: {', '.join(team.priorities) or 'none'}",
        )
    return fleet.priority(spec.priority)


def near(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest known name, else a list of the known ones."""
    there = list(known)
    close = nearest(name, there, most=1)
    return f"did you mean {close[0]}?" if close else f"it has: {', '.join(there[:NAMED]) or 'none'}"


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


Stocks = Mapping[Supply, SupplyState]


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


def options(
    spec: JobSpec,
    team: Team,
    priority: Priority,
    fleet: Fleet,
    stocks: Stocks,
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
            near(spec.pool, [p.name for p in fleet.pools]),
        )
    tree = tree or TeamTree(fleet.teams)
    fits: list[PlacementOption] = []
    misfits: list[Misfit] = []
    for pool in fleet.pools:
        for supply in pool.supplies:
            price = pool.price if today is None else pool.list_price(today)
            ask = _Ask(spec, team, priority, fleet, tree, pool, supply, stocks.get(supply, _UNKNOWN), price)
            against = ask.against(refusals.get(supply))
            if against is None:
                fits.append(ask.option())
            else:
                misfits.append(against)
    # Sorting keeps the order of the file where nothing else tells two apart.
    fits.sort(key=lambda o: (o.start, o.queue, o.price))
    return PlacementOptions(tuple(fits), tuple(misfits))


def choose(found: PlacementOptions) -> Placement:
    """Return the best option with the reason. Raises NoPoolFits if none fits."""
    if not found.fits:
        raise _none_fits(found.misfits)
    best, count = found.fits[0], len(found.fits)
    cost = f"costs {best.price:.2f} per GPU-hour"
    if count == 1:
        why = f"{best.supply} {best.why}, and is the only pool that fits"
    elif best.price <= min(o.price for o in found.fits):
        why = f"{best.supply} {best.why} and {cost}, the least of {count} pools that fit"
    else:
        why = f"{best.supply} {best.why} and {cost}: the soonest of {count} pools that fit"
    return Placement(best.cluster, best.supply, why)


@dataclass(frozen=True, slots=True)
class _Ask:
    """One job checked against one supply."""

    spec: JobSpec
    team: Team
    priority: Priority
    fleet: Fleet
    tree: TeamTree
    pool: Pool
    supply: Supply
    stock: SupplyState
    price: Decimal

    def against(self, refusal: FairwayError | None) -> Misfit | None:
        """Return the first check that fails, the most obvious one first. Returns None if all pass."""
        checks = (
            self._other_pool,
            self._other_gpu,
            self._no_grant,
            self._spot,
            self._image,
            self._limits,
            self._ceiling,
            self._too_large,
        )
        for steps, check in enumerate(checks):
            said = check()
            if said is not None:
                return Misfit(self.supply, *said, steps)
        if refusal is not None:
            return Misfit(self.supply, f"would refuse it: {refusal.message}", refusal.hint, len(checks))
        return None

    def option(self) -> PlacementOption:
        start = self._start()
        stock, total = self.stock, self.stock.total or 0
        queue = 0.0 if start <= Start.LENT else stock.waiting / max(1, total)
        return PlacementOption(self.pool.cluster, self.supply, start, queue, self.price, self._words(start))

    def _other_pool(self) -> tuple[str, str] | None:
        if self.spec.pool in {None, self.pool.name}:
            return None
        return "is not the pool that was named", "name no pool, and Fairway picks one"

    def _other_gpu(self) -> tuple[str, str] | None:
        if matches(self.spec.gpus, self.pool, self.supply):
            return None
        has = f"slices {self.supply.slice}" if self.supply.slice else f"whole {self.pool.gpu.name}"
        return f"has {has}, not {_asked(self.spec.gpus)}", "fairway get pools  shows what GPUs there are"

    def _no_grant(self) -> tuple[str, str] | None:
        if self.team.grant(self.supply) is not None:
            return None
        return (
            f"is not granted to team {self.team.name}",
            f"ask for a grant of {self.supply}:  teams.{self.team.name} in the fleet file",
        )

    def _spot(self) -> tuple[str, str] | None:
        if self.pool.capacity is not Capacity.SPOT or Tolerates.SPOT in self.spec.tolerates:
            return None
        return "is spot, whose nodes may vanish", "let the job say  tolerates: [spot]"

    def _image(self) -> tuple[str, str] | None:
        if self.spec.image is None or self.fleet.cluster(self.pool.cluster).engine is not EngineKind.SLURM:
            return None
        if self.spec.pool is not None or self.spec.setup is not None:
            return None  # who names the pool, or prepares by setup, knows that Slurm takes no notice of it
        return "is on Slurm, which runs no images", f"say  setup, or  pool: {self.pool.name}, to do without"

    def _limits(self) -> tuple[str, str] | None:
        limits, devices, seconds = self.team.limits, self.spec.devices, self.spec.time_seconds
        for most, whose in ((limits.job_gpus, "one job"), (limits.user_gpus, "one user")):
            if most is not None and devices > most:
                return (
                    f"asks for {devices} {self._noun(devices)}, and {whose} of team {self.team.name} "
                    f"may have {most}",
                    f"ask for {most} or fewer",
                )
        if limits.job_seconds is not None and seconds is not None and seconds > limits.job_seconds:
            hours = limits.job_seconds / 3600
            return f"asks for more time than the {hours:g} h of team {self.team.name}", "ask for less time"
        return None

    def _ceiling(self) -> tuple[str, str] | None:
        devices = self.spec.devices
        for team in (self.team, *self.tree.ancestors(self.team)):
            ceiling = _ceiling(team, self.supply)
            if ceiling is not None and devices > ceiling:
                return (
                    f"asks for {devices} {self._noun(devices)}, and {team.name} may hold {ceiling} there",
                    f"ask for {ceiling} or fewer, or for a larger grant",
                )
        return None

    def _too_large(self) -> tuple[str, str] | None:
        devices, total = self.spec.devices, self.stock.total
        if total is not None and devices > total:
            return f"has {total} {self._noun(total)}, not {devices}", f"ask for {total} or fewer"
        largest = self.stock.largest_node
        if largest is not None and self.spec.gpus.count > largest:
            return (
                f"has at most {largest} {self._noun(largest)} on one node, not {self.spec.gpus.count}",
                f"spread it over nodes: {largest} on each",
            )
        return None

    def _start(self) -> Start:
        if not self.stock.reachable:
            return Start.UNREACHABLE
        if self.stock.total is None:
            return Start.WAITS
        devices = self.spec.devices
        grant = self.team.grant(self.supply)
        busy = self.stock.busy.get(self.team.name, 0)
        guaranteed = grant is not None and busy + devices <= grant.guarantee and not self.priority.preemptible
        room = self.stock.free - self.stock.waiting >= devices
        if guaranteed:
            return Start.GUARANTEED if self.stock.free >= devices else Start.RECLAIMED
        return Start.LENT if room and self._below_ceilings() else Start.WAITS

    def _below_ceilings(self) -> bool:
        for team in (self.team, *self.tree.ancestors(self.team)):
            ceiling = _ceiling(team, self.supply)
            busy = self.stock.busy.get(team.name, 0)
            if ceiling is not None and busy + self.spec.devices > ceiling:
                return False
        return True

    def _words(self, start: Start) -> str:
        stock = self.stock
        match start:
            case Start.GUARANTEED | Start.LENT:
                return f"has {stock.free} {self._noun(stock.free)} free"
            case Start.RECLAIMED:
                return f"has {self.team.name}'s guaranteed {self._noun(2)} lent out, which come back now"
            case Start.UNREACHABLE:
                return "cannot be reached at the moment"
            case Start.WAITS:
                if stock.total is None:
                    return "was not looked at yet"
                return (
                    f"has {stock.free} of {stock.total} {self._noun(stock.total)} free "
                    f"and jobs waiting for {stock.waiting}"
                )

    def _noun(self, count: int) -> str:
        return ("slice" if self.supply.slice else "GPU") + ("" if count == 1 else "s")


def matches(asked: GpuRequest, pool: Pool, supply: Supply) -> bool:
    """Return whether a supply satisfies a GPU request."""
    if asked.slice is not None:
        return supply.slice == asked.slice
    if supply.slice is not None:
        return False
    if asked.model is not None:
        want, have = asked.model.casefold(), pool.gpu.name.casefold()
        return have == want or have.startswith(f"{want}-")
    if asked.memory_gb is not None:
        least, most = asked.memory_gb
        return least <= pool.gpu.memory_gb and (most is None or pool.gpu.memory_gb <= most)
    return True


def _ceiling(team: Team, supply: Supply) -> int | None:
    grant = team.grant(supply)
    return None if grant is None else grant.ceiling


def _asked(asked: GpuRequest) -> str:
    if asked.slice is not None:
        return f"slices {asked.slice}"
    if asked.model is not None:
        return asked.model
    if asked.memory_gb is not None:
        least, most = asked.memory_gb
        return f"{least}GB..{most}GB" if most is not None else f"{least}GB or more"
    return "whole GPUs"


def _none_fits(misfits: Iterable[Misfit]) -> NoPoolFits:
    # The nearest first: it is the one a person would want to set right.
    ordered = sorted(misfits, key=lambda m: -m.steps)
    if not ordered:
        return NoPoolFits("NoPoolFits", "the fleet has no pools", "add one to the fleet file")
    said = [f"{m.supply} {m.why}" for m in ordered[:NAMED]]
    if len(ordered) > NAMED:
        said.append(f"and {len(ordered) - NAMED} more do not fit")
    return NoPoolFits("NoPoolFits", f"no pool fits: {'; '.join(said)}", ordered[0].hint)
