"""Print errors and hints: on stderr, coloured, folded to the width of the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click


def show_error(message: str, hint: str, details: Sequence[str] = ()) -> None:
    """Print an error with its details and hint to stderr."""
    say("error:", "red", message)
    for line in details:
        say("", "", f"  {line}")
    show_hint(hint)


def show_hint(hint: str) -> None:
    """Print a hint after a blank line."""
    click.echo(err=True)
    say("hint:", "cyan", hint)


def say(word: str, colour: str, text: str) -> None:
    """Print a sentence to stderr after a coloured word; folded only on a terminal."""
    lines = [f"{word} {text}" if word else text]
    if sys.stderr.isatty():
        import shutil

        from fairway.cli.output.table import fold

        lines = fold(lines[0], shutil.get_terminal_size((100, 24)).columns)
    first = label(word, colour) + lines[0].removeprefix(word) if word else lines[0]
    click.echo("\n".join([first, *lines[1:]]), err=True)


def label(text: str, colour: str) -> str:
    """Colour the first word of a message, unless NO_COLOR is set."""
    # click omits colours where there is no terminal, but does not support NO_COLOR.
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour, bold=True)
