"""The step of the run-time loop: add runs that ended to the histograms of the groups they belong to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Final

import structlog

from fairway.ledger import Lease, Ledger
from fairway.ledger.jobs.run_times import RunsToLearn
from fairway.services.run_times import predictor
from fairway.simulate.run_times import RunTimeKey, RunTimes

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

BATCH: Final = 2000
"""Runs that are learnt in one transaction."""
HISTORY_BATCH: Final = 1000
"""Jobs of history that are read at once."""
STEP_SECONDS: Final = 1.0
"""After so long a step leaves the rest to the next one: a long history is learnt beside everything else."""


class LearnRunTimes:
    """Learns run times: first from history, then from what the mirror queued."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        batch: int = BATCH,
        history_batch: int = HISTORY_BATCH,
        history_after_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`history_after_seconds`: how long history, and what is queued behind it, waits at first."""
        self._ledger = ledger
        self._batch = batch
        self._history_batch = history_batch
        self._clock = clock
        self._history_from = clock() + history_after_seconds if history_after_seconds else 0.0
        self._now = now
        self._pruned_on: date | None = None

    async def __call__(self, lease: Lease) -> None:
        """Learn what there is, in batches, for a bounded time; at least one batch."""
        waits = bool(self._history_from) and self._clock() < self._history_from
        if waits and await self._ledger.run_times.history_mark() is not None:
            return
        until = self._clock() + STEP_SECONDS
        more = True
        while more:
            more = await self._learn_history(lease) or await self._learn_queued(lease)
            more = more and self._clock() < until
        today = datetime.fromtimestamp(self._now(), UTC).date()
        if today != self._pruned_on:
            self._pruned_on = today
            async with self._ledger.writing(lease) as tx:
                await tx.run_times.forget()

    async def _learn_history(self, lease: Lease) -> bool:
        """Learn a batch of history. Returns whether there may be more; until it is read, nothing else is."""
        first = await self._ledger.run_times.history_mark()
        if first is None:
            return False
        found = await self._ledger.run_times.history(first, self._history_batch)
        histograms = await self._add(found)
        async with self._ledger.writing(lease) as tx:
            await tx.run_times.write(histograms, found)
            await tx.run_times.set_history_mark(found.next_job)
        if found.next_job is None:
            log.info("run times learnt from history", up_to_job=first + self._history_batch)
        return True

    async def _learn_queued(self, lease: Lease) -> bool:
        """Learn a batch of the queue. Returns whether there may be more."""
        found = await self._ledger.run_times.queued(self._batch)
        if not found.queued:
            return False
        histograms = await self._add(found)
        async with self._ledger.writing(lease) as tx:
            await tx.run_times.write(histograms, found)
        return len(found.queued) == self._batch

    async def _add(self, found: RunsToLearn) -> dict[RunTimeKey, bytes]:
        """Return the histograms of the groups of these runs, with the runs added.

        They are read outside the transaction: only the holder of the lease writes them.
        """
        if not found.runs:
            return {}
        known = await predictor(self._ledger, [run.traits for run in found.runs])
        return await asyncio.to_thread(_learn, known, found)


def _learn(known: RunTimes, found: RunsToLearn) -> dict[RunTimeKey, bytes]:
    for run in found.runs:
        known.learn(run)
    return {key: histogram.encode() for key, histogram in known.histograms()}
