"""The terminal output of a demo: a progress bar while it starts, then suggestions, then a status line."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from fairway.demo.home import read_if_exists

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.progress import Progress, TaskID

    from fairway.demo import DemoSummary, LoadStatus

_STATUS_SECONDS: Final = 10
"""How often the status is printed without a terminal."""
_STEP_SECONDS: Final = {"starting": 3.0, "playing": 5.0, "writing": 6.0, "reckoning": 2.0, "applying": 2.0}
"""Approximate durations of steps by their first word, to scale the progress bar."""
_OTHER_STEP_SECONDS: Final = 1.0
_TOTAL_SECONDS: Final = sum(_STEP_SECONDS.values()) + _OTHER_STEP_SECONDS


class Screen:
    """The output of a demo: a progress bar on a terminal, elsewhere a line for each step."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
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
            click.echo(f"  {what} …", err=True)
            return
        if self._bar is None:
            self._bar = _bar()
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

    def ready(self, demo: DemoSummary, names: Mapping[str, str], seconds: float, *, current: bool) -> None:
        """Show that the demo is ready, and what to try."""
        self._end_bar()
        # A demo's token is useless elsewhere and ends with it; still, keep it out of logs.
        token = (read_if_exists(demo.token_files["admin"]) or "").strip() if self._terminal else None
        for line in format_welcome(demo, names, seconds, token, current=current, quiet=self._quiet):
            click.echo(line, err=True)

    def status(self, load: LoadStatus) -> None:
        """Show the current load of the clusters."""
        if self._quiet:
            return
        text = (
            f"  {load.held} of {load.devices} GPUs and slices in use;"
            f" {load.running} jobs run, {load.waiting} wait, {load.ended} are over"
        )
        if self._terminal:
            click.echo(f"\r{text}\x1b[K", err=True, nl=False)
            self._has_status_line = True
        elif time.monotonic() - self._printed_at >= _STATUS_SECONDS:
            self._printed_at = time.monotonic()
            click.echo(text, err=True)

    def end(self) -> None:
        """Restore the terminal."""
        self._end_bar()
        if self._has_status_line:
            click.echo(err=True)
            self._has_status_line = False

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
        ("fairway demo tour", "a walk through it, in eight steps"),
        (f"fairway get pools{admin}", "what there is, and what of it is in use"),
        (f"fairway get jobs{admin}", "what runs and waits, everybody's"),
        (f"fairway top{admin}", "the same, live"),
        (f"fairway report cost{admin}", "what each team cost in 30 days"),
        (f"fairway run{alice} --gpus 1 -- sleep 30", "send a job as alice"),
        (f"fairway get jobs{alice} --mine", "and see what became of it"),
        (f"fairway describe job ID{alice}", "where it ran, every attempt, why it waits"),
        (f"fairway logs -f ID{alice}", "what it prints"),
        (f"fairway cancel ID{alice}", "enough of it"),
    )
    width = max(len(command) for command, _ in commands)
    return [
        head,
        f"  {demo.clusters} virtual clusters with {demo.gpus} GPUs and {demo.slices} slices,"
        f" {demo.teams} teams, {demo.people} people who send jobs",
        "",
        f"In a browser:  {demo.url}/",
        "  sign in as its admin with this token, which ends with the demo:"
        if token
        else "  sign in as its admin with the token in this file, which ends with the demo:",
        f"  {token or demo.token_files['admin']}",
        "",
        "In another terminal:",
        *(f"  {command:<{width}}  {what}" for command, what in commands),
        "",
        "Ctrl-C ends it and leaves nothing behind.",
        "",
    ]


def _bar() -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn("  {task.description:<38}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = progress.add_task("", total=_TOTAL_SECONDS)
    progress.start()
    return progress, task
