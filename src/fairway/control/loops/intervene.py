"""The step of the intervene loop: help an engine that falls short of a promise, by its own operations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from fairway.control.metrics import PolicyMetrics
from fairway.engines.port import Governs, Intervenes
from fairway.ledger import Lease, Ledger
from fairway.model.names import ClusterName
from fairway.policy.objects import Intervention
from fairway.services.engine_cache import LazyEngine
from fairway.services.fleets import LastApplied

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")


class InterveneCluster:
    """Intervenes in the engine of one cluster; does nothing before the first apply."""

    def __init__(
        self,
        cluster: ClusterName,
        build: Callable[[], Governs],
        ledger: Ledger,
        applied: LastApplied,
        metrics: PolicyMetrics,
        writing: asyncio.Lock,
    ) -> None:
        """`writing` is the lock for writing policy to the cluster."""
        self._cluster = cluster
        self._engine = LazyEngine(build)
        self._ledger = ledger
        self._applied = applied
        self._metrics = metrics
        self._writing = writing
        self._unrecorded: tuple[Intervention, ...] = ()
        """Interventions made that the ledger has not recorded yet."""

    async def __call__(self, lease: Lease) -> None:
        """Intervene once, and record the interventions made.

        Skip the round while an apply is open: interventions would be for the fleet that is being replaced.
        Another server may begin an apply during the round; the next round, five seconds later, corrects it.
        """
        if self._writing.locked() or await self._ledger.applies.next_work(self._cluster) is not None:
            return
        applied = await self._applied.get()
        if applied is None:
            return
        engine = self._engine.get()
        if not isinstance(engine, Intervenes):
            return
        async with self._writing:
            given = await engine.intervene(applied.fleet)
        for intervention in given:
            self._metrics.intervened(self._cluster, intervention.promise)
            log.info(
                "intervention",
                cluster=self._cluster,
                promise=intervention.promise,
                verb=intervention.verb,
                job=intervention.job,
                why=intervention.why,
            )
        self._unrecorded += given
        if self._unrecorded:
            async with self._ledger.writing(lease) as tx:
                await tx.drift.write_interventions(self._unrecorded)
            self._unrecorded = ()

    async def close(self) -> None:
        """Close the engine; the next round builds a new one."""
        await self._engine.close()
