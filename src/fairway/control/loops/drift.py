"""The step of the drift loop: compare a cluster with the last applied fleet, and record the differences."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from fairway.control.metrics import PolicyMetrics
from fairway.engines.port import Governs, Unreachable
from fairway.ledger import Lease, Ledger
from fairway.model.condition import ConditionType, error_condition
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.policy.drift import find_drift, without_holds
from fairway.policy.pending import pending_condition
from fairway.services.engine_cache import LazyEngine, time_limit
from fairway.services.fleets import LastApplied
from fairway.services.plans import ClusterComparison, compare_cluster

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")


PENDING_HOLD_SECONDS: Final = 30.0
"""How long a hold may take to reach its engine before it counts as drift."""

COMPARE_SECONDS: Final = 50.0
"""Time limit of a comparison: within that of the loop's round, so that a failure can be recorded."""


class FindDrift:
    """Detects drift on one cluster, after its first apply."""

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
        self._engine = LazyEngine(build)
        self._ledger = ledger
        self._applied = applied
        self._metrics = metrics
        self._reported = 0

    async def __call__(self, lease: Lease) -> None:
        """Record how the cluster differs now; nothing is recorded while an apply is running."""
        applied = await self._applied.get()
        if applied is None:  # not applied yet, or left or released: nothing is compared
            if self._reported:
                self._metrics.drifted(self._cluster, 0)
                self._reported = 0
            return
        engine = self._engine.get()
        compared = await self._compare(lease, engine, applied.fleet)
        entries = find_drift(compared.wanted, compared.found, compared.changes)
        if entries and await self._hold_lifted():
            return  # the next round compares what the hold loop has written by then
        if entries and await self._hold_pending():
            fleet = await self._applied.fleet()
            if fleet is not None:
                unheld = await asyncio.to_thread(engine.translate, fleet, compared.found)
                entries = without_holds(entries, unheld)
        async with self._ledger.writing(lease) as tx:
            recorded = await tx.drift.write(applied.apply, entries)
            if recorded:
                types = (ConditionType.DRIFT_NOT_CHECKED, ConditionType.INSTALL_PENDING)
                await tx.conditions.write(types, pending_condition(compared.wanted.advice))
        if not recorded:
            return
        objects = len({e.key for e in entries})
        self._metrics.drifted(self._cluster, objects)
        if objects != self._reported:
            first = f"{entries[0].key} {entries[0].field}".strip() if entries else ""
            log.warning(
                "drift" if objects else "no drift", cluster=self._cluster, objects=objects, first=first
            )
        self._reported = objects

    async def _compare(self, lease: Lease, engine: Governs, fleet: Fleet) -> ClusterComparison:
        """Compare the cluster with `fleet`; a failure is recorded, so that nobody takes it for no drift."""
        timed_out = Unreachable(
            "Unreachable",
            f"cluster {self._cluster} did not return its policy within {COMPARE_SECONDS:g} s",
            "check whether its engine is overloaded",
        )
        try:
            async with time_limit(COMPARE_SECONDS, timed_out):
                return await compare_cluster(engine, fleet)
        except FairwayError as error:
            condition = error_condition(ConditionType.DRIFT_NOT_CHECKED, error)
            async with self._ledger.writing(lease) as tx:
                await tx.conditions.write((ConditionType.DRIFT_NOT_CHECKED,), (condition,))
            raise

    async def _hold_pending(self) -> bool:
        """Return whether a budget was spent just now, so that the hold loop has yet to write its hold.

        A hold that is still missing later was removed by hand, and that is drift.
        """
        recent = datetime.fromtimestamp(self._clock(), UTC) - timedelta(seconds=PENDING_HOLD_SECONDS)
        statuses = await self._ledger.budgets.statuses()
        return any(s.hold is not None and s.since is not None and s.since > recent for s in statuses)

    async def _hold_lifted(self) -> bool:
        """Return whether a raise was approved just now, so that the hold loop has yet to lift a hold."""
        recent = datetime.fromtimestamp(self._clock(), UTC) - timedelta(seconds=PENDING_HOLD_SECONDS)
        return await self._ledger.budget_raises.approved_after(recent)

    async def close(self) -> None:
        """Close the engine and remove the metrics; the next round builds a new one."""
        self._metrics.forget_drift(self._cluster)
        self._reported = 0
        await self._engine.close()
