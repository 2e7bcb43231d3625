"""Looks at the ledger that many open pages share: a change that all of them hear of is read once or twice,
not once for each. Who asks never gets what was read before they asked, unless a page may be that old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedLook(Generic[T]):
    """One thing that is read for all who want it.

    Who asks while a look is under way waits for the next one, shared with all others who asked meanwhile:
    that look began after they asked, so it shows the change they heard of.
    """

    def __init__(self, look: Callable[[], Awaitable[T]], *, keep_seconds: float = 0) -> None:
        """With `keep_seconds`, a look that began less than that ago is good enough."""
        self._look = look
        self._keep_seconds = keep_seconds
        self._under_way: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None
        self._kept: tuple[float, T] | None = None

    async def get(self) -> T:
        """What was seen; raises what the look raised."""
        if self._kept is not None and time.monotonic() - self._kept[0] < self._keep_seconds:
            return self._kept[1]
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._under_way), name="a shared look")
            self._next.add_done_callback(_heed)
        # Whoever goes away does not take the look away from the others.
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._under_way, self._next = self._next, None
        began = time.monotonic()
        seen = await self._look()
        if self._keep_seconds:
            self._kept = (began, seen)
        return seen


def _heed(task: asyncio.Task[T]) -> None:
    """An error is raised to those who wait; if all of them left, nobody must be told of it."""
    if not task.cancelled():
        task.exception()
