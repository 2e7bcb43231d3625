"""The one way tests wait: until something is true, bounded, and saying what did not come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Something = TypeVar("Something")


def until(
    true: Callable[[], Something], within: float = 20.0, what: str = "it", *, pause: float = 0.1
) -> Something:
    """Ask until `true` gives something, and give that."""
    deadline = time.monotonic() + within
    while True:
        found = true()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {within:g} s"
        time.sleep(pause)


async def eventually(
    true: Callable[[], object], within: float = 45.0, what: str = "it", *, pause: float = 0.2
) -> float:
    """As `until`, for questions that block (a command, a file) while other tasks go on; seconds it took."""
    started = time.monotonic()
    while not await asyncio.to_thread(true):
        assert time.monotonic() - started < within, f"{what}: not within {within:g} s"
        await asyncio.sleep(pause)
    return time.monotonic() - started
