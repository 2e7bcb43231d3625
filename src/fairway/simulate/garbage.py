"""Set how often Python's garbage collector runs in processes whose values live long."""

from __future__ import annotations

import gc


def collect_garbage_less_often() -> None:
    """Raise the thresholds of the garbage collector.

    Plans and simulated clusters have a hundred thousand values that survive, and few cycles; at the default
    of 700, scanning them takes up to a third of the time.
    """
    gc.set_threshold(50_000, 20, 50)
