"""The command `fairway demo`."""

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
    from types import FrameType

    from fairway.demo import DemoOptions, DemoSummary
    from fairway.demo.home import DemoHome

_EXAMPLES = """\b
Examples:
  fairway demo                     until Ctrl-C; an hour of the clusters takes a minute
  fairway demo --speed 600         ten times as lively
  fairway demo --days 0            without a past, the fastest to start
  fairway demo --for 120 --quiet   two minutes, for scripts
  fairway demo tour                in another terminal: a walk through it
"""
END_SECONDS: Final = 25.0
"""How long a demo may take to stop before it is killed."""


@click.group(epilog=_EXAMPLES, invoke_without_command=True)
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
@click.pass_context
def demo(
    context: click.Context,
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
    if context.invoked_subcommand is not None:
        return
    if inside is not None:
        from fairway.demo import DemoOptions

        _run_inside(DemoOptions(inside, speed, port, seconds, days, seed), quiet=quiet)
        return
    from fairway.demo.home import demo_home

    arguments = [f"--speed={speed}", f"--port={port}", f"--days={days}", f"--seed={seed}"]
    arguments += ["--quiet"] if quiet else []
    arguments += [f"--for={seconds}"] if seconds is not None else []
    signals = _SignalForwarder()
    with demo_home() as home:
        code = _supervise(home, arguments, signals)
        signals.ignore()
    if not quiet:
        click.echo("the demo is over: nothing is left of it", err=True)
    if code:
        raise click.exceptions.Exit(code)


@demo.command(epilog="\b\nExamples:\n  fairway demo tour\n  fairway demo tour --yes    without a question\n")
@click.option("--yes", is_flag=True, help="Go on without waiting for Enter.")
def tour(*, yes: bool) -> None:
    """Walk through it: a plan, an apply, a job that waits, what it all costs.

    Shows each command and runs it, against the demo that runs, or one that it starts for as long as it lasts.
    Its plan lets students borrow a few more GPUs; nothing else changes.
    """
    from fairway.demo.tour import run_tour

    code = run_tour(ask=not yes and sys.stdin.isatty() and sys.stdout.isatty())
    if code:
        raise click.exceptions.Exit(code)


# the parent process, which cleans up


class _SignalForwarder:
    """Signal handlers of the parent: forward the signal to the demo, then clean up."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.received = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def ignore(self) -> None:
        """Ignore further signals during the clean-up, which is short."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.received += 1
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)


def _supervise(home: DemoHome, arguments: list[str], signals: _SignalForwarder) -> int:
    """Run the demo as a child process until it ends. Returns its exit code, 0 if a signal stopped it."""
    # A session of its own: Ctrl-C reaches only this process. The child's stdin closes when this process ends.
    child = subprocess.Popen(  # noqa: S603 - ourselves
        [sys.executable, "-m", "fairway.cli", "demo", "--inside", str(home.folder), *arguments],
        stdin=subprocess.PIPE,
        pass_fds=[home.lock],
        start_new_session=True,
    )
    signals.child = child
    if signals.received:
        child.send_signal(signal.SIGTERM)
    stopped_at: float | None = None
    while child.poll() is None:
        try:
            child.wait(0.5)
        except subprocess.TimeoutExpired:
            stopped_at = stopped_at or (time.monotonic() if signals.received else None)
            if stopped_at is not None and time.monotonic() - stopped_at > END_SECONDS:
                child.kill()
    if signals.received:
        return 0
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


# the demo itself


def _run_inside(options: DemoOptions, *, quiet: bool) -> None:
    from fairway.cli.shared.log import configure_logs
    from fairway.demo import DemoCallbacks, serve_demo
    from fairway.demo.home import add_contexts, clean_up, is_current_context
    from fairway.demo.screen import Screen

    began = time.monotonic()
    orphaned = threading.Event()
    threading.Thread(target=_stop_with_parent, args=(orphaned,), daemon=True).start()
    configure_logs("warning", "text")
    screen = Screen(quiet=quiet)

    def ready(summary: DemoSummary) -> None:
        names = add_contexts(options.folder, summary.url, summary.token_files)
        screen.ready(summary, names, time.monotonic() - began, current=is_current_context(names["admin"]))

    try:
        serve_demo(options, DemoCallbacks(screen.step, screen.progress, ready, screen.status))
    finally:
        screen.end()
        if orphaned.is_set():
            clean_up(options.folder)


def _stop_with_parent(orphaned: threading.Event) -> None:
    """Stop the demo and let it clean up if the parent process is gone."""
    while os.read(0, 1):
        pass
    orphaned.set()
    os.kill(os.getpid(), signal.SIGTERM)
