"""The command `fairway demo`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from fairway.cli.group import Group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from fairway.demo.home import DemoHome
    from fairway.demo.run import DemoOptions, DemoSummary

_EXAMPLES = """\b
Examples:
  fairway demo                     run until Ctrl-C
  fairway demo --speed 200         jobs ten times as short, and ten times as many
  fairway demo --days 0            without a history: the fastest to start
  fairway demo --for 120 --quiet   run for two minutes, for scripts
  fairway demo tour                in another terminal: a guided tour
"""
END_SECONDS: Final = 25.0
"""How long a demo may take to stop before it is killed."""
_LOG_LINES: Final = 20
"""Lines of its log that are printed of a demo that failed, before the log is removed."""


@click.group(cls=Group, epilog=_EXAMPLES, invoke_without_command=True)
@click.option(
    "--speed",
    type=click.FloatRange(1, 1000),
    default=20,
    show_default=True,
    help="Divide the duration of simulated jobs by this factor.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the web pages and the API.  [default: a free one]",
)
@click.option(
    "--days",
    type=click.IntRange(0, 400),
    default=60,
    show_default=True,
    help="Days of simulated history; 0 is the fastest to start.",
)
@click.option("--seed", type=int, default=20, show_default=True, help="Random seed of the simulated jobs.")
@click.option(
    "--for", "seconds", type=click.FloatRange(1), metavar="SECONDS", help="Stop after this many seconds."
)
@click.option("--quiet", is_flag=True, help="Print only that it is ready.")
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
    """Try Fairway on two simulated clusters.

    Starts a server with its web pages and a PostgreSQL in a temporary folder. Only the clusters are
    simulated: all other commands work from another terminal. Ctrl-C stops the demo and removes its files.
    """
    if context.invoked_subcommand is not None:
        return
    if inside is not None:
        from fairway.demo.run import DemoOptions

        _run_inside(DemoOptions(inside, speed, port, seconds, days, seed), quiet=quiet)
        return
    from fairway.demo.home import demo_home

    arguments = [f"--speed={speed}", f"--port={port}", f"--days={days}", f"--seed={seed}"]
    arguments += ["--quiet"] if quiet else []
    arguments += [f"--for={seconds}"] if seconds is not None else []
    signals = _SignalForwarder()
    with demo_home() as home:
        if not quiet:
            click.echo(f"Starting the demo. Its log is {home.log_file}", err=True)
        code = _supervise(home, arguments, signals, quiet=quiet)
        signals.ignore()
        if code:
            _print_end_of_log(home.log_file)
    if not quiet:
        click.echo("The demo has stopped. Its files are removed.", err=True)
    if code:
        raise click.exceptions.Exit(code)


@demo.command(epilog="\b\nExamples:\n  fairway demo tour\n  fairway demo tour --yes    without prompts\n")
@click.option("--yes", is_flag=True, help="Do not wait for Enter between the steps.")
def tour(*, yes: bool) -> None:
    """Take a guided tour: a waiting job and its cost, drift, a plan, reports, the web pages.

    Prints each command and runs it on the running demo. If none is running, the tour starts one and stops it
    at the end. The plan lets team students borrow eight more GPUs and reverts a change made by hand.
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


def _supervise(home: DemoHome, arguments: list[str], signals: _SignalForwarder, *, quiet: bool) -> int:
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
            if stopped_at is None and signals.received:
                stopped_at = time.monotonic()
                if not quiet:  # on a terminal the status line has no end: overwrite it
                    begin, end = ("\r", "\x1b[K") if sys.stderr.isatty() else ("", "")
                    click.echo(f"{begin}Stopping the demo …{end}", err=True)
            if stopped_at is not None and time.monotonic() - stopped_at > END_SECONDS:
                child.kill()
    if signals.received:
        return 0
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _print_end_of_log(log_file: Path) -> None:
    """Print the end of the log of a demo that failed: its folder is about to be removed."""
    try:
        lines = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    if lines:
        click.echo(f"The last lines of {log_file}:", err=True)
        for line in lines[-_LOG_LINES:]:
            click.echo(f"  {line}", err=True)


# the demo itself


def _run_inside(options: DemoOptions, *, quiet: bool) -> None:
    from fairway.cli.shared.log import configure_logs
    from fairway.demo.home import LOG_FILE, add_contexts, clean_up, is_current_context
    from fairway.demo.run import DemoCallbacks, serve_demo
    from fairway.demo.screen import Screen

    began = time.monotonic()
    orphaned = threading.Event()
    threading.Thread(target=_stop_with_parent, args=(orphaned,), daemon=True).start()
    with _stderr_to(options.folder / LOG_FILE) as terminal:
        configure_logs("warning", "text")
        screen = Screen(terminal, quiet=quiet)

        def ready(summary: DemoSummary) -> None:
            names = add_contexts(options.folder, summary.url, summary.token_files)
            screen.ready(summary, names, time.monotonic() - began, current=is_current_context(names["admin"]))

        try:
            serve_demo(options, DemoCallbacks(screen.step, screen.progress, ready, screen.status))
        finally:
            screen.end()
            if orphaned.is_set():
                clean_up(options.folder)


@contextmanager
def _stderr_to(log_file: Path) -> Iterator[TextIO]:
    """Send stderr to a log file, whoever writes to it, and yield the stream that it was."""
    sys.stderr.flush()
    with os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace") as terminal:
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 2)
        os.close(log)
        try:
            yield terminal
        finally:
            sys.stderr.flush()
            os.dup2(terminal.fileno(), 2)


def _stop_with_parent(orphaned: threading.Event) -> None:
    """Stop the demo and let it clean up if the parent process is gone."""
    while os.read(0, 1):
        pass
    orphaned.set()
    os.kill(os.getpid(), signal.SIGTERM)
