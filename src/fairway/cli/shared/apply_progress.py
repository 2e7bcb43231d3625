"""Follow an apply until it ends: progress bars on a terminal, lines elsewhere. Ctrl-C does not stop it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

import click

from fairway.cli.errors import INTERRUPTED
from fairway.cli.output.applies import outcome_lines
from fairway.cli.output.fleet import condition_notes
from fairway.cli.output.format import Format, show_document, text_width
from fairway.cli.output.messages import in_context
from fairway.client.client import Client
from fairway.model.apply import OPEN_STATES, ApplyState
from fairway.model.condition import ConditionType
from fairway.model.errors import TemporaryError
from fairway.model.text import clean
from fairway.wire import policy as wire

_EVERY_SECONDS: Final = 0.5
_MAX_OUTAGE_SECONDS: Final = 300.0
"""How long the server may be unreachable (a restart, a failover) before following is abandoned."""

_AFTER_APPLY: Final = (ConditionType.INSTALL_PENDING, ConditionType.ACCOUNTING_DETACHED)

Show = Callable[[wire.Apply], None]


def follow(client: Client, pending: wire.Apply, output: Format) -> None:
    """Show the progress and outcome of apply `pending`. Exits with 1 unless all changes were made."""
    try:
        _until_ended(client, pending)
    except KeyboardInterrupt:
        step = in_context(f"fairway history {pending.id}")
        click.echo(f"\nThe server continues with apply {pending.id}. Follow it with:  {step}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    ended = client.apply_detail(pending.id)
    show_document(ended, lambda: outcome_lines(ended, text_width()), output)
    if output in (Format.TABLE, Format.WIDE):
        _show_pending(client, [c.cluster for c in ended.clusters if c.state is ApplyState.DONE])
    if ended.state not in (ApplyState.DONE, ApplyState.SKIPPED):
        raise click.exceptions.Exit(1)


def _show_pending(client: Client, applied: Collection[str]) -> None:
    """Show what an applied policy still lacks: files to install, an engine that does not get the changes."""
    clusters = [c for c in client.clusters() if c.name in applied]
    notes = condition_notes(clusters, datetime.now(UTC), _AFTER_APPLY)
    if notes:
        click.echo("\nApplied, but not complete:", err=True)
        click.echo("\n".join(f"  {line}" for line in notes), err=True)


def _until_ended(client: Client, pending: wire.Apply) -> None:
    with _bars(pending) if sys.stderr.isatty() else _lines(pending) as show:
        apply, outage_start = pending, None
        while True:
            show(apply)
            if apply.state not in OPEN_STATES:
                return
            time.sleep(_EVERY_SECONDS)
            try:
                apply, outage_start = client.apply_progress(pending.id), None
            except TemporaryError as error:
                if outage_start is None:
                    outage_start = time.monotonic()
                    click.echo(f"{error.message}; the apply continues, retrying", err=True)
                elif time.monotonic() - outage_start > _MAX_OUTAGE_SECONDS:
                    raise


@contextmanager
def _bars(pending: wire.Apply) -> Iterator[Show]:
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
    tasks = {c.cluster: progress.add_task(c.cluster, total=None, now="") for c in pending.clusters}

    def show(apply: wire.Apply) -> None:
        for c in apply.clusters:
            started = c.state is not ApplyState.WAITING
            progress.update(
                tasks[c.cluster],
                total=max(c.total, 1) if started else None,
                completed=c.done if c.state in OPEN_STATES else max(c.total, 1),
                now=clean(c.message or c.current or ("" if started else "waiting for its turn"))[:40],
            )

    with progress:
        yield show


@contextmanager
def _lines(pending: wire.Apply) -> Iterator[Show]:
    printed: dict[str, object] = {}

    def show(apply: wire.Apply) -> None:
        for c in apply.clusters:
            # One line for each new state and each tenth of the changes: a log should stay readable.
            progress = (c.state, 10 * c.done // c.total if c.total else 0, c.code)
            if printed.get(c.cluster) != progress and c.state is ApplyState.RUNNING:
                problem = f"; {clean(c.message)}" if c.code else ""
                click.echo(f"{c.cluster}: {c.done} of {c.total} changes made{problem}", err=True)
            printed[c.cluster] = progress

    click.echo(f"apply {pending.id}: {', '.join(c.cluster for c in pending.clusters)}", err=True)
    yield show
