"""Print data to stdout in the format of `-o`, notes and empty states to stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, TextIO, TypeVar

import click
from pydantic import BaseModel

from fairway.cli.output.messages import show_hint
from fairway.cli.output.table import ScreenLine, TableView, fold, table
from fairway.model.text import clean, count, span

__all__ = ["UNKNOWN", "age", "count", "moment", "number", "price", "since", "span"]


UNKNOWN = "-"


def age(seconds: int | None) -> str:
    """Format an age; None is `never`."""
    return "never" if seconds is None else span(seconds)


def since(moment: datetime | None, now: datetime) -> str:
    """Format the time since `moment`; None is a dash."""
    return UNKNOWN if moment is None else span((now - moment).total_seconds())


def number(value: int | None) -> str:
    """Format a count; None (unknown) is a dash, not zero."""
    return UNKNOWN if value is None else str(value)


def price(value: Decimal) -> str:
    """Format an amount with two decimals, or all it has if more."""
    exponent = value.as_tuple().exponent
    return str(value) if isinstance(exponent, int) and exponent < -2 else f"{value:.2f}"


def moment(value: datetime | None, never: str) -> str:
    """Format a UTC time to the minute; None is `never`."""
    return never if value is None else value.strftime("%Y-%m-%d %H:%MZ")


COLUMNS: Final = 100
"""The width of a table if there is no terminal."""


Function = TypeVar("Function", bound=Callable[..., Any])


class Format(StrEnum):
    """The formats of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Shown:
    """Output in two forms: the data for programs, and its table for people."""

    data: Sequence[BaseModel]
    view: TableView


def output_option(function: Function) -> Function:
    """Add `-o/--output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([f.value for f in Format]),
        default=Format.TABLE.value,
        show_default=True,
        help="table fits the terminal, wide is never cut, json and yaml are for programs.",
        callback=lambda _ctx, _param, value: Format(value),
    )(function)


def show(shown: Shown, output: Format) -> None:
    """Print data once, in the given format."""
    match output:
        case Format.JSON:
            click.echo(json.dumps(plain(shown.data), indent=2, ensure_ascii=False))
        case Format.YAML:
            click.echo(yaml_text(plain(shown.data)), nl=False)
        case Format.TABLE | Format.WIDE:
            _show_table(shown.view, output)


def show_document(document: BaseModel, lines: Callable[[], Sequence[ScreenLine]], output: Format) -> None:
    """Print one object once: as a document for programs, as lines for people."""
    match output:
        case Format.JSON:
            click.echo(json.dumps(document.model_dump(mode="json"), indent=2, ensure_ascii=False))
        case Format.YAML:
            click.echo(yaml_text(document.model_dump(mode="json")), nl=False)
        case Format.TABLE | Format.WIDE:
            show_lines(lines())
    sys.stdout.flush()


def show_lines(lines: Sequence[ScreenLine], *, err: bool = False) -> None:
    """Print lines, coloured if the stream supports it."""
    colour = colourful(sys.stderr if err else sys.stdout)
    click.echo(
        "\n".join(click.style(x.text, fg=x.colour) if colour and x.colour else x.text for x in lines),
        err=err,
    )


def text_width() -> int | None:
    """Return the width to fold sentences to. Returns None without a terminal, so that pipes are greppable."""
    return columns() if sys.stdout.isatty() else None


def plain(data: Sequence[BaseModel]) -> list[dict[str, Any]]:
    """Convert models to JSON-compatible dictionaries."""
    return [item.model_dump(mode="json") for item in data]


def yaml_text(document: Any) -> str:
    """Format `document` as YAML."""
    from io import StringIO

    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.representer.sort_base_mapping_type_on_output = False
    yaml.allow_unicode = True
    out = StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def table_lines(view: TableView, output: Format, *, colour: bool) -> list[str]:
    """Format a table as lines, coloured if `colour` is set."""
    width = None if output is Format.WIDE else columns()
    heading, *rows = table(view.columns, view.rows, width)
    if not colour:
        return [heading, *rows]
    return [
        click.style(heading, bold=True),
        *(click.style(row, fg="yellow") if i in view.alarming else row for i, row in enumerate(rows)),
    ]


def note_lines(view: TableView) -> list[str]:
    """Format the notes below a table; folded only on a terminal, so that a pipe can be searched."""
    if not sys.stdout.isatty():
        return [clean(note) for note in view.notes]
    return [line for note in view.notes for line in fold(clean(note), columns())]


def columns() -> int:
    """Return the width of a table: the terminal's, or COLUMNS, or 100."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size((COLUMNS, 24)).columns
    return COLUMNS


def colourful(stream: TextIO | None = None) -> bool:
    """Return whether `stream` (default stdout) supports colours: a terminal, and NO_COLOR is not set."""
    return (
        (stream or sys.stdout).isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def _show_table(view: TableView, output: Format) -> None:
    if not view.rows:
        click.echo(view.empty, err=True)
        show_hint(view.hint)
        return
    click.echo("\n".join(table_lines(view, output, colour=colourful())))
    if view.notes:
        sys.stdout.flush()
        click.echo("\n" + "\n".join(note_lines(view)), err=True)
