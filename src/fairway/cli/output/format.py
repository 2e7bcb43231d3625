"""Print data in the format of `-o`, lay out tables, and format ages, times and numbers for people.

Data goes to stdout, notes and messages about empty results to stderr.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO, TypeVar

import click

from fairway.cli.output.messages import fold, show_hint
from fairway.model.text import clean, count, span

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["UNKNOWN", "age", "count", "moment", "number", "price", "since", "span"]

COLUMNS: Final = 100
"""The width of a table if there is no terminal."""
UNKNOWN = "-"
_GAP: Final = "  "
_ELLIPSIS: Final = "…"
_MIN_WIDTH: Final = 6

Function = TypeVar("Function", bound=Callable[..., Any])


class Format(StrEnum):
    """The formats of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


DATA_FORMATS: Final = frozenset({Format.JSON, Format.YAML})
"""Formats for programs, which show data as it is."""


class Fit(Enum):
    """How a column is shortened if the table is too wide."""

    KEEP = "keep"
    MIDDLE = "middle"
    """For names: both ends distinguish them."""
    END = "end"
    """For sentences: the beginning matters most."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, alignment, and how it is shortened."""

    title: str
    right: bool = False
    fit: Fit = Fit.KEEP
    hide_if_empty: bool = False

    @classmethod
    def names(cls, *titles: str) -> list[Column]:
        """Return columns of names."""
        return [cls(title, fit=Fit.MIDDLE) for title in titles]

    @classmethod
    def numbers(cls, *titles: str) -> list[Column]:
        """Return columns of numbers."""
        return [cls(title, right=True) for title in titles]


@dataclass(frozen=True, slots=True)
class TableView:
    """A table, the notes below it, and the message to print if it has no rows."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    empty: str
    hint: str
    """What to do next if the table is empty."""
    notes: Sequence[str] = ()
    alarming: frozenset[int] = frozenset()
    """Rows to highlight because they need attention."""


NO_TABLE: Final = TableView((), (), "", "")
"""For output that is only data."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Output in two forms: the data for programs, and its table for people."""

    data: Sequence[BaseModel]
    view: TableView = NO_TABLE


class ScreenLine(NamedTuple):
    """A line of output and its optional colour."""

    text: str = ""
    colour: str | None = None


def output_option(function: Function) -> Function:
    """Add `-o/--output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([f.value for f in Format]),
        default=Format.TABLE.value,
        show_default=True,
        help="Output format. `wide` shows more columns and never cuts them.",
        callback=lambda _ctx, _param, value: Format(value),
    )(function)


def show(listing: Listing, output: Format) -> None:
    """Print data once, in the given format."""
    if output in DATA_FORMATS:
        click.echo(data_text(to_dicts(listing.data), output), nl=False)
    else:
        _show_table(listing.view, output)


def show_document(document: BaseModel, lines: Callable[[], Sequence[ScreenLine]], output: Format) -> None:
    """Print one object once: as a document for programs, as lines for people."""
    if output in DATA_FORMATS:
        click.echo(data_text(to_dicts([document])[0], output), nl=False)
    else:
        show_lines(lines())
    sys.stdout.flush()


def show_lines(lines: Sequence[ScreenLine], *, err: bool = False) -> None:
    """Print lines, coloured if the stream supports it."""
    colour = supports_colour(sys.stderr if err else sys.stdout)
    click.echo(
        "\n".join(click.style(x.text, fg=x.colour) if colour and x.colour else x.text for x in lines),
        err=err,
    )


def to_dicts(data: Sequence[BaseModel]) -> list[dict[str, Any]]:
    """Convert models to JSON-compatible dictionaries; the records of a Reader are such already."""
    return [item if isinstance(item, dict) else item.model_dump(mode="json") for item in data]


def data_text(data: Any, output: Format) -> str:
    """Format JSON-compatible data as JSON, or as YAML if `output` is YAML."""
    return yaml_text(data) if output is Format.YAML else json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def yaml_text(document: Any) -> str:
    """Format `document` as YAML."""
    from io import StringIO

    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.representer.sort_base_mapping_type_on_output = False
    yaml.allow_unicode = True
    yaml.representer.add_multi_representer(dict, type(yaml.representer).represent_dict)  # also of a Reader
    out = StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def _show_table(view: TableView, output: Format) -> None:
    if not view.rows:
        click.echo(view.empty, err=True)
        show_hint(view.hint)
        return
    click.echo("\n".join(table_lines(view, output, colour=supports_colour())))
    if view.notes:
        sys.stdout.flush()
        click.echo("\n" + "\n".join(note_lines(view)), err=True)


def text_width() -> int | None:
    """Return the width to fold sentences to. Returns None without a terminal, so that pipes are greppable."""
    return table_width() if sys.stdout.isatty() else None


def table_width() -> int:
    """Return the width of a table: the terminal's, or COLUMNS, or 100."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size((COLUMNS, 24)).columns
    return COLUMNS


