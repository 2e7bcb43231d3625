"""Simulate the demo's history and write it to the ledger, as a process of its own: `DemoHistory` starts it.

It uses another core than the server, which starts meanwhile. It reads the ledger's URL from stdin, and ends
when stdin closes: so it never outlives the demo. It prints messages, one JSON object a line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from queue import SimpleQueue
from typing import Final, Literal, Self

from fairway.cost.calendar import calendar_of
from fairway.demo.fleet_text import fleet_text
from fairway.demo.history_jobs import generate_jobs
from fairway.demo.history_rows import ledger_rows
from fairway.demo.history_run import generate_outages, run
from fairway.demo.history_use import past_uses
from fairway.demo.jobs import DAY
from fairway.files import parse_fleet
from fairway.ledger import Ledger
from fairway.ledger.connection import ConnectionLimits
from fairway.ledger.seed import USES_SECONDS, backfill, backfill_uses

Kind = Literal["progress", "simulated", "stored", "finished"]
PARENT_GONE: Final = 3
LIMITS: Final = ConnectionLimits(connections=2, call_seconds=USES_SECONDS, statement_seconds=USES_SECONDS)
"""Nobody waits for single statements: on a busy machine an ANALYZE may take longer than a server allows."""


@dataclass(frozen=True, slots=True)
class HistorySpec:
    """The length, end and seed of a history; the same values give the same history."""

    days: int
    seed: int
    end: int
    """In seconds since 1970."""
    prometheus: str

    @property
    def start(self) -> int:
        return self.end - self.days * DAY

    @property
    def price_day(self) -> date:
        """Return the day on which a price changed: in the middle of the history."""
        return datetime.fromtimestamp((self.start + self.end) // 2, UTC).date()

    @property
    def fleet_text(self) -> str:
        """Return the fleet file with provisional budgets."""
        return fleet_text(self.price_day, prometheus=self.prometheus)

    def command(self) -> list[str]:
        """Return the command that writes this history."""
        return [sys.executable, "-m", "fairway.demo.history_writer", json.dumps(asdict(self))]

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Message:
    """What the process reports: a fraction of the current step, or that a step is done."""

    kind: Kind
    value: float = 0.0

    @classmethod
    def parse(cls, line: bytes) -> Self:
        return cls(**json.loads(line))


def main() -> None:
    """Simulate, wait for the ledger's URL, and write."""
    gc.disable()  # nothing is thrown away before the end
    spec = HistorySpec.parse(sys.argv[1])
    urls: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read_url, args=(urls,), daemon=True).start()
    fleet = parse_fleet(spec.fleet_text, "fleet.yaml")
    jobs = generate_jobs(fleet, spec.start, spec.end, spec.seed)
    outages = generate_outages(fleet, spec.start, spec.end, spec.seed)
    result = run(fleet, jobs, outages, spec.start, spec.end, lambda part: _report(Message("progress", part)))
    rows = ledger_rows(fleet, result, calendar_of(fleet))
    _report(Message("simulated", len(rows.jobs)))

    async def write(url: str) -> None:
        ledger = await Ledger.connect(url, LIMITS)
        try:
            await backfill(ledger, rows, lambda part: _report(Message("progress", part)))
            _report(Message("stored"))
            await backfill_uses(ledger, past_uses(fleet, result, spec.seed), rows.hours)
            _report(Message("finished"))
        finally:
            await ledger.close()

    asyncio.run(write(urls.get()))


def _read_url(urls: SimpleQueue[str]) -> None:
    urls.put(sys.stdin.readline().strip())
    while sys.stdin.read(1):
        pass
    os._exit(PARENT_GONE)


def _report(message: Message) -> None:
    sys.stdout.write(json.dumps(asdict(message)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
