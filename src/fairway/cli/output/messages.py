"""Print errors and hints: on stderr, coloured, folded to the width of the terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence

import click


def show_error(message: str, hint: str, details: Sequence[str] = ()) -> None:
    """Print an error with its details and hint to stderr."""
    print_labelled("error:", "red", message)
    for line in details:
        print_labelled("", "", f"  {line}")
    show_hint(hint)


def show_hint(hint: str) -> None:
    """Print a hint after a blank line."""
    click.echo(err=True)
    print_labelled("hint:", "cyan", hint)


def print_labelled(label_text: str, colour: str, text: str) -> None:
    """Print a sentence to stderr after a coloured word; folded only on a terminal."""
    lines = [f"{label_text} {text}" if label_text else text]
    if sys.stderr.isatty():
        import shutil

        lines = fold(lines[0], shutil.get_terminal_size((100, 24)).columns)
    first = label(label_text, colour) + lines[0].removeprefix(label_text) if label_text else lines[0]
    click.echo("\n".join([first, *lines[1:]]), err=True)


def fold(text: str, width: int) -> list[str]:
    """Wrap a sentence between words; continuation lines are indented."""
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text, width, subsequent_indent=indent + "  ", break_long_words=False, break_on_hyphens=False
    ) or [""]


def label(text: str, colour: str) -> str:
    """Colour the first word of a message, unless NO_COLOR is set."""
    # click omits colours where there is no terminal, but does not support NO_COLOR.
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=colour, bold=True)
