"""The demo's history: simulated in a thread while PostgreSQL starts, then written to the ledger."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, date, datetime
from typing import Final

from fairway.cost.calendar import calendar_of
from fairway.demo import history_money, history_policy
from fairway.demo.fleet_text import PROMETHEUS, fleet_text
from fairway.demo.history_jobs import generate_jobs
from fairway.demo.history_rows import ledger_rows
from fairway.demo.history_run import generate_outages, run
from fairway.demo.history_use import past_uses
from fairway.demo.jobs import DAY
from fairway.files import fleet_digest, parse_fleet
from fairway.ledger import Ledger
from fairway.ledger.seed import GeneratedHistory, backfill, backfill_uses, write_applies, write_budgets
from fairway.ledger.telemetry.seed import PastUses
from fairway.ledger.usage.metering import Hours
from fairway.model.fleet import Fleet
from fairway.services.charges import Costs
from fairway.services.fleets import FleetHistory, Fleets

APPLIED_BY: Final = ("olga", "olga", "marek")
"""The user who applied each revision of the fleet file."""


class DemoHistory:
    """A simulated history of `days` days that ends now."""

    def __init__(
        self,
        days: int,
        seed: int,
        on_step: Callable[[str], None],
        on_progress: Callable[[float], None],
        prometheus: str = PROMETHEUS,
    ) -> None:
        """`on_progress` gets the completed fraction of the step that `on_step` announced.

        `prometheus`: the address at which live metrics are served.
        """
        self._days = days
        self._seed = seed
        self._on_step = on_step
        self._on_progress = on_progress
        self._end = int(time.time())
        self._start = self._end - days * DAY
        self._prometheus = prometheus
        self.text = fleet_text(self.price_day, prometheus=prometheus)
        self.fleet: Fleet = parse_fleet(self.text, "fleet.yaml")
        self._run: Future[GeneratedHistory] = Future()
        self._uses: Future[tuple[PastUses, Hours]] = Future()
        self._writing_uses: asyncio.Task[None] | None = None
        self._is_waiting = False

    @property
    def price_day(self) -> date:
        """Return the day on which a price changed: in the middle of the history."""
        return datetime.fromtimestamp((self._start + self._end) // 2, UTC).date()

    def begin(self) -> None:
        """Start the simulation in a daemon thread while the server starts."""
        if self._days:
            threading.Thread(target=self._simulate, name="the past", daemon=True).start()

    async def write(self, ledger: Ledger) -> None:
        """Write the history to the ledger, and its fleet as the newest revision."""
        if not self._days:
            await ledger.revisions.add(self.text, fleet_digest(self.text), APPLIED_BY[-1])
            return
        self._on_step(f"Simulating the last {self._days} days")
        self._is_waiting = True
        past = await asyncio.wrap_future(self._run)
        self._on_step(f"Storing {len(past.jobs):,} jobs")
        await backfill(ledger, past, self._on_progress)
        self._writing_uses = asyncio.create_task(self._write_uses(ledger), name="what GPUs did")
        self._on_step("Calculating costs")
        prices = tuple(history_money.spot_prices(self.fleet, self._start, self._end, self._seed))
        await ledger.prices.add(prices, by="the spot market")
        await self._write_policy_and_costs(ledger)

    async def finish(self) -> None:
        """Wait until what the GPUs did is written as well, which goes on while the policy is applied."""
        if self._writing_uses is not None:
            await self._writing_uses

    async def _write_uses(self, ledger: Ledger) -> None:
        await backfill_uses(ledger, *await asyncio.wrap_future(self._uses))

    async def _write_policy_and_costs(self, ledger: Ledger) -> None:
        """Write fitted budgets, the revisions of the fleet, closed months and budget events."""
        start, end = self._start, self._end
        calendar = calendar_of(self.fleet)
        spent = await history_money.read_spending(self.fleet, Costs(ledger), start, end)
        before, now = history_money.fit_budgets(spent, calendar, start, end)
        texts = history_policy.revisions(self.price_day, before, now, self._prometheus)
        length = end - start
        times = [start, start + round(length * 0.45), max(start + 2, end - min(5 * DAY, length // 8))]
        await write_applies(ledger, list(history_policy.applies(texts, APPLIED_BY, times)))
        self.text = texts[-1]
        self.fleet = parse_fleet(self.text, "fleet.yaml")
        stored = Fleets(ledger, lambda revision: parse_fleet(revision.text, "fleet.yaml"))
        costs = Costs(ledger, FleetHistory(ledger, stored))
        fleets = {at: parse_fleet(text, "fleet.yaml") for at, text in zip(times, texts, strict=True)}
        spent = await history_money.read_spending(self.fleet, costs, start, end)
        await write_budgets(ledger, *history_money.budget_history(fleets, spent, calendar, start, end))
        await history_money.close_months(ledger, self.fleet, costs, start, end)

    def _simulate(self) -> None:
        try:
            jobs = generate_jobs(self.fleet, self._start, self._end, self._seed)
            outages = generate_outages(self.fleet, self._start, self._end, self._seed)
            result = run(self.fleet, jobs, outages, self._start, self._end, self._report_progress)
            rows = ledger_rows(self.fleet, result, calendar_of(self.fleet))
            self._run.set_result(rows)
            self._uses.set_result((past_uses(self.fleet, result, self._seed), rows.hours))
        except BaseException as error:
            for future in (self._run, self._uses):
                if not future.done():
                    future.set_exception(error)

    def _report_progress(self, fraction: float) -> None:
        """Report progress only once this step is current, not while another step is shown."""
        if self._is_waiting:
            self._on_progress(fraction)
