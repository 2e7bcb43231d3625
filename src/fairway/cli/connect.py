"""Connect to a server: the `--context` and `--url` options, their client, and a spinner for slow requests."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click
import httpx2

from fairway.cli.output.format import Function
from fairway.client.client import Client
from fairway.client.contexts import chosen_target
from fairway.client.http import TIMEOUT

_SPINNER_DELAY_SECONDS: Final = 2.0
"""Faster requests show no spinner."""


def server_options(function: Function) -> Function:
    """Add `--context` and `--url`. A token is not an option: process lists and histories would store it."""
    context = click.option("--context", metavar="NAME", help="A context of `fairway context list`.")
    url = click.option(
        "--url", metavar="URL", help="A server by its URL; the token as FAIRWAY_TOKEN_FILE says."
    )
    return url(context(function))


def connect(context: str | None, url: str | None, *, timeout: httpx2.Timeout = TIMEOUT) -> Client:
    """Return a client of the server selected by the flags, FAIRWAY_* or contexts, in this order."""
    if context and url:
        raise click.UsageError("give --context or --url, not both")
    return Client(chosen_target(context, url), timeout)


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
