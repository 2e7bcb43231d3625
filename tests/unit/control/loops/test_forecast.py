"""The forecast loop on a real ledger: what it computes is stored, and replaces what was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal

from fairway.control.loops.forecast import ForecastSpending
from fairway.ledger import Ledger, StoredForecast
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.services.fleets import Fleets
from tests.unit.control.job_toy import FLEET, give_fleet, parse, take

NLP = StoredForecast(
    Label.TEAM, "nlp", date(2026, 11, 1), Decimal(10), Decimal("20.50"), Decimal(15), Decimal(30)
)
VISION = replace(NLP, payer="vision", expected=Decimal(29))


class Seer:
    """Forecasts what the test says."""

    forecasts: Sequence[StoredForecast] = (NLP, VISION)

    async def month_forecasts(self, fleet: Fleet, now: int) -> Sequence[StoredForecast]:
        assert (fleet.name, now) == (FLEET.name, 1000)
        return self.forecasts

    def clear(self) -> None:
        self.forecasts = ()


async def test_forecasts_are_stored_and_replaced(ledger: Ledger) -> None:
    seer = Seer()
    step = ForecastSpending(ledger, Fleets(ledger, parse), seer, clock=lambda: 1000.0)
    lease = await take(ledger, "forecast")
    await step(lease)  # without a fleet nothing is forecast
    assert not await ledger.forecasts.by(Label.TEAM)
    await give_fleet(ledger)
    await step(lease)
    stored = await ledger.forecasts.by(Label.TEAM)
    assert [replace(one, checked_at=None) for one in stored] == [VISION, NLP]
    assert all(one.checked_at is not None for one in stored)
    seer.forecasts = (replace(NLP, spent=Decimal(11)),)
    await step(lease)
    assert [(one.payer, one.spent) for one in await ledger.forecasts.by(Label.TEAM)] == [("nlp", Decimal(11))]
    await step.close()
    assert not seer.forecasts
