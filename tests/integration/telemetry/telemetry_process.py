"""The telemetry loop as a process that tests can kill: its step over and over, under a lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import date

from fairway.control.loops.telemetry import ReadTelemetry
from fairway.files import parse_fleet
from fairway.ledger import Ledger
from fairway.ledger.telemetry.gpu_use import GpuUseWriter
from fairway.model.errors import FairwayError
from fairway.model.fleet import Telemetry
from fairway.model.gpu_use import JobDevices, Window
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
FAULTS = ("none", "two transactions", "skips what fails")


def step_of(ledger: Ledger, prometheus: str) -> ReadTelemetry:
    applied = LastApplied(ClusterName(CLUSTER), ledger, Fleets(ledger, lambda _: FLEET))
    source = Telemetry(prometheus)
    return ReadTelemetry(
        ClusterName(CLUSTER), source, ledger, applied, window_seconds=WINDOW, delay_seconds=DELAY
    )


def plant(fault: str) -> None:
    """Plant a fault that only kills or outages bring to light."""
    if fault == "two transactions":
        whole = GpuUseWriter.add

        async def add(
            self: GpuUseWriter,
            window: Window,
            hour: int,
            day: date,
            jobs: JobDevices,
            nodes: Mapping[str, tuple[float, float]],
            interval: float,
            *more: object,
        ) -> None:
            await whole(self, window, hour, day, jobs, nodes, interval, *more)  # type: ignore[arg-type]
            await self._connection.commit()
            await self._connection.exec_driver_sql(
                f"UPDATE telemetry_mark SET read_to = to_timestamp({window.start})"
            )
            await self._connection.commit()
            await asyncio.sleep(0.5)
            await self._connection.exec_driver_sql(
                f"UPDATE telemetry_mark SET read_to = to_timestamp({window.end})"
            )

        GpuUseWriter.add = add  # type: ignore[method-assign,assignment]
    if fault == "skips what fails":
        read = ReadTelemetry._read

        async def careless(self: ReadTelemetry, lease, fleet, window, interval) -> float:  # type: ignore[no-untyped-def]
            try:
                return await read(self, lease, fleet, window, interval)
            except FairwayError:
                async with self._ledger.writing(lease) as tx:
                    await tx.gpu_use.start(window.end, interval)
                return float(interval)

        ReadTelemetry._read = careless  # type: ignore[method-assign]


async def main(url: str, prometheus: str, fault: str) -> None:
    plant(fault)
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
