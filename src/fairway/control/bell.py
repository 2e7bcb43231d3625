"""Wakes a loop whose work just came in by this very server, instead of its next look.

Nothing depends on it: a loop of another server, or a ring that was lost, only waits for the next look.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import Final

from fairway.control.loop import Sleep
from fairway.model.names import ClusterName

GATHER_SECONDS: Final = 0.02
"""Who is woken waits this long for others: a thousand single submits are some rounds, not a thousand."""


class Bell:
    """One for each cluster; a ring while nobody waits is heard by the next who does."""

    def __init__(self) -> None:
        self._rung: defaultdict[ClusterName, asyncio.Event] = defaultdict(asyncio.Event)

    def ring(self, cluster: ClusterName) -> None:
        """There is work for this cluster."""
        self._rung[cluster].set()

    def pause(self, cluster: ClusterName) -> Sleep:
        """A sleep that a ring for this cluster ends early."""
        rung = self._rung[cluster]

        async def until_rung(seconds: float) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await rung.wait()
                    await asyncio.sleep(GATHER_SECONDS)
            rung.clear()

        return until_rung
