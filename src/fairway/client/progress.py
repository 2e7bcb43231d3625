"""Show the progress of a wait: a bar in terminals and notebooks, lines of text elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from html import escape
from importlib import import_module
from typing import Any, Final, Protocol, Self, TextIO

from fairway.model.job import OPEN_JOBS, JobState
from fairway.model.text import count

_FAILED: Final = frozenset(JobState) - frozenset(OPEN_JOBS) - {JobState.DONE}


class ShowsProgress(Protocol):
    """Shows how many jobs have finished."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...

    def show(self, counts: Counter[JobState]) -> None:
        """Show the number of jobs in each state."""


def progress_of(total: int, *, wanted: bool, out: TextIO | None = None) -> ShowsProgress:
    """Return what shows progress here: in a notebook, a terminal, or a file or pipe."""
    out = out or sys.stderr
    if not wanted or total == 0:
        return _NoProgress()
    if (display := _notebook_display()) is not None:
        return _NotebookProgress(total, display)
    return _TerminalProgress(total) if out.isatty() else _TextProgress(total, out)


def progress_text(total: int, counts: Counter[JobState]) -> str:
    """Format progress: `3 of 10 jobs finished, 1 failed; 2 running, 5 waiting`."""
    finished = sum(n for state, n in counts.items() if state not in OPEN_JOBS)
    text = f"{finished} of {count(total, 'job')} finished"
    ended = [f"{counts[state]} {state.value}" for state in JobState if state in _FAILED and counts[state]]
    going = [f"{counts[state]} {state.value}" for state in JobState if state in OPEN_JOBS and counts[state]]
    return "; ".join(filter(None, (", ".join([text, *ended]), ", ".join(going))))


class _NoProgress:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        return

    def show(self, counts: Counter[JobState]) -> None:
        return


class _TextProgress(_NoProgress):
    """A line for each change."""

    def __init__(self, total: int, out: TextIO) -> None:
        self._total = total
        self._out = out
        self._shown = ""

    def show(self, counts: Counter[JobState]) -> None:
        text = progress_text(self._total, counts)
        if text != self._shown:
            self._shown = text
            print(text, file=self._out, flush=True)


class _TerminalProgress(_NoProgress):
    """A bar of rich."""

    def __init__(self, total: int) -> None:
        from rich.console import Console  # noqa: PLC0415 - only for a wait
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        self._total = total
        self._bar = Progress(
            BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True)
        )
        self._task = self._bar.add_task("", total=total)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._bar)
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def show(self, counts: Counter[JobState]) -> None:
        finished = sum(n for state, n in counts.items() if state not in OPEN_JOBS)
        self._bar.update(self._task, completed=finished, description=progress_text(self._total, counts))


class _NotebookProgress(_NoProgress):
    """A bar in the output of a cell, which is replaced in place."""

    def __init__(self, total: int, display: Any) -> None:
        self._total = total
        self._display = display
        self._handle: Any = None

    def show(self, counts: Counter[JobState]) -> None:
        finished = sum(n for state, n in counts.items() if state not in OPEN_JOBS)
        text = progress_text(self._total, counts)
        data = {
            "text/plain": text,
            "text/html": f'<label><progress value="{finished}" max="{self._total}" style="width:16em">'
            f"</progress> {escape(text)}</label>",
        }
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def _notebook_display() -> Any:
    """Return IPython's `display` if this is the kernel of a notebook. Returns None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return import_module("IPython.display").display
