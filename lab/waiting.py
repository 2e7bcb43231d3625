"""Bounded waits."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from lab.errors import LabError


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


def listening(port: int) -> bool:
    """Whether something accepts connections on that port of 127.0.0.1."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
