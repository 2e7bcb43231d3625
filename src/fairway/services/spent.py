"""Compute what teams spent in a period, as budgets and statements both count it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fairway.cost.calendar import calendar_of
from fairway.ledger import Ledger
from fairway.model.charge import Span
from fairway.model.fleet import Fleet, NamedBudget
from fairway.model.names import TeamName
from fairway.services.charges import Costs, counts, or_now
from fairway.services.statements import MonthStatements

CORRECTIONS_SECONDS: Final = 3600
"""How long corrections are cached: closed months rarely change, and each is computed again."""


class TeamSpending:
    """Computes what teams spent in whole months as the statements of these months say.

    That is what was charged, to each team and to all that it was inside of at that time, and what these
    statements correct of months before them.
    """

    def __init__(self, ledger: Ledger, costs: Costs) -> None:
        self._costs = costs
        self._statements = MonthStatements(ledger, costs)
        self._corrections: dict[Span, tuple[int, Fleet, Mapping[TeamName, Decimal]]] = {}

    async def by_team(
        self, fleet: Fleet, period: Span, now: int | None = None
    ) -> Mapping[TeamName, Fraction]:
        """Return what each team spent in a period up to now, running jobs included."""
        now = or_now(now)
        found = dict(await self._costs.by_team(fleet, period, now))
        for team, amount in (await self._corrected(fleet, period, now)).items():
            found[team] = found.get(team, Fraction(0)) + Fraction(amount)
        return found

    async def by_budget(
        self, fleet: Fleet, budgets: Sequence[NamedBudget], period: Span, now: int | None = None
    ) -> Mapping[str, Fraction]:
        """Return what each budget that is no team's own counts in a period up to now.

        Corrections of earlier months have no project: they count for budgets of the fleet and of teams.
        """
        now = or_now(now)
        days = await self._costs.by_budget(fleet, budgets, period, now)
        found = {name: sum(amounts.values(), Fraction(0)) for name, amounts in days.items()}
        calendar = calendar_of(fleet)
        first, until = calendar.day_of(period.start), calendar.day_of(period.end)
        pools = {pool.name: pool for pool in fleet.pools}
        for entry in await self._statements.corrections(fleet, first, until, now):
            billed = entry.billed
            pool = None if billed.supply is None else pools.get(billed.supply.pool)
            for named in budgets:
                if named.project is None and counts(named, None, billed.path, pool):
                    found[named.name] += Fraction(billed.amount)
        return found

    def clear(self) -> None:
        """Forget what was read."""
        self._corrections.clear()

    async def _corrected(self, fleet: Fleet, period: Span, now: int) -> Mapping[TeamName, Decimal]:
        cached = self._corrections.get(period)
        if cached is not None and cached[1] is fleet and 0 <= now - cached[0] < CORRECTIONS_SECONDS:
            return cached[2]
        calendar = calendar_of(fleet)
        first: date = calendar.day_of(period.start)
        found = await self._statements.corrections_by_team(fleet, first, calendar.day_of(period.end), now)
        self._corrections = {of: one for of, one in self._corrections.items() if of.end > now}
        self._corrections[period] = (now, fleet, found)
        return found
