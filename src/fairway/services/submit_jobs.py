"""Takes jobs in: whose they are, where they go and why, and into the ledger. No engine is spoken to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import partial
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from fairway.engines.port import Refused
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobCount, NewJob
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet, Pool, VirtualPlace
from fairway.model.job import JobId, JobSpec, JobState, Order, Placement, engine_name
from fairway.model.names import TeamName, UserName
from fairway.model.team import Priority, Supply, Team, TeamTree
from fairway.policy.placement import (
    NoPoolFits,
    PlacementOption,
    SupplyState,
    choose,
    options,
    priority_of,
    team_of,
)
from fairway.services.engine_pool import EnginePool
from fairway.services.wakeup import Wakeup

STOCK_SECONDS: Final = 2.0
"""How old what is known of pools and queues may be when a job is placed."""
SHAPE_SECONDS: Final = 60.0
"""How long the size of a pool's largest node is believed."""
_AT_A_TIME: Final = 100
_MOST_PAGES: Final = 20
_NODES_PAGE: Final = 2000

_Shape = tuple[str, str]


class NoPolicy(PermanentError):
    """There is no fleet yet."""


class GivesFleets(Protocol):
    """Knows the fleet that holds now, and what was applied last."""

    async def current(self) -> Fleet: ...

    async def applied(self, cluster: str | None = None) -> Fleet | None: ...


@dataclass(frozen=True, slots=True)
class Submitted:
    """What was made of one of the jobs handed in."""

    ids: tuple[JobId, ...]
    """One for each task of an array, else one."""
    placement: Placement


@dataclass(frozen=True, slots=True)
class DryRun:
    """What would become of a job."""

    placement: Placement | None
    """None: nothing fits."""
    options: tuple[PlacementOption, ...]
    """Every pool that fits, the best first."""
    preview: str
    """What the engine would be sent; empty: nothing fits."""
    could_run: bool
    why: str
    """Where it would go and why there, or why it could never run."""
    hint: str = ""
    """What would help, where it could not."""


