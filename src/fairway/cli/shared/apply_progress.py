"""Follow an apply until it ends: progress bars on a terminal, lines elsewhere. Ctrl-C does not stop it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from fairway.cli.errors import INTERRUPTED
from fairway.cli.output.applies import outcome_lines
from fairway.cli.output.format import Format, show_document, text_width
from fairway.model.apply import OPEN_STATES, ApplyState
from fairway.model.errors import TemporaryError
from fairway.model.text import clean
from fairway.wire import policy as wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairway.client.client import Client

_EVERY_SECONDS: Final = 0.5
_PATIENCE_SECONDS: Final = 300.0
"""How long the server may be unreachable (a restart, a failover) before following is abandoned."""

Show = Callable[[wire.Apply], None]


def follow(client: Client, begun: wire.Apply, output: Format) -> None:
    """Show the progress and outcome of apply `begun`. Exits with 1 unless all changes were made."""
    try:
        _until_ended(client, begun)
    except KeyboardInterrupt:
        click.echo(
            f"\nthe server goes on with apply {begun.id}; look at it with:  fairway history {begun.id}",
            err=True,
        )
        raise click.exceptions.Exit(INTERRUPTED) from None
    ended = client.apply_detail(begun.id)
    show_document(ended, lambda: outcome_lines(ended, text_width()), output)
    if ended.state not in (ApplyState.DONE, ApplyState.SKIPPED):
        raise click.exceptions.Exit(1)


def _until_ended(client: Client, begun: wire.Apply) -> None:
    with _bars(begun) if sys.stderr.isatty() else _lines(begun) as show:
        seen, lost_at = begun, None
        while True:
            show(seen)
            if seen.state not in OPEN_STATES:
                return
            time.sleep(_EVERY_SECONDS)
            try:
                seen, lost_at = client.apply_progress(begun.id), None
            except TemporaryError as error:
                if lost_at is None:
                    lost_at = time.monotonic()
                    click.echo(f"{error.message}; the apply goes on, trying again", err=True)
                elif time.monotonic() - lost_at > _PATIENCE_SECONDS:
                    raise


@contextmanager
def _bars(begun: wire.Apply) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn("  {task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}", markup=False),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
    tasks = {c.cluster: progress.add_task(c.cluster, total=None, now="") for c in begun.clusters}

    def show(seen: wire.Apply) -> None:
        for c in seen.clusters:
            known = c.state is not ApplyState.WAITING
            progress.update(
                tasks[c.cluster],
                total=max(c.total, 1) if known else None,
                completed=c.done if c.state in OPEN_STATES else max(c.total, 1),
                now=clean(c.message or c.current or ("" if known else "waits for its turn"))[:40],
            )

    with progress:
        yield show


@contextmanager
def _lines(begun: wire.Apply) -> Iterator[Show]:
    told: dict[str, object] = {}

    def show(seen: wire.Apply) -> None:
        for c in seen.clusters:
            # One line for each new state and each tenth of the changes: a log should stay readable.
            now = (c.state, 10 * c.done // c.total if c.total else 0, c.code)
            if told.get(c.cluster) != now and c.state is ApplyState.RUNNING:
                held_up = f"; {clean(c.message)}" if c.code else ""
                click.echo(f"{c.cluster}: {c.done} of {c.total} changes made{held_up}", err=True)
            told[c.cluster] = now

    click.echo(f"apply {begun.id}: {', '.join(c.cluster for c in begun.clusters)}", err=True)
    yield show
