"""The demo's history: simulated in a thread while PostgreSQL starts, then written to the ledger."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final
from zoneinfo import ZoneInfo

from fairway.cost.calendar import Calendar
from fairway.demo import history_money, history_policy
from fairway.demo.fleet_text import fleet_text
from fairway.demo.history_jobs import DAY, asked
from fairway.demo.history_rows import past_of
from fairway.demo.history_run import outages, run
from fairway.files import fleet_digest, parse_fleet
from fairway.ledger import Ledger
from fairway.ledger.seed import Past, backfill, write_applies, write_budgets
from fairway.model.fleet import Fleet
from fairway.services.charges import Costs
from fairway.services.fleets import FleetHistory, Fleets

PEOPLE: Final = ("olga", "olga", "marek")
"""The user who applied each revision of the fleet file."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Callbacks that report the progress of the start-up."""

    step: Callable[[str], None]
    part: Callable[[float], None]
    """Reports the completed fraction of the current step."""


class Yesterdays:
    """A simulated history of `days` days that ends now."""

    def __init__(self, days: int, seed: int, steps: Steps) -> None:
        self._days = days
        self._seed = seed
        self._steps = steps
        self._end = int(time.time())
        self._start = self._end - days * DAY
        self.text = fleet_text(self.price_day)
        self.fleet: Fleet = parse_fleet(self.text, "fleet.yaml")
        self._played: Future[Past] = Future()
        self._waited_for = False

    @property
    def price_day(self) -> date:
        """Return the day on which a price changed: in the middle of the history."""
        return datetime.fromtimestamp((self._start + self._end) // 2, UTC).date()

    def begin(self) -> None:
        """Start the simulation in a daemon thread while the server starts."""
        if self._days:
            threading.Thread(target=self._play, name="the past", daemon=True).start()

    async def write(self, ledger: Ledger) -> None:
        """Write the history to the ledger, and its fleet as the newest revision."""
        if not self._days:
            await ledger.revisions.keep(self.text, fleet_digest(self.text), PEOPLE[-1])
            return
        self._steps.step(f"playing the last {self._days} days")
        self._waited_for = True
        past = await asyncio.wrap_future(self._played)
        self._steps.step(f"writing {len(past.jobs):,} jobs to the ledger")
        await backfill(ledger, past, self._steps.part)
        self._steps.step("reckoning what it cost")
        prices = tuple(history_money.spot_prices(self.fleet, self._start, self._end, self._seed))
        await ledger.prices.keep(prices, by="the spot market")
        await self._reckon(ledger)

    async def _reckon(self, ledger: Ledger) -> None:
        """Write fitted budgets, the revisions of the fleet, closed months and budget events."""
        start, end = self._start, self._end
        calendar = Calendar(ZoneInfo(self.fleet.cost.timezone))
        spent = await history_money.spending(self.fleet, Costs(ledger), start, end)
        texts = history_policy.revisions(self.price_day, history_money.fitting(spent, calendar, start, end))
        length = end - start
        moments = [start, start + round(length * 0.45), max(start + 2, end - min(5 * DAY, length // 8))]
        await write_applies(ledger, list(history_policy.applies(texts, PEOPLE, moments)))
        self.text = texts[-1]
        self.fleet = parse_fleet(self.text, "fleet.yaml")
        history = FleetHistory(ledger, Fleets(ledger, lambda kept: parse_fleet(kept.text, "fleet.yaml")))
        costs = Costs(ledger, history)
        fleets = {at: parse_fleet(text, "fleet.yaml") for at, text in zip(moments, texts, strict=True)}
        spent = await history_money.spending(self.fleet, costs, start, end)
        await write_budgets(ledger, *history_money.told(fleets, spent, calendar, start, end))
        await history_money.close_months(ledger, self.fleet, costs, start, end)

    def _play(self) -> None:
        try:
            work = asked(self.fleet, self._start, self._end, self._seed)
            broken = outages(self.fleet, self._start, self._end, self._seed)
            ran = run(self.fleet, work, broken, self._start, self._end, self._part_played)
            zone = ZoneInfo(self.fleet.cost.timezone)
            self._played.set_result(past_of(self.fleet, ran, Calendar(zone)))
        except BaseException as error:
            self._played.set_exception(error)

    def _part_played(self, part: float) -> None:
        """Report progress only once this step is current, not while another step is shown."""
        if self._waited_for:
            self._steps.part(part)
