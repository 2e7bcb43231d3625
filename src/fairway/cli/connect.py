"""Connect to a server: the `--context` and `--url` options, their client, and a spinner for slow requests."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from fairway.cli import completion
from fairway.cli.output.format import Function
from fairway.client.contexts import Target, chosen_target

if TYPE_CHECKING:
    import httpx2

    from fairway.client.client import Client
    from fairway.client.reader import Reader

_SPINNER_DELAY_SECONDS: Final = 2.0
"""Faster requests show no spinner."""


def server_options(function: Function) -> Function:
    """Add `--context` and `--url`. A token is not an option: process lists and histories would store it."""
    context = click.option(
        "--context",
        metavar="NAME",
        help="Context to use (see `fairway context list`).",
        shell_complete=completion.contexts,
    )
    url = click.option("--url", metavar="URL", help="Server URL; the token comes from FAIRWAY_TOKEN_FILE.")
    return url(context(function))


def connect(context: str | None, url: str | None, *, timeout: httpx2.Timeout | None = None) -> Client:
    """Return a client of the server selected by the flags, FAIRWAY_* or contexts, in this order."""
    from fairway.client.client import Client
    from fairway.client.http import TIMEOUT

    return Client(_target(context, url), timeout or TIMEOUT)


def connect_reader(context: str | None, url: str | None) -> Reader:
    """Return a reader of the same server: for commands that only show something, as it starts faster."""
    from fairway.client.reader import Reader

    return Reader(_target(context, url))


def _target(context: str | None, url: str | None) -> Target:
    if context and url:
        raise click.UsageError("give --context or --url, not both")
    return chosen_target(context, url)


@contextmanager
def spinner(doing: str) -> Iterator[None]:
    """Show a spinner with `doing` and the elapsed time until the block ends."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show_spinner, args=(doing, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show_spinner(doing: str, done: threading.Event) -> None:
    if done.wait(_SPINNER_DELAY_SECONDS):
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(doing, total=None)
        done.wait()
