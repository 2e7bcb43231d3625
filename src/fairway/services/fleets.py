"""Read fleets: the newest revision, the last applied one, past ones, and with the holds of spent budgets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import Final

from fairway.cost.budget_text import SpentBudget
from fairway.cost.budgets import budget_hold, period, period_start, with_holds, with_raises
from fairway.cost.calendar import calendar_of
from fairway.ledger import Ledger, Revision, StoredBudgetStatus
from fairway.model.apply import Lifted
from fairway.model.budget import Budget, Every, Hold
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName, TeamName
from fairway.model.team import TeamTree

NO_FLEET = Fleet(name="", currency="", clusters=(), pools=())

MAX_PARSED: Final = 8
"""Parsed revisions to cache: the newest, those applied to clusters, and some that users and reports read."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class AppliedFleet:
    """The fleet that was last applied to a cluster, and the apply that did so."""

    apply: int
    fleet: Fleet


class Fleets:
    """A cache of parsed revisions, shared by all loops and requests of this process.

    Each read costs one small query. A parsed fleet is one object for all of its readers: a comparison by
    identity detects a new revision.
    """

    def __init__(self, ledger: Ledger, parse: Callable[[Revision], Fleet]) -> None:
        self._ledger = ledger
        self._parse = parse
        self._parsed: dict[int, Fleet] = {}
        """By revision, least recently used first."""
        self.charged: Final[dict[int, Fleet]] = {}
        """Fleets that `FleetHistory` has read, by revision; neighbours that charge the same are one."""
        self._parsing = asyncio.Lock()

    async def current(self) -> Fleet:
        """Read the newest fleet. Returns an empty one if there is none yet."""
        newest = await self._ledger.revisions.newest_id()
        if newest is None:
            return NO_FLEET
        return await self.read(newest) or NO_FLEET

    async def in_force(self) -> Fleet:
        """Read the fleet that was applied last, or the newest one before the first apply."""
        return await self.applied() or await self.current()

    async def applied(self, cluster: str | None = None) -> Fleet | None:
        """Read the fleet applied last, to one cluster or to any. Returns None if there is no readable one.

        Clusters may be at different revisions; the newest of them is the current policy.
        """
        applied = [c for c in await self._ledger.applies.applied() if cluster in (None, c.cluster)]
        return await self.at(max(c.revision for c in applied)) if applied else None

    async def at(self, revision: int) -> Fleet | None:
        """Read a past fleet. Returns None if this release can no longer parse it: newer ones still count."""
        try:
            return await self.read(revision)
        except FairwayError as error:
            if error.code == "InvalidFile":
                return None
            raise

    async def read(self, revision: int) -> Fleet | None:
        """Read the fleet of a revision. Returns None if there is no such revision. Raises InvalidFile."""
        if revision in self._parsed:
            return self._use(revision)
        stored = await self._ledger.revisions.one(revision)
        return None if stored is None else await self.parsed(stored)

    async def parsed(self, revision: Revision) -> Fleet:
        """Parse a stored revision, or return its cached fleet. Raises InvalidFile."""
        async with self._parsing:  # all loops read a new revision at once: one of them parses it
            if revision.id not in self._parsed:
                # A fleet of a thousand teams takes a second to parse: other requests run meanwhile.
                fleet = await asyncio.to_thread(self._parse, revision)
                while len(self._parsed) >= MAX_PARSED:
                    self._parsed.pop(next(iter(self._parsed)))
                self._parsed[revision.id] = fleet
        return self._use(revision.id)

    def _use(self, revision: int) -> Fleet:
        """Return a cached fleet and move it to the end: the least recently used one is evicted first."""
        fleet = self._parsed.pop(revision)
        self._parsed[revision] = fleet
        return fleet


