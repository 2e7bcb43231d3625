"""The step of the archive loop: move raw usage of old months to the object store."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from fairway.ledger import Lease, Ledger

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")


class ArchiveUsage:
    """Archives one month per round, the oldest first; sums by hour and day remain in the ledger."""

    def __init__(self, ledger: Ledger, keep_months: int, *, clock: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._keep_months = keep_months
        self._clock = clock

    async def __call__(self, lease: Lease) -> None:
        """Archive one month. The ledger lets one server at a time move it, regardless of the lease."""
        today = datetime.fromtimestamp(self._clock(), UTC).date()
        for month in (await self._ledger.usage.due_for_archive(self._keep_months, today))[:1]:
            parts = await self._ledger.usage.archive_month(month)
            if parts:
                log.info("usage archived", month=f"{month:%Y-%m}", rows=sum(p.rows for p in parts))
