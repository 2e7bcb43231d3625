"""The demo's history: simulated and stored by a process of its own, then completed with policy and costs."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from typing import Final

from fairway.cost.calendar import calendar_of
from fairway.demo import history_money, history_policy
from fairway.demo.fleet_text import PROMETHEUS
from fairway.demo.history_writer import HistorySpec, Kind, Message
from fairway.demo.jobs import DAY
from fairway.files import fleet_digest, parse_fleet
from fairway.ledger import Ledger
from fairway.ledger.seed import write_applies, write_budgets
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.services.charges import Costs
from fairway.services.fleet_history import FleetHistory
from fairway.services.fleets import Fleets

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
        self._spec = HistorySpec(days, seed, int(time.time()), prometheus)
        self._on_step = on_step
        self._on_progress = on_progress
        self.text = self._spec.fleet_text
        self.fleet: Fleet = parse_fleet(self.text, "fleet.yaml")
        self._writer: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None

    def begin(self) -> None:
        """Start the simulation, in a process of its own, while the server starts."""
        if self._spec.days:
            self._writer = subprocess.Popen(  # noqa: S603 - ourselves
                self._spec.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )

    async def write(self, ledger: Ledger) -> None:
        """Write the history to the ledger, and its fleet as the newest revision."""
        writer = self._writer
        if writer is None or writer.stdin is None:
            await ledger.revisions.add(self.text, fleet_digest(self.text), APPLIED_BY[-1])
            return
        self._on_step(f"Simulating the last {self._spec.days} days")
        writer.stdin.write(f"{ledger.url}\n".encode())
        writer.stdin.flush()
        self._reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(self._reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, writer.stdout)
        jobs = await self._wait_for("simulated")
        self._on_step(f"Storing {jobs:,.0f} jobs")
        await self._wait_for("stored")
        self._on_step("Calculating costs")
        spec = self._spec
        prices = tuple(history_money.spot_prices(self.fleet, spec.start, spec.end, spec.seed))
        await ledger.prices.add(prices, by="the spot market")
        await self._write_policy_and_costs(ledger)

    async def finish(self) -> None:
        """Wait until GPU utilisation is stored as well, which continues while the policy is applied."""
        if self._reader is not None:
            await self._wait_for("finished")

    def stop(self) -> None:
        """Stop the process that writes the history, if it is running."""
        if self._writer is not None:
            self._writer.kill()
            self._writer.wait()

    async def _wait_for(self, kind: Kind) -> float:
        """Report progress until the process reports `kind`. Returns its value."""
        while self._reader is not None and (line := await self._reader.readline()):
            message = Message.parse(line)
            if message.kind == kind:
                return message.value
            if message.kind == "progress":
                self._on_progress(message.value)
        raise PermanentError(
            "DemoHistoryFailed",
            "the history of the demo was not written",
            "start without a history:  fairway demo --days 0",
        )

    async def _write_policy_and_costs(self, ledger: Ledger) -> None:
        """Write fitted budgets, the revisions of the fleet, closed months and budget events."""
        start, end = self._spec.start, self._spec.end
        calendar = calendar_of(self.fleet)
        spent = await history_money.read_spending(self.fleet, Costs(ledger), start, end)
        before, now = history_money.fit_budgets(spent, calendar, start, end)
        texts = history_policy.revisions(self._spec.price_day, before, now, self._spec.prometheus)
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
