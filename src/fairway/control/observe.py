"""The observe loop's step: one look at a cluster, one short write."""

from __future__ import annotations

from collections.abc import Callable

from fairway.control.held import HeldEngine, within
from fairway.engines.port import Observes, Unreachable
from fairway.ledger import Lease, Ledger
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster
from fairway.model.observation import Observation


class ObserveCluster:
    """Looks at one cluster while the lease is held; its engine is built at the first look."""

    def __init__(
        self, cluster: Cluster, build: Callable[[], Observes], ledger: Ledger, *, engine_seconds: float
    ) -> None:
        self._cluster = cluster
        self._engine = HeldEngine(build)
        self._ledger = ledger
        self._engine_seconds = engine_seconds

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
        await self._engine.close()

    async def _look(self) -> Observation:
        late = Unreachable(
            "Unreachable",
            f"cluster {self._cluster.name} did not answer within {self._engine_seconds:g} s",
            "look whether its engine is overloaded",
        )
        engine = self._engine.get()
        async with within(self._engine_seconds, late):
            return await engine.observe()
