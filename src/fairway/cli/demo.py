"""`fairway demo`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from fairway.cli.demo_home import Home
    from fairway.wiring.demo import Beat, Opened, Options

_EXAMPLES = """\b
Examples:
  fairway demo                     until Ctrl-C; an hour of the clusters takes a minute
  fairway demo --speed 600         ten times as lively
  fairway demo --for 120 --quiet   two minutes, for scripts
"""
END_SECONDS: Final = 25.0
"""How long a demo may take to end before it is killed."""
_EVERY_SECONDS: Final = 10
"""How often a line is written where there is no terminal."""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--speed",
    type=click.FloatRange(1, 1000),
    default=60,
    show_default=True,
    help="How many times shorter the jobs of its people are than they would be in life.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Where it answers.  [any free one]")
@click.option(
    "--days",
    type=click.IntRange(0, 400),
    default=60,
    show_default=True,
    help="How long a past it has; 0 is the fastest to start.",
)
@click.option("--seed", type=int, default=20, show_default=True, help="Another one: other jobs.")
@click.option("--for", "seconds", type=click.FloatRange(1), metavar="SECONDS", help="End by itself.")
@click.option("--quiet", is_flag=True, help="Only say when it is ready.")
@click.option("--inside", hidden=True, type=click.Path(path_type=Path))
def demo(
    *,
    speed: float,
    port: int,
    days: int,
    seed: int,
    seconds: float | None,
    quiet: bool,
    inside: Path | None,
) -> None:
    """Try Fairway without a cluster: two virtual ones, busy with jobs.

    Everything is real but the clusters: a server, a PostgreSQL in a temporary folder, a policy, tokens. All
    other verbs work against it from another terminal. Ctrl-C ends it and leaves nothing behind.
    """
    if inside is not None:
        from fairway.wiring.demo import Options

        _run_inside(Options(inside, speed, port, seconds, days, seed), quiet=quiet)
        return
    from fairway.cli.demo_home import demo_home

    words = [
        "--speed",
        str(speed),
        "--port",
        str(port),
        "--days",
        str(days),
        "--seed",
        str(seed),
        *(["--quiet"] if quiet else []),
    ]
    if seconds is not None:
        words += ["--for", str(seconds)]
    stopped = _Stopped()
    with demo_home() as home:
        code = _keep(home, words, stopped)
        stopped.ignore()
    if not quiet:
        click.echo("the demo is over: nothing is left of it", err=True)
    if code:
        raise click.exceptions.Exit(code)


# the one who keeps house


class _Stopped:
    """Signals to this process: the demo is told, and everything is taken away afterwards."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.times = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def ignore(self) -> None:
        """What is left to do takes a moment and must be done."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.times += 1
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)


def _keep(home: Home, words: list[str], stopped: _Stopped) -> int:
    """Run the demo as a child until it ends; gives its exit code, 0 if it was told to end."""
    # A session of its own: Ctrl-C is for this process. Its stdin ends when this process does.
    child = subprocess.Popen(  # noqa: S603 - ourselves
        [sys.executable, "-m", "fairway.cli", "demo", "--inside", str(home.folder), *words],
        stdin=subprocess.PIPE,
        pass_fds=[home.lock],
        start_new_session=True,
    )
    stopped.child = child
    if stopped.times:
        child.send_signal(signal.SIGTERM)
    told_at: float | None = None
    while child.poll() is None:
        try:
            child.wait(0.5)
        except subprocess.TimeoutExpired:
            told_at = told_at or (time.monotonic() if stopped.times else None)
            if told_at is not None and time.monotonic() - told_at > END_SECONDS:
                child.kill()
    if stopped.times:
        return 0
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


# the demo itself


def _run_inside(options: Options, *, quiet: bool) -> None:
    from fairway.cli.demo_home import keep_contexts, take_away, uses_demo
    from fairway.cli.logs import configure_logs
    from fairway.wiring.demo import Telling, serve_demo

    began = time.monotonic()
    alone = threading.Event()
    threading.Thread(target=_watch_keeper, args=(alone,), daemon=True).start()
    configure_logs("warning", "text")
    shown = _Screen(quiet=quiet)

    def opened(ready: Opened) -> None:
        names = keep_contexts(options.folder, ready.url, ready.token_files)
        shown.opened(ready, names, time.monotonic() - began, current=uses_demo(names["admin"]))

    try:
        serve_demo(options, Telling(shown.step, lambda _part: None, opened, shown.beat))
    finally:
        shown.end()
        if alone.is_set():
            take_away(options.folder)


def _watch_keeper(alone: threading.Event) -> None:
    """End in good order, and clean up, when the process that should do so is gone."""
    while os.read(0, 1):
        pass
    alone.set()
    os.kill(os.getpid(), signal.SIGTERM)


class _Screen:
    """What the visitor sees: steps, then what to try, then one line that follows the clusters."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._line = False
        self._told_at = float("-inf")

    def step(self, what: str) -> None:
        if not self._quiet:
            click.echo(f"  {what} …", err=True)

    def opened(self, ready: Opened, names: Mapping[str, str], seconds: float, *, current: bool) -> None:
        for line in screen(ready, names, seconds, current=current, quiet=self._quiet):
            click.echo(line, err=True)

    def beat(self, beat: Beat) -> None:
        if self._quiet:
            return
        text = (
            f"  {beat.held} of {beat.devices} GPUs and slices in use;"
            f" {beat.running} jobs run, {beat.waiting} wait, {beat.ended} are over"
        )
        if self._terminal:
            click.echo(f"\r{text}\x1b[K", err=True, nl=False)
            self._line = True
        elif time.monotonic() - self._told_at >= _EVERY_SECONDS:
            self._told_at = time.monotonic()
            click.echo(text, err=True)

    def end(self) -> None:
        if self._line:
            click.echo(err=True)
            self._line = False


def screen(
    ready: Opened, names: Mapping[str, str], seconds: float, *, current: bool, quiet: bool
) -> list[str]:
    """What to try, for somebody who never saw Fairway."""
    admin = "" if current else f" --context {names['admin']}"
    alice = f" --context {names['alice']}"
    head = f"fairway demo is ready after {seconds:.0f} s on {ready.url}"
    if quiet:
        return [head]
    tries = (
        (f"fairway get pools{admin}", "what there is, and what of it is in use"),
        (f"fairway get jobs{admin}", "what runs and waits, everybody's"),
        (f"fairway top{admin}", "the same, live"),
        (f"fairway run{alice} --gpus 1 -- sleep 30", "send a job as alice"),
        (f"fairway get jobs{alice} --mine", "and see what became of it"),
        (f"fairway describe job ID{alice}", "where it ran, every attempt, why it waits"),
        (f"fairway logs -f ID{alice}", "what it prints"),
        (f"fairway cancel ID{alice}", "enough of it"),
    )
    width = max(len(command) for command, _ in tries)
    return [
        head,
        f"  {ready.clusters} virtual clusters with {ready.gpus} GPUs and {ready.slices} slices,"
        f" {ready.teams} teams, {ready.people} people who send jobs",
        "",
        "In another terminal:",
        *(f"  {command:<{width}}  {what}" for command, what in tries),
        "",
        "Ctrl-C ends it and leaves nothing behind.",
        "",
    ]
