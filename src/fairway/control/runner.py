"""Runs the loops that the newest fleet needs. Any number of servers do; leases share the clusters out."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog
from prometheus_client import CollectorRegistry

from fairway.control.loop import LeasedLoop, Pace, Sleep
from fairway.control.metrics import LoopMetrics
from fairway.control.observe import ObserveCluster
from fairway.engines.port import Observes
from fairway.ledger import Ledger, Revision
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.names import ClusterName
from fairway.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

OBSERVE: Final = "observe"
POLL_SECONDS: Final = 2.0
"""How soon a new fleet is noticed; one small query each time."""
ENGINE_SECONDS: Final = 45.0
STEP_SECONDS: Final = 60.0


class BuildEngine(Protocol):
    """Makes the engine of one cluster; `wiring` knows them all."""

    def __call__(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Observes: ...


@dataclass(frozen=True, slots=True)
class _Running:
    """A loop, and what it was started for: if that changes, it is started anew."""

    cluster: Cluster
    pools: tuple[Pool, ...]
    task: asyncio.Task[None]

    def serves(self, cluster: Cluster, pools: tuple[Pool, ...]) -> bool:
        return (self.cluster, self.pools) == (cluster, pools) and not self.task.done()


class Runner:
    """One observe loop for each cluster of the newest fleet revision."""

    def __init__(
        self,
        ledger: Ledger,
        build_engine: BuildEngine,
        settings: Settings,
        registry: CollectorRegistry,
        parse: Callable[[Revision], Fleet],
        *,
        poll_seconds: float = POLL_SECONDS,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._ledger = ledger
        self._build_engine = build_engine
        self._parse = parse
        self._poll_seconds = poll_seconds
        self._sleep = sleep
        self._metrics = LoopMetrics(registry)
        self._pace = Pace(
            lease_seconds=settings.lease_seconds,
            interval_seconds=settings.observe_seconds,
            step_seconds=STEP_SECONDS,
        )
        # Unlike any other server's, now or before: a restarted one must not pass for its former self.
        self.holder = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._numbers = itertools.count(1)
        self._revision: int | None = None
        self._fleet: Fleet | None = None
        self._loops: dict[ClusterName, _Running] = {}

    async def run(self) -> None:
        """Until cancelled; then every loop ends in good order and gives its lease back."""
        try:
            while True:
                try:
                    await self._follow()
                except FairwayError as error:
                    log.warning("fleet not followed", code=error.code, message=error.message, hint=error.hint)
                except Exception:
                    log.exception("unexpected error while following the fleet")
                await self._sleep(self._poll_seconds)
        finally:
            await self._stop(tuple(self._loops))

    async def _follow(self) -> None:
        newest = await self._ledger.fleet_revision()
        if newest != self._revision:
            revision = await self._ledger.fleet()
            if revision is not None:
                await self._change_to(revision.id, self._parse(revision))
        if self._fleet is not None:
            self._start_missing(self._fleet)

    async def _change_to(self, revision: int, fleet: Fleet) -> None:
        wanted = {c.name: (c, fleet.pools_of(c.name)) for c in fleet.clusters}
        await self._stop(
            tuple(
                name
                for name, running in self._loops.items()
                if name not in wanted or not running.serves(*wanted[name])
            )
        )
        # After the loops of clusters that left have ended, lest one of them bring its cluster back.
        await self._ledger.follow_fleet(revision, {c.name: c.engine for c in fleet.clusters})
        log.info("following the fleet", revision=revision, clusters=len(wanted))
        self._revision, self._fleet = revision, fleet

    def _start_missing(self, fleet: Fleet) -> None:
        for cluster in fleet.clusters:
            running = self._loops.get(cluster.name)
            if running is not None and running.task.done():
                log.error("loop ended by itself; starting it again", cluster=cluster.name)
            if running is None or running.task.done():
                self._start(cluster, fleet.pools_of(cluster.name))

    def _start(self, cluster: Cluster, pools: tuple[Pool, ...]) -> None:
        step = ObserveCluster(
            cluster,
            partial(self._build_engine, cluster, pools),
            self._ledger,
            engine_seconds=ENGINE_SECONDS,
        )
        loop = LeasedLoop(
            OBSERVE,
            cluster.name,
            step,
            self._ledger,
            holder=f"{self.holder}/{next(self._numbers)}",
            pace=self._pace,
            metrics=self._metrics,
            let_go=step.close,
        )
        task = asyncio.create_task(loop.run(), name=f"{OBSERVE} {cluster.name}")
        self._loops[cluster.name] = _Running(cluster, pools, task)

    async def _stop(self, names: tuple[ClusterName, ...]) -> None:
        ending = [self._loops.pop(name).task for name in names]
        for task in ending:
            task.cancel()
        for end in await asyncio.gather(*ending, return_exceptions=True):
            if isinstance(end, Exception):
                log.error("loop ended badly", exc_info=end)
