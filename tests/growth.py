"""Does the work grow as its input does? Asked of CPU time, on machines that others use too."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one call, without the collector, which walks whatever other tests of this process left."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        started = time.process_time()
        work()
        return time.process_time() - started
    finally:
        if was_on:
            gc.enable()


def grows_at_most(factor: float, small: Callable[[], object], large: Callable[[], object]) -> bool:
    """Does `large` take at most `factor` times what `small` does?

    A neighbour on the machine only ever adds time, so the least of several tries is nearest the truth, and
    work that truly grows too fast does so at every try.
    """
    least_small = least_large = float("inf")
    for _ in range(6):
        least_small = min(least_small, cpu_seconds(small))
        least_large = min(least_large, cpu_seconds(large))
        if least_large <= factor * least_small:
            return True
    return False
