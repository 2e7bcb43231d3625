"""Implement `--watch`: in place on a terminal, appended elsewhere; it retries while the server restarts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import click

from fairway.cli.output.format import (
    Format,
    Listing,
    note_lines,
    span,
    supports_colour,
    table_lines,
    to_dicts,
    yaml_text,
)
from fairway.model.errors import TemporaryError

Fetch = Callable[[], Listing]


def watch(fetch: Fetch, output: Format, every_seconds: float) -> None:
    """Print the result of `fetch` repeatedly until Ctrl-C. Temporary errors are retried, others end it."""
    if output in (Format.TABLE, Format.WIDE) and sys.stdout.isatty():
        watch_in_place(lambda: _screen(fetch(), output), every_seconds)
    else:
        _watch_appending(fetch, output, every_seconds)


def watch_in_place(fetch: Callable[[], list[str]], every_seconds: float) -> None:
    """Show the lines of `fetch` in place on a terminal, repeatedly until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(no_color=not supports_colour(), highlight=False)
    lines: list[str] = ["waiting for the server"]
    outage_start: float | None = None
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            problem = ""
            try:
                lines, outage_start = fetch(), None
            except TemporaryError as error:
                outage_start = outage_start or time.monotonic()
                problem = f"{error.message} (for {span(time.monotonic() - outage_start)}; retrying)"
            footer = problem or f"{datetime.now(UTC):%H:%M:%S}Z, every {every_seconds:g} s; Ctrl-C to quit"
            body = [*lines, "", click.style(footer, fg="red" if problem else None, dim=not problem)]
            live.update(Text.from_ansi("\n".join(body), no_wrap=True, overflow="crop"), refresh=True)
            time.sleep(every_seconds)


def _screen(listing: Listing, output: Format) -> list[str]:
    view = listing.view
    if not view.rows:
        return [view.empty, f"hint: {view.hint}"]
    notes = ["", *note_lines(view)] if view.notes else []
    return [*table_lines(view, output, colour=supports_colour()), *notes]


def _watch_appending(fetch: Fetch, output: Format, every_seconds: float) -> None:
    reported = False
    while True:
        try:
            click.echo(_document(fetch(), output))
            sys.stdout.flush()
            reported = False
        except TemporaryError as error:
            if not reported:  # once per outage, not per attempt
                click.echo(f"{error.message}; retrying", err=True)
            reported = True
        time.sleep(every_seconds)


def _document(listing: Listing, output: Format) -> str:
    """Format one refresh so that others can follow: a JSON line, a YAML document, a table with its time."""
    match output:
        case Format.JSON:
            return json.dumps(to_dicts(listing.data), ensure_ascii=False, separators=(",", ":"))
        case Format.YAML:
            return "---\n" + yaml_text(to_dicts(listing.data)).rstrip("\n")
        case _:
            return "\n".join([f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", *_screen(listing, output), ""])
