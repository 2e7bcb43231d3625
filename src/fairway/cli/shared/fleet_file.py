"""Read a fleet file as text to send to a server, which checks it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click

from fairway.cli.output.format import Function
from fairway.model.errors import PermanentError
from fairway.model.text import clean
from fairway.wire.policy import MAX_FLEET_CHARACTERS

MAX_SOURCE = 300


class FleetText(NamedTuple):
    """The text of a fleet file, not parsed, and the name to use for it in messages."""

    text: str
    source: str


def file_option(*, required: bool) -> Callable[[Function], Function]:
    """Add `-f/--file`."""
    return click.option(
        "-f",
        "--file",
        required=required,
        metavar="FILE",
        help="Fleet file; `-` reads stdin.",
    )


def read_fleet_text(file: str) -> FleetText:
    """Read a fleet file, or standard input if `file` is `-`."""
    source = "<stdin>" if file == "-" else clean(file)[:MAX_SOURCE]
    try:
        if file == "-":
            data = sys.stdin.buffer.read(4 * MAX_FLEET_CHARACTERS + 1)
        else:
            with Path(file).open("rb") as stream:
                data = stream.read(4 * MAX_FLEET_CHARACTERS + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PermanentError("NotUtf8", f"{source} is not UTF-8 text", "save the file as UTF-8") from error
    except (OSError, ValueError) as error:
        raise PermanentError(
            "FileUnreadable",
            f"cannot read {source}: {getattr(error, 'strerror', None) or error}",
            "name a file that exists and that you may read",
        ) from error
    if len(text) > MAX_FLEET_CHARACTERS:
        raise PermanentError(
            "FileTooLarge",
            f"{source} is larger than {MAX_FLEET_CHARACTERS:,} characters",
            "check that this is a fleet file: even one with thousands of teams is smaller",
        )
    if not text.strip():
        raise PermanentError(
            "EmptyFile", f"{source} is empty", "start from an example:  examples/quickstart.yaml"
        )
    return FleetText(text, source)
