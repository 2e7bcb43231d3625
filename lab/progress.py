"""Long steps say what they do and how long they took, on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
STILL_AT_IT_SECONDS = 30.0  # off a terminal a silent minute looks like a hang


@contextmanager
def step(text: str) -> Iterator[None]:
    """One line for one step: a spinner meanwhile on a terminal, the elapsed seconds at the end."""
    began = time.monotonic()
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(text, began, over), daemon=True)
    watcher.start()
    mark = "✗"
    try:
        yield
        mark = "✓"
    finally:
        over.set()
        watcher.join()
        start = "\r\x1b[K" if sys.stderr.isatty() else ""
        print(f"{start}  {mark} {text}  {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


def _watch(text: str, began: float, over: threading.Event) -> None:
    if sys.stderr.isatty():
        frame = 0
        while not over.wait(0.1):
            frame += 1
            spinner = FRAMES[frame % len(FRAMES)]
            elapsed = time.monotonic() - began
            print(f"\r\x1b[K  {spinner} {text}  {elapsed:.0f} s", end="", file=sys.stderr, flush=True)
    else:
        while not over.wait(STILL_AT_IT_SECONDS):
            print(f"  … {text}  {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