class Submitter:
    """Decides and keeps jobs. Safe to use by many at once."""

    def __init__(
        self,
        ledger: Ledger,
        fleets: GivesFleets,
        engines: EnginePool,
        *,
        wakeup: Wakeup | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wakeup` is notified of each cluster that jobs were stored for."""
        self._ledger = ledger
        self._fleets = fleets
        self._engines = engines
        self._wakeup = wakeup or Wakeup()
        self._clock = clock
        self._shelf: _FleetSupplies | None = None
        self._largest: tuple[float, dict[Supply, int]] = (float("-inf"), {})

    async def decide(self, spec: JobSpec, user: UserName, hold: bool = False) -> NewJob:
        """Everything that is decided of a job before it is kept; raises NotAllowed, NoPoolFits."""
        return await self._decide(await self._stocked(), spec, user, hold=hold)

    async def submit(
        self,
        specs: Sequence[JobSpec],
        user: UserName,
        *,
        by: str,
        key: str | None = None,
        hold: bool = False,
    ) -> tuple[Submitted, ...]:
        """Decide and keep them, all or none. The same (by, key) again gives what was kept the first time."""
        shelf = await self._stocked()
        jobs: list[NewJob] = []
        for spec in specs:
            jobs.append(await self._decide(shelf, spec, user, hold=hold))
            if len(jobs) % _AT_A_TIME == 0:
                await asyncio.sleep(0)  # ten thousand take a second: others are answered meanwhile
        ids = await self._ledger.jobs.submit(jobs, by=by, key=key)
        for cluster in {job.placement.cluster for job in jobs}:
            self._wakeup.notify(cluster)
        return tuple(Submitted(numbers, job.placement) for numbers, job in zip(ids, jobs, strict=True))

    async def dry_run(self, spec: JobSpec, user: UserName) -> DryRun:
        """What would happen, without doing it. Raises NotAllowed: that is for the person to set right."""
        shelf = await self._stocked()
        team, priority = shelf.whose(spec, user)
        ask = partial(
            options, spec, team, priority, shelf.fleet, shelf.stocks, tree=shelf.tree, today=shelf.today
        )
        try:
            previews = [
                await self._preview(shelf.fleet, _order(spec, user, team, priority, option.supply))
                for option in ask().fits
            ]
            refusals = {p.supply: p.refusal for p in previews if p.refusal}
            found = ask(refusals=refusals)
            placement = choose(found)
        except NoPoolFits as error:
            return DryRun(None, (), "", could_run=False, why=error.message, hint=error.hint)
        text = next(p.text for p in previews if p.supply == placement.supply)
        return DryRun(placement, found.fits, text, could_run=True, why=placement.why)

    async def _decide(self, shelf: _FleetSupplies, spec: JobSpec, user: UserName, *, hold: bool) -> NewJob:
        team, priority = shelf.whose(spec, user)
        shape = _shape(spec, user)
        while True:  # ends: each round either chooses or rules one more supply out
            known = shelf.refusals.setdefault(shape, {})
            refusals = {supply: refusal for supply, refusal in known.items() if refusal}
            found = options(
                spec, team, priority, shelf.fleet, shelf.stocks, refusals, shelf.tree, shelf.today
            )
            placement = choose(found)
            if placement.supply in known:
                break
            order = _order(spec, user, team, priority, placement.supply)
            known[placement.supply] = (await self._preview(shelf.fleet, order)).refusal
        # Those after it in the same batch, and within the next seconds, must not count on the same devices.
        shelf.take(team, placement.supply, spec.devices * max(1, len(spec.array)))
        return NewJob(spec, user, team.name, priority.name, placement, hold)

    async def _preview(self, fleet: Fleet, order: Order) -> _Preview:
        cluster = fleet.pool(order.supply.pool).cluster
        engine = await self._engines.get(fleet.cluster(cluster), fleet.pools_of(cluster))
        try:
            return _Preview(order.supply, engine.preview(order, fleet))
        except Refused as refusal:
            return _Preview(order.supply, "", refusal)

    async def _stocked(self) -> _FleetSupplies:
        """The fleet with what it has now: read once for a batch, and not again within two seconds."""
        fleet = await self._fleet()
        now = self._clock()
        if self._shelf is not None and self._shelf.fleet is fleet and now < self._shelf.good_until:
            return self._shelf
        pools = await self._ledger.clusters.pools()
        counts = await self._ledger.jobs.counts()
        reachable = {
            c.cluster: c.reachable or c.observed_at is None for c in await self._ledger.clusters.all()
        }
        largest = await self._largest_nodes(now)
        today = datetime.now(ZoneInfo(fleet.cost.timezone)).date()
        shelf = _FleetSupplies(fleet, TeamTree(fleet.teams), {}, now + STOCK_SECONDS, today)
        seen = {Supply(p.pool, p.slice): p for p in pools if p.pool is not None}
        for pool in fleet.pools:
            for supply in pool.supplies:
                known = seen.get(supply)
                total = known.total if known else pool.gpus if supply.slice is None else None
                shelf.stocks[supply] = SupplyState(
                    total,
                    known.free if known else 0,
                    _largest(pool, supply) or largest.get(supply),
                    reachable=reachable.get(pool.cluster, True),
                )
        shelf.count(counts)
        self._shelf = shelf
        return shelf

    async def _fleet(self) -> Fleet:
        """As last applied, for that is what engines enforce; without the clusters that left since."""
        newest = await self._fleets.current()
        if not newest.clusters:
            raise NoPolicy("NoFleet", "there is no fleet yet to run jobs on", "fairway apply -f fleet.yaml")
        applied = await self._fleets.applied()
        if applied is None:
            return newest
        here = {c.name for c in newest.clusters}
        if all(c.name in here for c in applied.clusters):
            return applied
        kept = tuple(c for c in applied.clusters if c.name in here)
        return replace(applied, clusters=kept, pools=tuple(p for p in applied.pools if p.cluster in here))

    async def _largest_nodes(self, now: float) -> dict[Supply, int]:
        """The most devices one node gives to each supply; nodes rarely change, so this is read rarely."""
        read_at, known = self._largest
        if now < read_at + SHAPE_SECONDS and known:
            return known
        found: dict[Supply, int] = {}
        after: tuple[str, str] | None = None
        for _ in range(_MOST_PAGES):
            page = await self._ledger.clusters.nodes(after=after, limit=_NODES_PAGE)
            for node in page:
                for d in node.devices:
                    if d.pool is not None:
                        supply = Supply(d.pool, d.slice)
                        found[supply] = max(found.get(supply, 0), d.total)
            if len(page) < _NODES_PAGE:
                break
            after = (page[-1].cluster, page[-1].name)
        else:
            found = {}  # too many to know: then the engine says no, if it must
        self._largest = (now, found)
        return found


@dataclass(frozen=True, slots=True)
class _Preview:
    """What an engine would be sent, or why it would never take it."""

    supply: Supply
    text: str
    refusal: Refused | None = None


@dataclass(slots=True)
class _FleetSupplies:
    """A fleet with its stocks, and what was promised from them since they were read."""

    fleet: Fleet
    tree: TeamTree
    stocks: dict[Supply, SupplyState]
    good_until: float
    today: date
    """In the fleet's time zone: whose prices count."""
    refusals: dict[_Shape, dict[Supply, Refused | None]] = field(default_factory=dict)
    """What engines say against a kind of job on a supply; None: nothing."""
    busy: dict[Supply, dict[TeamName, int]] = field(default_factory=dict)
    people: dict[tuple[UserName, str | None, str | None], tuple[Team, Priority]] = field(default_factory=dict)

    def whose(self, spec: JobSpec, user: UserName) -> tuple[Team, Priority]:
        """The job's team and priority; looked up once for a batch, for a fleet may have a thousand teams."""
        key = (user, spec.team, spec.priority)
        if key not in self.people:
            team = team_of(self.fleet, spec, user)
            self.people[key] = (team, priority_of(self.fleet, spec, team))
        return self.people[key]

    def count(self, counts: Sequence[JobCount]) -> None:
        """What jobs hold and wait for, each team's with those of the teams it is inside of."""
        waiting: dict[Supply, int] = {}
        for row in counts:
            if row.pool is None or row.state is JobState.HELD:
                continue
            supply = Supply(row.pool, row.slice)
            if row.state is not JobState.RUNNING:
                waiting[supply] = waiting.get(supply, 0) + row.devices
            if row.team is not None and row.team in self.tree:
                self._hold(self.tree[row.team], supply, row.devices)
        for supply, stock in self.stocks.items():
            busy = self.busy.setdefault(supply, {})
            self.stocks[supply] = replace(stock, busy=busy, waiting=waiting.get(supply, 0))

    def take(self, team: Team, supply: Supply, devices: int) -> None:
        """Count on so many being wanted from now on."""
        self._hold(team, supply, devices)
        stock = self.stocks[supply]
        self.stocks[supply] = replace(stock, waiting=stock.waiting + devices)

    def _hold(self, team: Team, supply: Supply, devices: int) -> None:
        busy = self.busy.setdefault(supply, {})
        for name in self._family(team):
            busy[name] = busy.get(name, 0) + devices

    def _family(self, team: Team) -> list[TeamName]:
        return [team.name, *(t.name for t in self.tree.ancestors(team))]


def _largest(pool: Pool, supply: Supply) -> int | None:
    """As the file says it, of a virtual pool."""
    if not isinstance(pool.place, VirtualPlace):
        return None
    each = pool.place.slices_per_gpu.get(supply.slice, 1) if supply.slice else 1
    return pool.place.gpus_per_node * each


def _shape(spec: JobSpec, user: UserName) -> _Shape:
    """What of a job an engine may say no to, as far as jobs of one batch have it in common."""
    plain = replace(spec, name="", command=(), script=None, env={}, array=(), after=())
    return (user, repr(plain))


def _order(spec: JobSpec, user: UserName, team: Team, priority: Priority, supply: Supply) -> Order:
    """A job as it would be sent if it were kept now."""
    name = engine_name("0000", JobId(0), 1, spec.name)
    return Order(JobId(0), 1, name, spec, user, team.name, priority.name, supply)
