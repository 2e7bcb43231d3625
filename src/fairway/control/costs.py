"""Answers about money: reads sums of a window from the ledger and lets `cost` make charges of them."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from fairway.model.charge import Charge, Label, Span
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName


class Costs:
    """Charges of any window, exact. Holds nothing: any number of them may serve one ledger."""

    async def charges(self, fleet: Fleet, window: Span, by: tuple[Label, ...]) -> tuple[Charge, ...]:
        """Every charge of the window, live running work included."""
        raise NotImplementedError

    async def by_team(self, fleet: Fleet, period: Span) -> Mapping[TeamName, Fraction]:
        """What each team itself is charged in a period up to now, with its shares; '' is nobody's."""
        raise NotImplementedError

    async def spent(self, fleet: Fleet, team: TeamName, period: Span) -> Fraction:
        """The same of a team with all teams inside it."""
        raise NotImplementedError
