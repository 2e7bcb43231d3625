"""The telemetry loop as a process that tests can kill: its step over and over, under a lease."""

from __future__ import annotations

import asyncio
import time

import psycopg

from fairway.control.loops.telemetry import ReadTelemetry
from fairway.files import parse_fleet
from fairway.ledger import Lease, Ledger
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet, Telemetry
from fairway.model.gpu_use import Window
from fairway.model.names import ClusterName
from fairway.services.fleets import Fleets, LastApplied
from tests.metered import CLUSTER

FLEET = parse_fleet(
    "apiVersion: fairway/v1alpha1\nkind: Fleet\nname: acme\ncurrency: USD\n"
    f"clusters: {{ {CLUSTER}: {{ engine: virtual }} }}\n",
    "fleet.yaml",
)
WINDOW = 4
DELAY = 3
LEASE_SECONDS = 1.0


def step_of(ledger: Ledger, prometheus: str) -> ReadTelemetry:
    applied = LastApplied(ClusterName(CLUSTER), ledger, Fleets(ledger, lambda _: FLEET))
    source = Telemetry(prometheus)
    return ReadTelemetry(
        ClusterName(CLUSTER), source, ledger, applied, window_seconds=WINDOW, delay_seconds=DELAY
    )


def plant(fault: str, url: str) -> None:
    """Plant a fault that only kills or outages bring to light."""
    read = ReadTelemetry._read

    async def late(self: ReadTelemetry, lease: Lease, fleet: Fleet, window: Window, interval: float) -> float:
        """The mark moves in a transaction of its own, a moment after the sums."""
        found = await read(self, lease, fleet, window, interval)
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("UPDATE telemetry_mark SET read_to = to_timestamp(%s)", (window.start,))
            await asyncio.sleep(0.5)
            db.execute("UPDATE telemetry_mark SET read_to = to_timestamp(%s)", (window.end,))
        return found

    async def careless(
        self: ReadTelemetry, lease: Lease, fleet: Fleet, window: Window, interval: float
    ) -> float:
        """A window that cannot be read is left out."""
        try:
            return await read(self, lease, fleet, window, interval)
        except FairwayError:
            async with self._ledger.writing(lease) as tx:
                await tx.gpu_use.start(window.end, interval)
            return interval

    if fault != "none":
        faulty = {"two transactions": late, "skips what fails": careless}[fault]
        ReadTelemetry._read = faulty  # type: ignore[method-assign]


async def main(url: str, prometheus: str, fault: str) -> None:
    plant(fault, url)
    ledger = await Ledger.connect(url)
    step = step_of(ledger, prometheus)
    holder = f"{time.monotonic_ns()}"
    while True:
        try:
            lease = await ledger.leases.take("telemetry", CLUSTER, holder, LEASE_SECONDS)
            if lease is not None:
                await step(lease)
        except FairwayError:
            pass  # Prometheus is away, or this was slower than the lease
        await asyncio.sleep(0.05)


def serve(url: str, prometheus: str, fault: str) -> None:
    """The whole life of one process."""
    asyncio.run(main(url, prometheus, fault))
