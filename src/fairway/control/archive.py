"""The archive loop's step: raw usage of months that are old enough goes to the object store."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from fairway.ledger import Lease, Ledger

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")


class ArchiveUsage:
    """One month a round, the oldest first; sums by hour and day stay where they are."""

    def __init__(self, ledger: Ledger, keep_months: int, *, clock: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._keep_months = keep_months
        self._clock = clock

    async def __call__(self, lease: Lease) -> None:
        """The ledger sees to it that one server at a time moves a month, whoever holds the lease."""
        today = datetime.fromtimestamp(self._clock(), UTC).date()
        for month in (await self._ledger.due_for_archive(self._keep_months, today))[:1]:
            parts = await self._ledger.archive_month(month)
            if parts:
                log.info("usage archived", month=f"{month:%Y-%m}", rows=sum(p.rows for p in parts))
