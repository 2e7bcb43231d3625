"""The observe loop's step: one look at a cluster, one short write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fairway.engines.port import Observes, Unreachable
from fairway.ledger import Lease, Ledger
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster
from fairway.model.observation import Observation


class ObserveCluster:
    """Looks at one cluster while the lease is held; its engine is built at the first look, closed at the end.

    Built late so that a server that only waits for the lease opens no connections and watches nothing.
    """

    def __init__(
        self, cluster: Cluster, build: Callable[[], Observes], ledger: Ledger, *, engine_seconds: float
    ) -> None:
        self._cluster = cluster
        self._build = build
        self._ledger = ledger
        self._engine_seconds = engine_seconds
        self._engine: Observes | None = None

    async def __call__(self, lease: Lease) -> None:
        """Keep what the engine shows, or why it shows nothing; that is raised on, to slow the loop."""
        name, kind = self._cluster.name, self._cluster.engine
        try:
            seen = await self._look()
        except FairwayError as error:
            async with self._ledger.writing(lease) as tx:
                await tx.keep_failure(name, error, engine=kind)
            raise
        async with self._ledger.writing(lease) as tx:
            await tx.keep_observation(seen, engine=kind)

    async def close(self) -> None:
        """Let the engine go; the next look builds a new one."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()

    async def _look(self) -> Observation:
        if self._engine is None:
            self._engine = self._build()
        try:
            async with asyncio.timeout(self._engine_seconds) as clock:
                return await self._engine.observe()
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise Unreachable(
                "Unreachable",
                f"cluster {self._cluster.name} did not answer within {self._engine_seconds:g} s",
                "look whether its engine is overloaded",
            ) from error
