"""Data to stdout in the shape asked for; notes and empty states to stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TextIO, TypeVar

import click
from pydantic import BaseModel

from fairway.cli.failures import show_hint
from fairway.cli.layout import Line, fold, table
from fairway.cli.views import View
from fairway.model.wording import clean

COLUMNS: Final = 100
"""How wide a table may be when there is no terminal to ask."""

Function = TypeVar("Function", bound=Callable[..., Any])


class Format(StrEnum):
    """The shapes of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Shown:
    """Something to show: the data itself for programs, and its view for people."""

    data: Sequence[BaseModel]
    view: View


def output_option(function: Function) -> Function:
    """Adds `-o/--output`."""
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
    """Print once."""
    match output:
        case Format.JSON:
            click.echo(json.dumps(plain(shown.data), indent=2, ensure_ascii=False))
        case Format.YAML:
            click.echo(yaml_text(plain(shown.data)), nl=False)
        case Format.TABLE | Format.WIDE:
            _show_table(shown.view, output)


def show_document(document: BaseModel, lines: Callable[[], Sequence[Line]], output: Format) -> None:
    """Print one thing once: as a document for programs, as lines for people."""
    match output:
        case Format.JSON:
            click.echo(json.dumps(document.model_dump(mode="json"), indent=2, ensure_ascii=False))
        case Format.YAML:
            click.echo(yaml_text(document.model_dump(mode="json")), nl=False)
        case Format.TABLE | Format.WIDE:
            show_lines(lines())
    sys.stdout.flush()


def show_lines(lines: Sequence[Line], *, err: bool = False) -> None:
    """Print a screen, coloured where colours are wanted."""
    colour = colourful(sys.stderr if err else sys.stdout)
    click.echo(
        "\n".join(click.style(x.text, fg=x.colour) if colour and x.colour else x.text for x in lines),
        err=err,
    )


def text_width() -> int | None:
    """How wide sentences may be: folded only where somebody reads them, so that a pipe can be searched."""
    return columns() if sys.stdout.isatty() else None


def plain(data: Sequence[BaseModel]) -> list[dict[str, Any]]:
    """The data as JSON knows it."""
    return [item.model_dump(mode="json") for item in data]


def yaml_text(document: Any) -> str:
    """`document` as YAML."""
    from io import StringIO

    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.representer.sort_base_mapping_type_on_output = False
    yaml.allow_unicode = True
    out = StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def table_lines(view: View, output: Format, *, colour: bool) -> list[str]:
    """The table as it is printed."""
    width = None if output is Format.WIDE else columns()
    heading, *rows = table(view.columns, view.rows, width)
    if not colour:
        return [heading, *rows]
    return [
        click.style(heading, bold=True),
        *(click.style(row, fg="yellow") if i in view.alarming else row for i, row in enumerate(rows)),
    ]


def note_lines(view: View) -> list[str]:
    """What is said beneath the table; folded only where somebody reads it, so that a pipe can be searched."""
    if not sys.stdout.isatty():
        return [clean(note) for note in view.notes]
    return [line for note in view.notes for line in fold(clean(note), columns())]


def columns() -> int:
    """How wide a table may be: the terminal, or COLUMNS, or 100."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size((COLUMNS, 24)).columns
    return COLUMNS


def colourful(stream: TextIO | None = None) -> bool:
    """Whether stdout wants colours: a terminal, and nobody said NO_COLOR."""
    return (
        (stream or sys.stdout).isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def _show_table(view: View, output: Format) -> None:
    if not view.rows:
        click.echo(view.empty, err=True)
        show_hint(view.hint)
        return
    click.echo("\n".join(table_lines(view, output, colour=colourful())))
    if view.notes:
        sys.stdout.flush()
        click.echo("\n" + "\n".join(note_lines(view)), err=True)
