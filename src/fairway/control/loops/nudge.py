"""The step of the nudge loop: help an engine that falls short of a promise, by its own operations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from fairway.control.metrics import PolicyMetrics
from fairway.engines.port import Governs, Nudges
from fairway.ledger import Lease, Ledger
from fairway.model.names import ClusterName
from fairway.policy.objects import Nudge
from fairway.services.engine_cache import LazyEngine
from fairway.services.fleets import LastApplied

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")


class NudgeCluster:
    """Nudges the engine of one cluster; does nothing before the first apply."""

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
        self._unrecorded: tuple[Nudge, ...] = ()
        """Nudges given that the ledger has not recorded yet."""

    async def __call__(self, lease: Lease) -> None:
        """Nudge once, and record the nudges given.

        Skip the round while an apply is open: the nudges would be for the fleet that is being replaced. An
        apply of another server may begin during the round; the next one, five seconds later, corrects that.
        """
        if self._writing.locked() or await self._ledger.applies.next_work(self._cluster) is not None:
            return
        applied = await self._applied.get()
        if applied is None:
            return
        engine = self._engine.get()
        if not isinstance(engine, Nudges):
            return
        async with self._writing:
            given = await engine.nudge(applied.fleet)
        for nudge in given:
            self._metrics.nudged(self._cluster, nudge.promise)
            log.info(
                "nudge",
                cluster=self._cluster,
                promise=nudge.promise,
                verb=nudge.verb,
                job=nudge.job,
                why=nudge.why,
            )
        self._unrecorded += given
        if self._unrecorded:
            async with self._ledger.writing(lease) as tx:
                await tx.drift.write_nudges(self._unrecorded)
            self._unrecorded = ()

    async def close(self) -> None:
        """Close the engine; the next round builds a new one."""
        await self._engine.close()
