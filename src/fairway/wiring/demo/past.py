"""The demo's past, from its first job to its last row: played while PostgreSQL starts, then written."""

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

from fairway.api.fleets import Fleets
from fairway.control.costs import Costs
from fairway.control.fleet_history import FleetHistory
from fairway.cost.calendar import Calendar
from fairway.files import fleet_digest, parse_fleet
from fairway.ledger import Ledger
from fairway.ledger.backfill import Past, backfill
from fairway.ledger.backfill_policy import write_applies, write_budgets
from fairway.model.fleet import Fleet
from fairway.wiring.demo import past_money, past_policy
from fairway.wiring.demo.fleet_text import fleet_text
from fairway.wiring.demo.past_rows import past_of
from fairway.wiring.demo.past_run import outages, run
from fairway.wiring.demo.past_work import DAY, asked

PEOPLE: Final = ("olga", "olga", "marek")
"""Who applied each revision of the fleet file."""


@dataclass(frozen=True, slots=True)
class Steps:
    """How the visitor hears of it."""

    step: Callable[[str], None]
    part: Callable[[float], None]
    """Which part of the step is done."""


class Yesterdays:
    """So many days that ended just now."""

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
        """When a price changed: in the middle of what there is."""
        return datetime.fromtimestamp((self._start + self._end) // 2, UTC).date()

    def begin(self) -> None:
        """Play it in a thread, while others start what they need; it ends with the process."""
        if self._days:
            threading.Thread(target=self._play, name="the past", daemon=True).start()

    async def write(self, ledger: Ledger) -> None:
        """Make it the ledger's, and its fleet the newest."""
        if not self._days:
            await ledger.keep_fleet(self.text, fleet_digest(self.text), PEOPLE[-1])
            return
        self._steps.step(f"playing the last {self._days} days")
        self._waited_for = True
        past = await asyncio.wrap_future(self._played)
        self._steps.step(f"writing {len(past.jobs):,} jobs to the ledger")
        await backfill(ledger, past, self._steps.part)
        self._steps.step("reckoning what it cost")
        prices = tuple(past_money.spot_prices(self.fleet, self._start, self._end, self._seed))
        await ledger.keep_price_points(prices, by="the spot market")
        await self._reckon(ledger)

    async def _reckon(self, ledger: Ledger) -> None:
        """Budgets that fit what was spent, the fleet file over time, closed months, what was told."""
        start, end = self._start, self._end
        calendar = Calendar(ZoneInfo(self.fleet.cost.timezone))
        spent = await past_money.spending(self.fleet, Costs(ledger), start, end)
        texts = past_policy.revisions(self.price_day, past_money.fitting(spent, calendar, start, end))
        length = end - start
        moments = [start, start + round(length * 0.45), max(start + 2, end - min(5 * DAY, length // 8))]
        await write_applies(ledger, list(past_policy.applies(texts, PEOPLE, moments)))
        self.text = texts[-1]
        self.fleet = parse_fleet(self.text, "fleet.yaml")
        history = FleetHistory(ledger, Fleets(ledger, lambda kept: parse_fleet(kept.text, "fleet.yaml")))
        costs = Costs(ledger, history)
        fleets = {at: parse_fleet(text, "fleet.yaml") for at, text in zip(moments, texts, strict=True)}
        spent = await past_money.spending(self.fleet, costs, start, end)
        await write_budgets(ledger, *past_money.told(fleets, spent, calendar, start, end))
        await past_money.close_months(ledger, self.fleet, costs, start, end)

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
        """What is done while another step is told of is not that step's."""
        if self._waited_for:
            self._steps.part(part)
