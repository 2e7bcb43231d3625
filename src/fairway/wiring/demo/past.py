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

from fairway.cost.calendar import Calendar
from fairway.files import fleet_digest, parse_fleet
from fairway.ledger import Ledger
from fairway.ledger.backfill import Past, backfill
from fairway.model.fleet import Fleet
from fairway.wiring.demo.fleet_text import fleet_text
from fairway.wiring.demo.past_rows import past_of
from fairway.wiring.demo.past_run import outages, run
from fairway.wiring.demo.past_work import DAY, asked

BY: Final = "olga"
"""Who keeps the fleet file."""


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
        if self._days:
            self._steps.step(f"playing the last {self._days} days")
            past = await asyncio.wrap_future(self._played)
            self._steps.step(f"writing {len(past.jobs):,} jobs to the ledger")
            await backfill(ledger, past, self._steps.part)
        await ledger.keep_fleet(self.text, fleet_digest(self.text), BY)

    def _play(self) -> None:
        try:
            work = asked(self.fleet, self._start, self._end, self._seed)
            broken = outages(self.fleet, self._start, self._end, self._seed)
            ran = run(self.fleet, work, broken, self._start, self._end, self._steps.part)
            zone = ZoneInfo(self.fleet.cost.timezone)
            self._played.set_result(past_of(self.fleet, ran, Calendar(zone)))
        except BaseException as error:
            self._played.set_exception(error)
