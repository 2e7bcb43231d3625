"""The terminal output of a demo: a progress bar while it starts, then suggestions, then a status line."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TextIO

import click

from fairway.demo.home import read_if_exists

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.progress import Progress, TaskID

    from fairway.demo.live_load import LoadStatus
    from fairway.demo.run import DemoSummary

_STATUS_SECONDS: Final = 10
"""How often progress and status are printed without a terminal."""
_STEP_SECONDS: Final = {
    "Starting": 3.0,
    "Simulating": 3.0,
    "Storing": 5.0,
    "Calculating": 2.0,
    "Applying": 2.0,
}
"""Approximate durations of steps by their first word, to scale the progress bar."""
_OTHER_STEP_SECONDS: Final = 1.0
_TOTAL_SECONDS: Final = sum(_STEP_SECONDS.values()) + _OTHER_STEP_SECONDS


class Screen:
    """The output of a demo: a progress bar on a terminal, elsewhere a line for each step."""

    def __init__(self, stream: TextIO, *, quiet: bool) -> None:
        self._stream = stream
        self._quiet = quiet
        self._terminal = stream.isatty()
        self._bar: tuple[Progress, TaskID] | None = None
        self._completed_seconds = 0.0
        self._step_seconds = 0.0
        self._has_status_line = False
        self._printed_at = float("-inf")

    def step(self, what: str) -> None:
        """Show the start of the next step."""
        if self._quiet:
            return
        if not self._terminal:
            self._print(f"  {what} …")
            self._printed_at = time.monotonic()
            return
        if self._bar is None:
            self._bar = _bar(self._stream)
        self._completed_seconds += self._step_seconds
        self._step_seconds = _STEP_SECONDS.get(what.split(maxsplit=1)[0], _OTHER_STEP_SECONDS)
        progress, task = self._bar
        progress.update(task, description=what, completed=self._completed_seconds)

    def progress(self, fraction: float) -> None:
        """Show the completed fraction of the current step."""
        if self._bar is not None:
            progress, task = self._bar
            step_seconds = self._step_seconds * min(1.0, max(0.0, fraction))
            progress.update(task, completed=self._completed_seconds + step_seconds)
        elif not self._quiet and time.monotonic() - self._printed_at >= _STATUS_SECONDS:
            self._printed_at = time.monotonic()
            self._print(f"  … {fraction:.0%}")

    def ready(self, demo: DemoSummary, names: Mapping[str, str], seconds: float, *, current: bool) -> None:
        """Show that the demo is ready, and what to try."""
        self._end_bar()
        # A demo's token is useless elsewhere and ends with it; still, keep it out of logs.
        token = (read_if_exists(demo.token_files["admin"]) or "").strip() if self._terminal else None
        for line in format_welcome(demo, names, seconds, token, current=current, quiet=self._quiet):
            self._print(line)

    def status(self, load: LoadStatus) -> None:
        """Show the current load of the clusters."""
        if self._quiet:
            return
        text = (
            f"  {load.held} of {load.devices} GPUs and slices in use;"
            f" jobs: {load.running} running, {load.waiting} waiting, {load.ended} finished"
        )
        if self._terminal:
            self._print(f"\r{text}\x1b[K", end="")
            self._has_status_line = True
        elif time.monotonic() - self._printed_at >= _STATUS_SECONDS:
            self._printed_at = time.monotonic()
            self._print(text)

    def end(self) -> None:
        """Restore the terminal."""
        self._end_bar()
        if self._has_status_line:
            self._print("")
            self._has_status_line = False

    def _print(self, text: str, end: str = "\n") -> None:
        click.echo(text + end, file=self._stream, nl=False)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None


def format_welcome(
    demo: DemoSummary,
    names: Mapping[str, str],
    seconds: float,
    token: str | None,
    *,
    current: bool,
    quiet: bool,
) -> list[str]:
    """Format the commands to try, for users who are new to Fairway."""
    admin = "" if current else f" --context {names['admin']}"
    alice = f" --context {names['alice']}"
    head = f"fairway demo is ready after {seconds:.0f} s on {demo.url}"
    if quiet:
        return [head]
    commands = (
        ("fairway demo tour", "a guided tour"),
        (f"fairway get pools{admin}", "pools and how full they are"),
        (f"fairway get jobs{admin}", "running and waiting jobs of all users"),
        (f"fairway top{admin}", "the same, live"),
        (f"fairway report cost{admin}", "cost of each team in the last 30 days"),
        (f"fairway run{alice} --name hello --gpus 1 -- sleep 30", "submit a job as alice"),
        (f"fairway get jobs{alice} --mine", "alice's jobs"),
        (f"fairway why hello{alice}", "why it is waiting, or where it ran"),
        (f"fairway logs -f hello{alice}", "follow its log"),
        (f"fairway cancel hello{alice}", "cancel it"),
    )
    width = max(len(command) for command, _ in commands)
    return [
        head,
        f"  {demo.clusters} virtual clusters with {demo.gpus} GPUs and {demo.slices} slices,"
        f" {demo.teams} teams, {demo.people} users",
        "",
        f"In a browser:  {demo.url}/",
        "  Sign in as admin with this token, which is valid until the demo stops:"
        if token
        else "  Sign in as admin with the token in this file, which is valid until the demo stops:",
        f"  {token or demo.token_files['admin']}",
        "",
        "In another terminal:",
        *(f"  {command:<{width}}  {what}" for command, what in commands),
        "",
        "Ctrl-C stops the demo and removes its files.",
        "",
    ]


def _bar(stream: TextIO) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn("  {task.description:<38}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
    )
    task = progress.add_task("", total=_TOTAL_SECONDS)
    progress.start()
    return progress, task
