"""The fleet that was last applied to a cluster, parsed once for each revision; with the holds of now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from fairway.control.costs import calendar_of
from fairway.cost.budgets import period_start, standing, with_holds
from fairway.ledger import BudgetStanding, Ledger, Revision
from fairway.model.budget import Hold
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName, TeamName

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class AppliedFleet:
    """A fleet, and the apply that made a cluster so."""

    apply: int
    fleet: Fleet


def holds_of(fleet: Fleet, standings: Iterable[BudgetStanding], now: int) -> dict[TeamName, Hold]:
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


async def held_fleet(fleet: Fleet, ledger: Ledger, clock: Clock = time.time) -> Fleet:
    """The fleet as engines shall have it now: with what spent budgets keep from starting."""
    if not has_budgets(fleet):
        return fleet
    return with_holds(fleet, holds_of(fleet, await ledger.budget_standings(), int(clock())))


def has_budgets(fleet: Fleet) -> bool:
    """Whether anybody has one."""
    return any(team.budget is not None for team in fleet.teams)


class LastApplied:
    """Asks the ledger which revision holds, one small query each time, and reads it when it is a new one."""

    def __init__(
        self,
        cluster: ClusterName,
        ledger: Ledger,
        parse: Callable[[Revision], Fleet],
        clock: Clock = time.time,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._parse = parse
        self._clock = clock
        self._known: tuple[int, Fleet] | None = None
        self._newest: tuple[int, Fleet] | None = None

    async def get(self) -> AppliedFleet | None:
        """What the cluster shall be: the fleet that was applied, with the holds of now.

        None: nothing was ever applied to the cluster.
        """
        holds = await self._applied()
        if holds is None:
            return None
        return AppliedFleet(holds.apply, await held_fleet(holds.fleet, self._ledger, self._clock))

    async def fleet(self) -> Fleet | None:
        """What engines enforce on the cluster, holds apart; before the first apply, the newest revision."""
        holds = await self._applied()
        if holds is not None:
            return holds.fleet
        newest = await self._ledger.fleet_revision()
        if newest is None:
            return None
        if self._newest is None or self._newest[0] != newest:
            revision = await self._ledger.revision(newest)
            if revision is None:
                return None
            self._newest = (newest, self._parse(revision))
        return self._newest[1]

    async def _applied(self) -> AppliedFleet | None:
        holds = await self._ledger.applied_cluster(self._cluster)
        if holds is None:
            return None
        if self._known is None or self._known[0] != holds.revision:
            revision = await self._ledger.revision(holds.revision)
            if revision is None:
                return None
            self._known = (revision.id, self._parse(revision))
        return AppliedFleet(holds.apply, self._known[1])
