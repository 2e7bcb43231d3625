"""A spinner on a terminal for requests that take longer than two seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

AFTER_SECONDS: Final = 2.0


@contextmanager
def patience(doing: str) -> Iterator[None]:
    """Show a spinner with `doing` and the elapsed time until the block ends."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(doing, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(doing: str, done: threading.Event) -> None:
    if done.wait(AFTER_SECONDS):
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(doing, total=None)
        done.wait()
