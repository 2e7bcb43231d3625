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
    Shown,
    colourful,
    note_lines,
    plain,
    span,
    table_lines,
    yaml_text,
)
from fairway.model.errors import TemporaryError

Fetch = Callable[[], Shown]


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

    console = Console(no_color=not colourful(), highlight=False)
    lines: list[str] = ["waiting for the first answer"]
    lost_at: float | None = None
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            trouble = ""
            try:
                lines, lost_at = fetch(), None
            except TemporaryError as error:
                lost_at = lost_at or time.monotonic()
                trouble = f"{error.message} (for {span(time.monotonic() - lost_at)}; trying again)"
            footer = trouble or f"{datetime.now(UTC):%H:%M:%S}Z, every {every_seconds:g} s; Ctrl-C ends"
            body = [*lines, "", click.style(footer, fg="red" if trouble else None, dim=not trouble)]
            live.update(Text.from_ansi("\n".join(body), no_wrap=True, overflow="crop"), refresh=True)
            time.sleep(every_seconds)


def _screen(shown: Shown, output: Format) -> list[str]:
    view = shown.view
    if not view.rows:
        return [view.empty, f"hint: {view.hint}"]
    notes = ["", *note_lines(view)] if view.notes else []
    return [*table_lines(view, output, colour=colourful()), *notes]


def _watch_appending(fetch: Fetch, output: Format, every_seconds: float) -> None:
    told = False
    while True:
        try:
            click.echo(_document(fetch(), output))
            sys.stdout.flush()
            told = False
        except TemporaryError as error:
            if not told:  # once per outage, not per attempt
                click.echo(f"{error.message}; trying again", err=True)
            told = True
        time.sleep(every_seconds)


def _document(shown: Shown, output: Format) -> str:
    """Format one refresh so that others can follow: a JSON line, a YAML document, a table with its time."""
    match output:
        case Format.JSON:
            return json.dumps(plain(shown.data), ensure_ascii=False, separators=(",", ":"))
        case Format.YAML:
            return "---\n" + yaml_text(plain(shown.data)).rstrip("\n")
        case _:
            return "\n".join([f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", *_screen(shown, output), ""])
