"""The step of the forecast loop: write what each team and project will have spent when the month ends.

Pages and the API read the result: computing it reads 90 days of charges once an hour, and today's each time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from fairway.ledger import Lease, Ledger, StoredForecast
from fairway.model.fleet import Fleet
from fairway.services.fleets import Clock, Fleets


class ForecastsMonths(Protocol):
    """Forecasts the months of payers; implemented by `SpendingHistory`."""

    async def month_forecasts(self, fleet: Fleet, now: int) -> Sequence[StoredForecast]:
        """Forecast the month of each payer that spent anything."""
        ...

    def clear(self) -> None:
        """Forget what was read."""
        ...


class ForecastSpending:
    """Writes the forecasts of all payers."""

    def __init__(
        self, ledger: Ledger, fleets: Fleets, spending: ForecastsMonths, *, clock: Clock = time.time
    ) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._spending = spending
        self._clock = clock

    async def __call__(self, lease: Lease) -> None:
        """Compute from the ledger, then write briefly."""
        fleet = await self._fleets.in_force()
        if not fleet.name:
            return
        forecasts = await self._spending.month_forecasts(fleet, int(self._clock()))
        async with self._ledger.writing(lease) as tx:
            await tx.forecasts.write(forecasts)

    async def close(self) -> None:
        """Forget the spending at the end of a tenure."""
        self._spending.clear()
