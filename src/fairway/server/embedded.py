"""Restart the embedded PostgreSQL of a server when it ends: killed, out of memory, or stopped by hand."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import structlog

from fairway.ledger import Ledger, LedgerUnreachable
from fairway.model.errors import FairwayError

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.server")

CHECK_SECONDS: Final = 1.0
MAX_RESTARTS: Final = 5
"""Restarts within `WINDOW_SECONDS`; one more end, and an administrator has to look at it."""
WINDOW_SECONDS: Final = 600.0


class Restartable(Protocol):
    """An embedded PostgreSQL, as far as this module needs it."""

    @property
    def log_file(self) -> Path: ...
    def is_running(self) -> bool: ...
    def restart(self) -> None: ...


class EmbeddedWatch:
    """Restarts one embedded PostgreSQL, and reports an outage on the ledger meanwhile: `/readyz` shows it."""

    def __init__(
        self, postgres: Restartable, ledger: Ledger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._postgres = postgres
        self._ledger = ledger
        self._clock = clock
        self._restarts: deque[float] = deque()

    async def run(self) -> None:
        """Check the server every second, for ever."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.check()

    async def check(self) -> None:
        """Restart the server if it has ended, unless it ended too often."""
        if await asyncio.to_thread(self._postgres.is_running):
            self._ledger.outage = None
            return
        now = self._clock()
        while self._restarts and self._restarts[0] <= now - WINDOW_SECONDS:
            self._restarts.popleft()
        if len(self._restarts) >= MAX_RESTARTS:
            self._give_up()
            return
        self._restarts.append(now)
        number = len(self._restarts)
        self._ledger.outage = LedgerUnreachable(
            "EmbeddedRestarting",
            f"the embedded PostgreSQL ended, and is being restarted (restart {number} of {MAX_RESTARTS})",
            f"wait a few seconds; the reason is in its log:  tail {self._postgres.log_file}",
        )
        log.warning("the embedded PostgreSQL ended: restarting it", restart=number, most=MAX_RESTARTS)
        try:
            await asyncio.to_thread(self._postgres.restart)
        except FairwayError as error:
            log.warning(error.message, code=error.code, hint=error.hint)  # the next check tries again
            return
        self._ledger.outage = None
        log.info("the embedded PostgreSQL runs again", restart=number)

    def _give_up(self) -> None:
        if self._ledger.outage is not None and self._ledger.outage.code == "EmbeddedEndsAgain":
            return
        self._ledger.outage = LedgerUnreachable(
            "EmbeddedEndsAgain",
            f"the embedded PostgreSQL ended again after {MAX_RESTARTS} restarts within ten minutes",
            f"check its log, then restart this server:  tail {self._postgres.log_file}",
        )
        log.error(self._ledger.outage.message, code=self._ledger.outage.code, hint=self._ledger.outage.hint)
