"""Bounded waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lab.errors import LabError

LISTEN = "0A"  # as /proc/net/tcp writes it


def wait_until(
    condition: Callable[[], bool],
    seconds: float,
    what: str,
    *,
    why: Callable[[], str] | None = None,
    hint: str = "",
) -> None:
    """Return once the condition holds, or fail with `what` after so many seconds."""
    end = time.monotonic() + seconds
    pause = 0.02
    while not condition():
        if time.monotonic() > end:
            raise LabError(f"{what} (waited {seconds:.0f} s)", why() if why else "", hint)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


def listeners() -> set[int]:
    """The TCP ports that something listens on, by the kernel: no daemon is sent an empty connection."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == LISTEN:
                found.add(int(local.rpartition(":")[2], 16))
    return found


def listening(port: int) -> bool:
    return port in listeners()
