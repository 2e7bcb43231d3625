"""A meter as a process that tests can kill: its loop's step over and over, under a lease, on a fast clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import psycopg
from prometheus_client import CollectorRegistry

from fairway.control.loops.meter import MeterCluster
from fairway.control.metrics import UsageMetrics
from fairway.ledger import FencedTransaction, Hours, Lease, Ledger, MeteredBatch
from fairway.ledger.usage import metering
from fairway.ledger.usage.metering import MeteringWriter
from fairway.model.errors import FairwayError
from fairway.model.price import CostRules
from fairway.services.fleets import Fleets, LastApplied
from tests.integration.server.lease_server import CLUSTER
from tests.integration.server.lease_server import FLEET as PLAIN

ZONE = "America/New_York"
FLEET = replace(PLAIN, cost=CostRules(timezone=ZONE))
BATCH = 20
"""Jobs a transaction: so few that there are very many."""


@dataclass(frozen=True)
class Clock:
    """Goes faster than the real one: an hour goes by in seconds."""

    began: float
    real: float
    speed: float

    def __call__(self) -> float:
        return self.began + (time.time() - self.real) * self.speed


def forgetful(url: str) -> None:
    """Plant a fault: what is taken off the queue is committed before its usage is written."""
    whole = MeteringWriter.meter

    async def meter(self: MeteringWriter, hours: Hours, limit: int) -> MeteredBatch:
        with psycopg.connect(url, autocommit=True) as own:
            taken = own.execute(
                "DELETE FROM to_meter WHERE id IN (SELECT id FROM to_meter ORDER BY id LIMIT %s)"
                " RETURNING job",
                (limit,),
            ).fetchall()
        await asyncio.sleep(0.4)
        await metering.queue(self._connection, self._lease.cluster, [(job, None) for (job,) in taken])
        return await whole(self, hours, limit)

    MeteringWriter.meter = meter  # type: ignore[method-assign]


class Watched(Ledger):
    """Tells when a transaction of its begins, and whether it is in one."""

    begins: Connection
    inside: Any

    @asynccontextmanager
    async def writing(self, lease: Lease) -> AsyncIterator[FencedTransaction]:
        with suppress(BrokenPipeError):
            self.begins.send(True)
        self.inside.value = 1
        async with super().writing(lease) as tx:
            yield tx
        self.inside.value = 0


async def main(
    url: str, clock: Clock, lease_seconds: float, begins: Connection, inside: Any, faulty: bool
) -> None:
    if faulty:
        forgetful(url)
    ledger = await Watched.connect(url)
    assert isinstance(ledger, Watched)
    ledger.begins, ledger.inside = begins, inside
    applied = LastApplied(CLUSTER, ledger, Fleets(ledger, lambda revision: FLEET))
    meter = MeterCluster(
        CLUSTER, ledger, applied, UsageMetrics(CollectorRegistry()), batch=BATCH, clock=clock
    )
    holder = f"{time.monotonic_ns()}"
    while True:
        try:
            lease = await ledger.leases.take("meter", CLUSTER, holder, lease_seconds)
            if lease is not None:
                await meter(lease)
        except FairwayError:
            pass  # the ledger is away, or slower than the lease
        await asyncio.sleep(0.01)


def serve(
    url: str, clock: Clock, lease_seconds: float, begins: Connection, inside: Any, faulty: bool
) -> None:
    """The whole life of one process."""
    asyncio.run(main(url, clock, lease_seconds, begins, inside, faulty))
