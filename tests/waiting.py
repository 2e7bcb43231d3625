"""The one way tests wait: until something is true, bounded, and saying what did not come."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Something = TypeVar("Something")
PRESSURE = Path("/proc/pressure/cpu")
MIN_COUNTED = 1 / 3
"""Of a second in which programs waited for a CPU, so much counts: a limit is at most tripled."""


class Deadline:
    """A time limit that a busy machine extends: while programs wait for a CPU, its clock runs slower."""

    def __init__(self, within: float) -> None:
        self.within = within
        self._began = time.monotonic()
        self._stalled = _stalled_seconds()

    @property
    def passed(self) -> bool:
        elapsed = time.monotonic() - self._began
        stalled = min(elapsed, _stalled_seconds() - self._stalled)
        return elapsed - stalled * (1 - MIN_COUNTED) > self.within


def _stalled_seconds() -> float:
    """Seconds since boot in which some program waited for a CPU; 0 if the kernel does not report it."""
    try:
        total = re.search(r"^some .*total=(\d+)", PRESSURE.read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(total[1]) / 1e6 if total else 0.0


def until(
    true: Callable[[], Something],
    within: float = 20.0,
    what: str = "it",
    *,
    pause: float = 0.1,
    why: Callable[[], object] = str,
) -> Something:
    """Ask until `true` gives something, and give that; `why` says what is there instead when time is over."""
    deadline = Deadline(within)
    while True:
        found = true()
        if found:
            return found
        assert not deadline.passed, f"{what}: not within {within:g} s {why()}".rstrip()
        time.sleep(pause)


async def eventually(
    true: Callable[[], object], within: float = 45.0, what: str = "it", *, pause: float = 0.2
) -> float:
    """As `until`, for questions that block (a command, a file) while other tasks go on; seconds it took."""
    started, deadline = time.monotonic(), Deadline(within)
    while not await asyncio.to_thread(true):
        assert not deadline.passed, f"{what}: not within {within:g} s"
        await asyncio.sleep(pause)
    return time.monotonic() - started