class LastApplied:
    """Reads the fleet that was last applied to one cluster, by one small query each time."""

    def __init__(
        self, cluster: ClusterName, ledger: Ledger, fleets: Fleets, clock: Clock = time.time
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._fleets = fleets
        self._clock = clock

    async def get(self) -> AppliedFleet | None:
        """Read the applied fleet with the current holds, as the cluster enforces it.

        Returns None before the cluster's first apply, and when it was left or released.
        """
        applied = await self._applied(enforced=True)
        if applied is None:
            return None
        return AppliedFleet(applied.apply, await with_budget_holds(applied.fleet, self._ledger, self._clock))

    async def is_left(self) -> bool:
        """Return whether Fairway has left the cluster."""
        applied = await self._ledger.applies.applied_to(self._cluster)
        return applied is not None and applied.lifted is Lifted.LEFT

    async def fleet(self) -> Fleet | None:
        """Read the applied fleet without holds; before the first apply, the newest revision."""
        applied = await self._applied()
        if applied is not None:
            return applied.fleet
        newest = await self._ledger.revisions.newest_id()
        return None if newest is None else await self._fleets.read(newest)

    async def _applied(self, *, enforced: bool = False) -> AppliedFleet | None:
        applied = await self._ledger.applies.applied_to(self._cluster)
        if applied is not None and applied.lifted is not None and enforced:
            return None
        fleet = None if applied is None else await self._fleets.read(applied.revision)
        return None if applied is None or fleet is None else AppliedFleet(applied.apply, fleet)


def has_budgets(fleet: Fleet) -> bool:
    """Return whether the fleet or any team of it has a budget."""
    return bool(fleet.budgets) or any(team.budget is not None for team in fleet.teams)


def budget_named(fleet: Fleet, name: str) -> Budget | None:
    """Return the budget of the team `name`, or the budget of the fleet file with that name."""
    own = (team.budget for team in fleet.teams if team.name == name)
    return next(own, None) or next((n.budget for n in fleet.budgets if n.name == name), None)


async def with_raised_budgets(fleet: Fleet, ledger: Ledger, now: int) -> Fleet:
    """Set the amounts in force at `now` on a fleet: those of the file, and the approved raises of the period.

    Whatever compares spending with a budget takes it from this fleet. Amounts that are in it already are
    replaced.
    """
    if all(team.budget is None for team in fleet.teams):
        return fleet
    today = calendar_of(fleet).day_of(now)
    raises = await ledger.budget_raises.approved(period_start(Every.QUARTER, today))
    return with_raises(fleet, raises, today)


def holds_of(fleet: Fleet, statuses: Iterable[StoredBudgetStatus], now: int) -> dict[TeamName, Hold]:
    """Compute the holds on teams with a spent budget.

    Spending is compared with the budgets of `fleet`, not with those of the time it was computed: a budget
    that is raised ends its hold at once. `fleet` has the amounts in force, see `with_raised_budgets`.
    """
    calendar = calendar_of(fleet)
    today = calendar.day_of(now)
    spent_by_team = {(s.team, s.period): Fraction(s.spent) for s in statuses}
    found: dict[TeamName, Hold] = {}
    for team in fleet.teams:
        if team.budget is None:
            continue
        first = period_start(team.budget.every, today)
        # A team that was just renamed has the hold of its former name until it is computed anew.
        former = team.renamed_from or team.name
        spent = spent_by_team.get((team.name, first), spent_by_team.get((former, first)))
        if spent is not None:
            hold = budget_hold(team.budget, spent)
            if hold is not None:
                found[team.name] = hold
    return found


async def with_budget_holds(fleet: Fleet, ledger: Ledger, clock: Clock = time.time) -> Fleet:
    """Set the holds of currently spent budgets on a fleet, as engines get it."""
    if not has_budgets(fleet):
        return fleet
    now = int(clock())
    raised = await with_raised_budgets(fleet, ledger, now)
    return with_holds(fleet, holds_of(raised, await ledger.budgets.statuses(), now))


async def teams_held_by_budgets(
    ledger: Ledger, fleets: Fleets, visible: frozenset[str] | None
) -> tuple[Fleet, Mapping[TeamName, SpentBudget]]:
    """Read the fleet in force, and for each held team the spent budget that its jobs wait for."""
    fleet = await fleets.applied()
    if fleet is None or not has_budgets(fleet):
        return fleet or await fleets.current(), {}
    now = int(time.time())
    raised = await with_raised_budgets(fleet, ledger, now)
    return fleet, spent_budgets(raised, await ledger.budgets.statuses(), now, visible)


def spent_budgets(
    fleet: Fleet, statuses: Sequence[StoredBudgetStatus], now: int, visible: frozenset[str] | None
) -> Mapping[TeamName, SpentBudget]:
    """Find the budget that holds each held team: the strictest, and of those the nearest ancestor's.

    Amounts are shown of teams in `visible`; None is all. `fleet` has the amounts in force.
    """
    holds = holds_of(fleet, statuses, now)
    if not holds:
        return {}
    tree, spent = TeamTree(fleet.teams), {s.team: Fraction(s.spent) for s in statuses}
    low = next((p.name for p in fleet.priorities if p.preemptible), None)
    found: dict[TeamName, SpentBudget] = {}
    for team in fleet.teams:
        holding = [t for t in (team, *tree.ancestors(team)) if t.name in holds]
        if not holding:
            continue
        owner = next((t for t in holding if holds[t.name] is Hold.STOP), holding[0])
        if owner.budget is None:  # for the type checker: only teams with a budget have a hold of their own
            continue
        first, until = budget_period(fleet, owner.budget, now)
        found[team.name] = SpentBudget(
            team=owner.name,
            spent=spent[owner.name] if owner.name in spent else spent[owner.renamed_from or owner.name],
            amount=owner.budget.amount,
            currency=fleet.currency,
            every=owner.budget.every,
            period=first,
            until=until,
            hold=holds[owner.name],
            low=low,
            shows_amounts=visible is None or owner.name in visible,
        )
    return found


def budget_period(fleet: Fleet, budget: Budget, now: int) -> tuple[date, date]:
    """Return the first day of the budget's period at `now`, and that of the next period."""
    calendar = calendar_of(fleet)
    today = calendar.day_of(now)
    span = period(budget.every, today, calendar)
    return period_start(budget.every, today), calendar.day_of(span.end)
