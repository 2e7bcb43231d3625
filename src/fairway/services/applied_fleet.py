"""The fleet that was last applied to a cluster, with the holds of budgets that are spent now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from fairway.cost.budgets import period_start, standing, with_holds
from fairway.ledger import Ledger, StoredBudgetStatus
from fairway.model.budget import Hold
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName, TeamName
from fairway.services.charges import calendar_of
from fairway.services.fleets import Fleets

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class AppliedFleet:
    """A fleet, and the apply that made a cluster so."""

    apply: int
    fleet: Fleet


def holds_of(fleet: Fleet, standings: Iterable[StoredBudgetStatus], now: int) -> dict[TeamName, Hold]:
    """What the budgets of `fleet` keep from starting, by what was spent of them.

    What was spent is compared with what the fleet says, not with what was said when it was counted: a budget
    that is raised holds nobody from then on.
    """
    calendar = calendar_of(fleet)
    today = calendar.day_of(now)
    spent = {(s.team, s.period): Fraction(s.spent) for s in standings}
    found: dict[TeamName, Hold] = {}
    for team in fleet.teams:
        if team.budget is None:
            continue
        known = spent.get((team.name, period_start(team.budget.every, today)))
        if known is not None:
            hold = standing(team.budget, known, Fraction(0), now, calendar).hold
            if hold is not None:
                found[team.name] = hold
    return found


async def with_budget_holds(fleet: Fleet, ledger: Ledger, clock: Clock = time.time) -> Fleet:
    """Add to a fleet the holds of budgets that are spent now: engines get it so."""
    if not has_budgets(fleet):
        return fleet
    return with_holds(fleet, holds_of(fleet, await ledger.budgets.standings(), int(clock())))


def has_budgets(fleet: Fleet) -> bool:
    """Whether anybody has one."""
    return any(team.budget is not None for team in fleet.teams)


class LastApplied:
    """Reads which fleet was last applied to a cluster, by one small query each time."""

    def __init__(
        self, cluster: ClusterName, ledger: Ledger, fleets: Fleets, clock: Clock = time.time
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._fleets = fleets
        self._clock = clock

    async def get(self) -> AppliedFleet | None:
        """What the cluster shall be: the fleet that was applied, with the holds of now.

        None: nothing was ever applied to the cluster.
        """
        applied = await self._applied()
        if applied is None:
            return None
        return AppliedFleet(applied.apply, await with_budget_holds(applied.fleet, self._ledger, self._clock))

    async def fleet(self) -> Fleet | None:
        """What engines enforce on the cluster, holds apart; before the first apply, the newest revision."""
        applied = await self._applied()
        if applied is not None:
            return applied.fleet
        newest = await self._ledger.revisions.newest_id()
        return None if newest is None else await self._fleets.read(newest)

    async def _applied(self) -> AppliedFleet | None:
        applied = await self._ledger.applies.applied_to(self._cluster)
        fleet = None if applied is None else await self._fleets.read(applied.revision)
        return None if applied is None or fleet is None else AppliedFleet(applied.apply, fleet)
