"""Costs for those who ask again and again: what capacity was and cost is worked out once for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fairway.control.costs import Costs, History, Priced, second
from fairway.ledger import Ledger
from fairway.model.charge import Span
from fairway.model.fleet import Fleet

SECONDS: Final = 20
"""How old it may be."""
WINDOWS: Final = 24


class QuickCosts(Costs):
    """Remembers windows with their capacity and rates for some seconds.

    Nothing of it is anybody's: who used what, and what it cost them, is read each time.
    """

    def __init__(
        self, ledger: Ledger, history: History | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(ledger, history)
        self._clock = clock
        self._known: dict[Span, tuple[float, int, Fleet, tuple[Priced, ...]]] = {}

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
