"""The step of the observe loop: read a cluster once, write briefly."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from fairway.engines.port import Diagnoses, Observes, Unreachable
from fairway.ledger import Lease, Ledger
from fairway.model.condition import Condition, ConditionType
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster
from fairway.model.observation import Observation
from fairway.services.engine_cache import LazyEngine, time_limit

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")


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
        diagnosis = await self._diagnose()
        async with self._ledger.writing(lease) as tx:
            await tx.observations.write(observation, engine=kind)
            if diagnosis is not None:
                await tx.conditions.write(*diagnosis)

    async def close(self) -> None:
        """Close the engine; the next round builds a new one."""
        await self._engine.close()

    async def _diagnose(self) -> tuple[tuple[ConditionType, ...], tuple[Condition, ...]] | None:
        """Read what is wrong with a part of the engine. Returns None if nothing can be said of it now."""
        engine = self._engine.get()
        if not isinstance(engine, Diagnoses):
            return None
        timed_out = Unreachable("Unreachable", "the diagnosis took too long", "fairway get clusters")
        try:
            async with time_limit(self._engine_seconds, timed_out):
                return engine.diagnosed, await engine.diagnose()
        except FairwayError as error:
            log.info("not diagnosed", cluster=self._cluster.name, code=error.code, message=error.message)
            return None

    async def _observe(self) -> Observation:
        timed_out = Unreachable(
            "Unreachable",
            f"cluster {self._cluster.name} did not respond within {self._engine_seconds:g} s",
            "check whether its engine is overloaded",
        )
        engine = self._engine.get()
        async with time_limit(self._engine_seconds, timed_out):
            return await engine.observe()
