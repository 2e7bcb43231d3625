"""Cache cost queries for the pages: a recent result serves all callers with the same rights."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, Final, TypeVar

from fairway.ledger import Ledger, Token
from fairway.model.charge import Dimension
from fairway.model.fleet import Fleet
from fairway.services.cost_queries import CostQueries, CostRequest, IdleHolders
from fairway.services.fleets import Fleets
from fairway.services.rights import visible_teams
from fairway.web.cache.single_flight import SingleFlightGroup
from fairway.wire import costs as wire

MAX_AGE_SECONDS: Final = 15.0
STALE_SECONDS: Final = 55.0
"""Open pages are notified of costs once a minute, and must then get new results."""
MAX_RESULTS: Final = 32

T = TypeVar("T")


class CachedCostQueries(CostQueries):
    """CostQueries that caches its last results for less than a minute.

    A result depends on the fleet, on the query and on the teams whose costs the caller may see, and on
    nothing else of the caller: the cache key has all three, so nobody sees what CostQueries would refuse.
    """

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        super().__init__(ledger, fleets, quick=True)
        self._cache: tuple[Fleet, SingleFlightGroup[Any]] | None = None

    async def cost(self, caller: Token, request: CostRequest) -> wire.CostReport:
        """Return the cached result of `CostQueries.cost`."""
        return await self._shared(caller, ("cost", request), partial(super().cost, caller, request))

    async def usage(self, caller: Token, request: CostRequest) -> wire.UsageReport:
        """Return the cached result of `CostQueries.usage`."""
        return await self._shared(caller, ("usage", request), partial(super().usage, caller, request))

    async def waste(self, caller: Token, request: CostRequest) -> wire.WasteReport:
        """Return the cached result of `CostQueries.waste`."""
        return await self._shared(caller, ("waste", request), partial(super().waste, caller, request))

    async def idle_holders(self, caller: Token, request: CostRequest) -> IdleHolders:
        """Return the cached result of `CostQueries.idle_holders`."""
        read = partial(super().idle_holders, caller, request)
        return await self._shared(caller, ("idle holders", request), read)

    async def cost_by_day(
        self, caller: Token, request: CostRequest, label: Dimension | None
    ) -> tuple[wire.CostReport, wire.CostReport]:
        """Return the cached result of `CostQueries.cost_by_day`."""
        read = partial(super().cost_by_day, caller, request, label)
        return await self._shared(caller, ("cost by day", request, label), read)

    async def usage_by_day(
        self, caller: Token, request: CostRequest, label: Dimension | None
    ) -> tuple[wire.UsageReport, wire.UsageReport]:
        """Return the cached result of `CostQueries.usage_by_day`."""
        read = partial(super().usage_by_day, caller, request, label)
        return await self._shared(caller, ("usage by day", request, label), read)

    async def waste_by_day(
        self, caller: Token, request: CostRequest
    ) -> tuple[wire.WasteReport, wire.WasteReport]:
        """Return the cached result of `CostQueries.waste_by_day`."""
        read = partial(super().waste_by_day, caller, request)
        return await self._shared(caller, ("waste by day", request), read)

    async def statements(self, caller: Token, month: str, team: str | None) -> wire.Statements:
        """Return the cached result of `CostQueries.statements`, unless a month was closed since."""
        closed = frozenset(month.month for month in await self._ledger.months.all())
        read = partial(super().statements, caller, month, team)
        return await self._shared(caller, ("statements", month, team, closed), read)

    async def _shared(self, caller: Token, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        fleet = await self.fleet()
        # A fleet is parsed once for each revision: another revision is another object.
        if self._cache is None or self._cache[0] is not fleet:
            group = SingleFlightGroup[Any](MAX_RESULTS, max_age=MAX_AGE_SECONDS, stale_age=STALE_SECONDS)
            self._cache = fleet, group
        result: T = await self._cache[1].get((visible_teams(caller, fleet), key), read)
        return result
