"""The drift loop's step: compare a cluster with what was last applied to it, and keep what differs."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from fairway.control.applied import LastApplied
from fairway.control.applying import compare_cluster
from fairway.control.held import HeldEngine
from fairway.control.metrics import PolicyMetrics
from fairway.engines.port import Governs
from fairway.ledger import Lease, Ledger
from fairway.model.names import ClusterName
from fairway.policy.drift import find_drift

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")


class FindDrift:
    """Looks at one cluster while the lease is held; does nothing before the first apply."""

    def __init__(
        self,
        cluster: ClusterName,
        build: Callable[[], Governs],
        ledger: Ledger,
        applied: LastApplied,
        metrics: PolicyMetrics,
    ) -> None:
        self._cluster = cluster
        self._engine = HeldEngine(build)
        self._ledger = ledger
        self._applied = applied
        self._metrics = metrics
        self._shown = 0

    async def __call__(self, lease: Lease) -> None:
        """Keep how the cluster differs now; in the middle of an apply nothing is kept."""
        holds = await self._applied.get()
        if holds is None:
            return
        seen = await compare_cluster(self._engine.get(), holds.fleet)
        entries = find_drift(seen.wanted, seen.found, seen.changes)
        async with self._ledger.writing(lease) as tx:
            kept = await tx.keep_drift(holds.apply, entries)
        if not kept:
            return
        objects = len({e.key for e in entries})
        self._metrics.drifted(self._cluster, objects)
        if objects != self._shown:
            first = f"{entries[0].key} {entries[0].field}".strip() if entries else ""
            log.warning(
                "drift" if objects else "no drift", cluster=self._cluster, objects=objects, first=first
            )
        self._shown = objects

    async def close(self) -> None:
        """Let the engine go; the next look builds a new one."""
        self._metrics.forget_drift(self._cluster)
        self._shown = 0
        await self._engine.close()
