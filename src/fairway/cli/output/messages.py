"""Print errors and hints: on stderr, coloured, folded to the width of the terminal."""

from __future__ import annotations

import os
import re
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

import click

_WITHOUT_SERVER: Final = (
    "completion",
    "context",
    "demo",
    "help",
    "ledger",
    "login",
    "schema",
    "server",
    "version",
)
_GROUPS: Final = ("export", "get", "price", "report", "session", "token")
_COMMAND: Final = re.compile(
    rf"\bfairway (?!(?:{'|'.join(_WITHOUT_SERVER)})\b)(?:(?:{'|'.join(_GROUPS)}) )?[a-z][a-z-]*(?![\w.])"
)


def show_error(message: str, hint: str, details: Sequence[str] = ()) -> None:
    """Print an error with its details and hint to stderr."""
    print_labelled("error:", "red", message)
    for line in details:
        print_labelled("", "", f"  {line}")
    show_hint(hint)


def show_hint(hint: str) -> None:
    """Print a hint after a blank line, with the commands in it for the same server."""
    click.echo(err=True)
    print_labelled("hint:", "cyan", in_context(hint))


def in_context(text: str) -> str:
    """Add the `--context` or `--url` of the running command to the commands in a text."""
    running = click.get_current_context(silent=True)
    return for_same_server(text, running.params) if running is not None else text


def for_same_server(text: str, given: Mapping[str, object]) -> str:
    """Add the given `context` or `url` to each command in a text that takes it."""
    flags = [f"--{name} {shlex.quote(str(given[name]))}" for name in ("context", "url") if given.get(name)]
    if not flags or flags[0] in text:
        return text
    return _COMMAND.sub(lambda found: f"{found[0]} {flags[0]}", text)


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
