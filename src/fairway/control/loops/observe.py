"""The step of the observe loop: read a cluster once, write briefly."""

from __future__ import annotations

from collections.abc import Callable

from fairway.engines.port import Observes, Unreachable
from fairway.ledger import Lease, Ledger
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster
from fairway.model.observation import Observation
from fairway.services.engine_cache import LazyEngine, time_limit


class ObserveCluster:
    """Observes one cluster; the engine is built at the first read."""

    def __init__(
        self, cluster: Cluster, build: Callable[[], Observes], ledger: Ledger, *, engine_seconds: float
    ) -> None:
        self._cluster = cluster
        self._engine = LazyEngine(build)
        self._ledger = ledger
        self._engine_seconds = engine_seconds

    async def __call__(self, lease: Lease) -> None:
        """Write the observation, or the error; the error is raised, so that the loop backs off."""
        name, kind = self._cluster.name, self._cluster.engine
        try:
            observation = await self._observe()
        except FairwayError as error:
            async with self._ledger.writing(lease) as tx:
                await tx.observations.write_failure(name, error, engine=kind)
            raise
        async with self._ledger.writing(lease) as tx:
            await tx.observations.write(observation, engine=kind)

    async def close(self) -> None:
        """Close the engine; the next round builds a new one."""
        await self._engine.close()

    async def _observe(self) -> Observation:
        timed_out = Unreachable(
            "Unreachable",
            f"cluster {self._cluster.name} did not answer within {self._engine_seconds:g} s",
            "look whether its engine is overloaded",
        )
        engine = self._engine.get()
        async with time_limit(self._engine_seconds, timed_out):
            return await engine.observe()
