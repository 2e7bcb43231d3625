"""Cache cost queries for the pages: an answer of a moment ago serves all who may see the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, Final, TypeVar

from fairway.ledger import Ledger, Token
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.services.cost_queries import CostQueries, CostQuestion
from fairway.services.fleets import Fleets
from fairway.services.rights import teams_seen
from fairway.web.cache.single_flight import SingleFlightGroup
from fairway.wire import costs as wire

KEEP_SECONDS: Final = 15.0
STALE_SECONDS: Final = 55.0
"""Open pages hear of money once a minute: what they then ask for is read anew."""
MOST_ANSWERS: Final = 32

T = TypeVar("T")


class CachedCostQueries(CostQueries):
    """Caches the last answers for less than a minute.

    An answer depends on the fleet, on the question and on whose money the caller may see, and on nothing else
    of the caller: those three are what it is remembered by, so nobody is shown what CostQueries would refuse.
    """

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        super().__init__(ledger, fleets, quick=True)
        self._of: tuple[Fleet, SingleFlightGroup[Any]] | None = None

    async def cost(self, caller: Token, asked: CostQuestion) -> wire.CostReport:
        """As CostQueries, cached."""
        return await self._shared(caller, ("cost", asked), partial(super().cost, caller, asked))

    async def usage(self, caller: Token, asked: CostQuestion) -> wire.UsageReport:
        """As CostQueries, cached."""
        return await self._shared(caller, ("usage", asked), partial(super().usage, caller, asked))

    async def waste(self, caller: Token, asked: CostQuestion) -> wire.WasteReport:
        """As CostQueries, cached."""
        return await self._shared(caller, ("waste", asked), partial(super().waste, caller, asked))

    async def cost_by_day(
        self, caller: Token, asked: CostQuestion, label: Label | None
    ) -> tuple[wire.CostReport, wire.CostReport]:
        """As CostQueries, cached."""
        look = partial(super().cost_by_day, caller, asked, label)
        return await self._shared(caller, ("cost by day", asked, label), look)

    async def usage_by_day(
        self, caller: Token, asked: CostQuestion, label: Label | None
    ) -> tuple[wire.UsageReport, wire.UsageReport]:
        """As CostQueries, cached."""
        look = partial(super().usage_by_day, caller, asked, label)
        return await self._shared(caller, ("usage by day", asked, label), look)

    async def waste_by_day(
        self, caller: Token, asked: CostQuestion
    ) -> tuple[wire.WasteReport, wire.WasteReport]:
        """As CostQueries, cached."""
        return await self._shared(
            caller, ("waste by day", asked), partial(super().waste_by_day, caller, asked)
        )

    async def _shared(self, caller: Token, question: Hashable, look: Callable[[], Awaitable[T]]) -> T:
        fleet = await self.fleet()
        answer: T = await self._looks(fleet).get((teams_seen(caller, fleet), question), look)
        return answer

    def _looks(self, fleet: Fleet) -> SingleFlightGroup[Any]:
        # A fleet is read once for each revision: another one is another object.
        if self._of is None or self._of[0] is not fleet:
            looks = SingleFlightGroup[Any](
                MOST_ANSWERS, keep_seconds=KEEP_SECONDS, stale_seconds=STALE_SECONDS
            )
            self._of = fleet, looks
        return self._of[1]
