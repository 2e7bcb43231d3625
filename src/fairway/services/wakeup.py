"""Wake a loop when work for it comes in at this server, before its next poll.

Nothing depends on it: a loop of another server, or one whose notification was lost, waits for its next poll.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from fairway.model.names import ClusterName

Sleep = Callable[[float], Awaitable[None]]

GATHER_SECONDS: Final = 0.02
"""Debounce: a thousand single submits that arrive together are some rounds, not a thousand."""


class Wakeup:
    """One event per cluster; a notification while no loop waits ends the next wait at once."""

    def __init__(self) -> None:
        self._notified: defaultdict[ClusterName, asyncio.Event] = defaultdict(asyncio.Event)

    def notify(self, cluster: ClusterName) -> None:
        """Wake the loop of this cluster."""
        self._notified[cluster].set()

    def pause_for(self, cluster: ClusterName) -> Sleep:
        """Return a sleep function that a notification for this cluster ends early."""
        notified = self._notified[cluster]

        async def until_notified(seconds: float) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await notified.wait()
                    await asyncio.sleep(GATHER_SECONDS)
            notified.clear()

        return until_notified
