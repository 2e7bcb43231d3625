"""A server reduced to its loops, as a process that tests can kill.

Its engine writes the process's pid as the engine's version, so that every write shows who made it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path

from prometheus_client import CollectorRegistry

from fairway.control import Runner
from fairway.engines.virtual import VirtualEngine
from fairway.ledger import Ledger
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, NodeName, PoolName
from fairway.model.observation import Devices, Health, Node, Observation
from fairway.services.fleets import Fleets
from fairway.settings import Settings

CLUSTER = ClusterName("hpc")
POOL = Pool(
    PoolName("a100"),
    CLUSTER,
    GpuType("A100-80GB", 80),
    Capacity.OWNED,
    Decimal("1.90"),
    VirtualPlace(nodes=20),
)
FLEET = Fleet("acme", "USD", (Cluster(CLUSTER, VirtualConnection()),), (POOL,))


class Counting(VirtualEngine):
    """Shows a different use each time, so that every look is written in full; takes a while."""

    def __init__(self, cluster: Cluster, pools: tuple[Pool, ...]) -> None:
        super().__init__(cluster, pools)
        self._looks = 0

    async def observe(self) -> Observation:
        await asyncio.sleep(0.05)
        self._looks += 1
        devices = (Devices(POOL.name, "gpu:a100", None, total=8, in_use=self._looks % 9),)
        nodes = tuple(Node(NodeName(f"n{i:02}"), Health.READY, "", devices) for i in range(20))
        return Observation(CLUSTER, str(os.getpid()), nodes)


def settings(lease_seconds: float) -> Settings:
    return Settings(
        database_url=None,
        listen_host="127.0.0.1",
        listen_port=0,
        state_dir=Path("/nonexistent"),
        lease_seconds=lease_seconds,
        observe_seconds=0.1,
        drift_seconds=0.1,
        intervention_seconds=0.1,
        budget_seconds=1,
        log_level="info",
        log_format="text",
    )


async def main(url: str, lease_seconds: float, started: Connection) -> None:
    ledger = await Ledger.connect(url)
    runner = Runner(
        ledger,
        Counting,
        settings(lease_seconds),
        CollectorRegistry(),
        Fleets(ledger, lambda revision: FLEET),
    )
    running = asyncio.create_task(runner.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    started.send(True)
    await asyncio.gather(running, return_exceptions=True)
    await ledger.close()


def serve(url: str, lease_seconds: float, started: Connection) -> None:
    """The whole life of one process."""
    asyncio.run(main(url, lease_seconds, started))
