"""Show the progress of work on this machine on stderr, if it takes long and somebody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_DELAY_SECONDS: Final = 2.0
"""Faster work shows no progress."""


@contextmanager
def progress_bar(doing: str) -> Iterator[Callable[[float], None]]:
    """Yield a function that takes the part that is done, from 0 to 1; show it from the third second on."""
    if not sys.stderr.isatty():
        yield lambda _part: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)
    task = progress.add_task(doing, total=1.0)
    begun, shown = time.monotonic(), False

    def advance(part: float) -> None:
        nonlocal shown
        if not shown and time.monotonic() - begun > _DELAY_SECONDS:
            shown = True
            progress.start()
        progress.update(task, completed=part)

    try:
        yield advance
    finally:
        if shown:
            progress.stop()
