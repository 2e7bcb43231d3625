"""The nudge loop's step: where an engine falls a step short of a promise, push it by its own verbs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from fairway.control.applied import LastApplied
from fairway.control.held import HeldEngine
from fairway.control.metrics import PolicyMetrics
from fairway.engines.port import Governs, Nudges
from fairway.ledger import Lease, Ledger
from fairway.model.names import ClusterName
from fairway.policy.objects import Nudge

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")


class NudgeCluster:
    """Lets the engine of one cluster help itself while the lease is held; nothing before the first apply."""

    def __init__(
        self,
        cluster: ClusterName,
        build: Callable[[], Governs],
        ledger: Ledger,
        applied: LastApplied,
        metrics: PolicyMetrics,
        writing: asyncio.Lock,
    ) -> None:
        """`writing` is held by whoever writes policy to the cluster."""
        self._cluster = cluster
        self._engine = HeldEngine(build)
        self._ledger = ledger
        self._applied = applied
        self._metrics = metrics
        self._writing = writing
        self._unkept: tuple[Nudge, ...] = ()
        """Given, and the ledger did not hear of it yet."""

    async def __call__(self, lease: Lease) -> None:
        """Nudge once, and keep what was done.

        Never while an apply is open: it would push towards the fleet that is just being replaced. Another
        server's may begin in the middle of a round; then the next round, five seconds later, sets it right.
        """
        if self._writing.locked() or await self._ledger.next_apply(self._cluster) is not None:
            return
        holds = await self._applied.get()
        if holds is None:
            return
        engine = self._engine.get()
        if not isinstance(engine, Nudges):
            return
        async with self._writing:
            given = await engine.nudge(holds.fleet)
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
        self._unkept += given
        if self._unkept:
            async with self._ledger.writing(lease) as tx:
                await tx.keep_nudges(self._unkept)
            self._unkept = ()

    async def close(self) -> None:
        """Let the engine go; the next look builds a new one."""
        await self._engine.close()
