"""Costs for those who ask again and again: what capacity was and cost is worked out once for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fairway.control.costs import Costs, History, Priced, second
from fairway.ledger import Ledger, UsageView
from fairway.model.charge import Span, UsageSum
from fairway.model.fleet import Fleet

SECONDS: Final = 20
"""How old it may be."""
WINDOWS: Final = 24


class QuickCosts(Costs):
    """Remembers windows with their capacity and rates for some seconds.

    Nothing of it is anybody's: who used what, and what it cost them, is read each time. What all together
    used of each pool is kept as long as the window it is of.
    """

    def __init__(
        self, ledger: Ledger, history: History | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(ledger, history)
        self._clock = clock
        self._known: dict[Span, tuple[float, int, Fleet, tuple[Priced, ...]]] = {}
        self._everyone: dict[int, tuple[Priced, tuple[UsageSum, ...]]] = {}

    async def priced(self, fleet: Fleet, period: Span, now: int | None = None) -> tuple[Priced, ...]:
        """As it was a few seconds ago at the most; running work counts up to then."""
        now = second(now)
        if (known := self._known.get(period)) is not None:
            at, asked, of_fleet, parts = known
            # A fleet is read once for each revision: another one is another object.
            if of_fleet is fleet and self._clock() - at < SECONDS and 0 <= now - asked < SECONDS:
                return parts
        parts = await super().priced(fleet, period, now)
        while len(self._known) >= WINDOWS:
            self._known.pop(next(iter(self._known)))
        self._known[period] = (self._clock(), now, fleet, parts)
        return parts

    async def everyone(self, priced: Priced) -> tuple[UsageSum, ...]:
        """As it was read first of that very window."""
        known = self._everyone.get(id(priced))
        if known is not None and known[0] is priced:
            return known[1]
        return self._keep(priced, await super().everyone(priced))

    async def _with_everyone(
        self, priced: Priced, view: UsageView
    ) -> tuple[tuple[UsageSum, ...], tuple[UsageSum, ...]]:
        usage, everyone = await super()._with_everyone(priced, view)
        return usage, self._keep(priced, everyone)

    def _keep(self, priced: Priced, usage: tuple[UsageSum, ...]) -> tuple[UsageSum, ...]:
        while len(self._everyone) >= WINDOWS:
            self._everyone.pop(next(iter(self._everyone)))
        self._everyone[id(priced)] = priced, usage  # which stays, so nothing else gets its number
        return usage
