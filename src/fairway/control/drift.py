"""The drift loop's step: compare a cluster with what was last applied to it, and keep what differs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from fairway.control.applied import LastApplied
from fairway.control.applying import compare_cluster
from fairway.control.held import HeldEngine
from fairway.control.metrics import PolicyMetrics
from fairway.engines.port import Governs
from fairway.ledger import Lease, Ledger
from fairway.model.names import ClusterName
from fairway.policy.drift import find_drift, without_holds

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")


ON_ITS_WAY_SECONDS: Final = 30.0
"""How long a hold may take to reach its engine."""


class FindDrift:
    """Looks at one cluster while the lease is held; does nothing before the first apply."""

    def __init__(
        self,
        cluster: ClusterName,
        build: Callable[[], Governs],
        ledger: Ledger,
        applied: LastApplied,
        metrics: PolicyMetrics,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
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
        engine = self._engine.get()
        seen = await compare_cluster(engine, holds.fleet)
        entries = find_drift(seen.wanted, seen.found, seen.changes)
        if entries and await self._holds_on_their_way():
            plain = await self._applied.fleet()
            if plain is not None:
                free = await asyncio.to_thread(engine.translate, plain, seen.found)
                entries = without_holds(entries, free)
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

    async def _holds_on_their_way(self) -> bool:
        """Whether a budget was spent just now: the hold loop writes what it means in a moment.

        A hold that is still not there later was taken off by hand, and that is drift.
        """
        youngest = datetime.fromtimestamp(self._clock(), UTC) - timedelta(seconds=ON_ITS_WAY_SECONDS)
        standings = await self._ledger.budget_standings()
        return any(s.hold is not None and s.since is not None and s.since > youngest for s in standings)

    async def close(self) -> None:
        """Let the engine go; the next look builds a new one."""
        self._metrics.forget_drift(self._cluster)
        self._shown = 0
        await self._engine.close()