def supports_colour(stream: TextIO | None = None) -> bool:
    """Return whether `stream` (default stdout) supports colours: a terminal, and NO_COLOR is not set."""
    return (
        (stream or sys.stdout).isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def table_lines(view: TableView, output: Format, *, colour: bool) -> list[str]:
    """Format a table as lines, coloured if `colour` is set."""
    width = None if output is Format.WIDE else table_width()
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
    return [line for note in view.notes for line in fold(clean(note), table_width())]


def folded(text: str, width: int | None, colour: str | None = None) -> list[ScreenLine]:
    """Fold a sentence that may hold anything into lines of one colour. `width` None: one line."""
    cleaned = clean(text)
    return [ScreenLine(line, colour) for line in (fold(cleaned, width) if width else [cleaned])]


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Format a table as lines, heading first. With `width` None, columns are not shortened."""
    visible = [i for i, c in enumerate(columns) if not c.hide_if_empty or any(row[i] for row in rows)]
    columns = [columns[i] for i in visible]
    cells = [[clean(row[i]) for i in visible] for row in rows]
    full_widths = [
        max([cell_width(c.title), *(cell_width(row[i]) for row in cells)]) for i, c in enumerate(columns)
    ]
    widths = full_widths if width is None else _squeeze(columns, full_widths, width)
    lines = [[c.title for c in columns], *cells]
    return [
        _GAP.join(_cell(c, text, w) for c, text, w in zip(columns, line, widths, strict=True)).rstrip()
        for line in lines
    ]


def cell_width(text: str) -> int:
    """Return the number of terminal cells `text` occupies."""
    if text.isascii():
        return len(text)
    return sum(_char_width(ch) for ch in text)


def shorten(text: str, width: int, fit: Fit) -> str:
    """Shorten `text` to at most `width` cells, with an ellipsis where text was removed."""
    if cell_width(text) <= width:
        return text
    width -= 1
    if fit is Fit.END:
        return _take(text, width) + _ELLIPSIS
    tail = _take(text[::-1], width // 2)[::-1]
    return _take(text, width - cell_width(tail)) + _ELLIPSIS + tail


def _squeeze(columns: Sequence[Column], full_widths: Sequence[int], width: int) -> list[int]:
    """Shrink the widest column that can be shortened, one cell at a time, until the table fits."""
    widths = list(full_widths)
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while excess > 0:
        candidates = [i for i, c in enumerate(columns) if c.fit is not Fit.KEEP and widths[i] > _MIN_WIDTH]
        if not candidates:
            break
        widths[max(candidates, key=lambda i: (columns[i].fit is Fit.END, widths[i]))] -= 1
        excess -= 1
    return widths


def _cell(column: Column, text: str, width: int) -> str:
    text = shorten(text, width, column.fit)
    padding = " " * (width - cell_width(text))
    return padding + text if column.right else text + padding


def _take(text: str, width: int) -> str:
    """Return the beginning of `text` that fits into `width` cells."""
    taken, used = [], 0
    for ch in text:
        used += _char_width(ch)
        if used > width:
            break
        taken.append(ch)
    return "".join(taken)


def _char_width(ch: str) -> int:
    if unicodedata.combining(ch):
        return 0
    return 2 if unicodedata.east_asian_width(ch) in "WF" else 1


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
