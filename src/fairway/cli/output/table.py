"""Format tables as text: rows in, lines out, no wider than `width` if columns can be shortened. Pure."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from fairway.model.text import clean

_GAP: Final = "  "
_ELLIPSIS: Final = "…"
_NARROWEST: Final = 6


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


class ScreenLine(NamedTuple):
    """A line of output and its optional colour."""

    text: str = ""
    colour: str | None = None


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Format a table as lines, heading first. With `width` None, columns are not shortened."""
    shown = [i for i, c in enumerate(columns) if not c.hide_if_empty or any(row[i] for row in rows)]
    columns = [columns[i] for i in shown]
    cells = [[clean(row[i]) for i in shown] for row in rows]
    wanted = [
        max([cells_wide(c.title), *(cells_wide(row[i]) for row in cells)]) for i, c in enumerate(columns)
    ]
    widths = wanted if width is None else _squeeze(columns, wanted, width)
    lines = [[c.title for c in columns], *cells]
    return [
        _GAP.join(_cell(c, text, w) for c, text, w in zip(columns, line, widths, strict=True)).rstrip()
        for line in lines
    ]


def cells_wide(text: str) -> int:
    """Return the number of terminal cells `text` occupies."""
    if text.isascii():
        return len(text)
    return sum(_char_cells(ch) for ch in text)


def shorten(text: str, width: int, fit: Fit) -> str:
    """Shorten `text` to at most `width` cells, with an ellipsis where text was removed."""
    if cells_wide(text) <= width:
        return text
    room = width - 1
    if fit is Fit.END:
        return _take(text, room) + _ELLIPSIS
    tail = _take(text[::-1], room // 2)[::-1]
    return _take(text, room - cells_wide(tail)) + _ELLIPSIS + tail


def fold(text: str, width: int) -> list[str]:
    """Wrap a sentence between words; continuation lines are indented."""
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text, width, subsequent_indent=indent + "  ", break_long_words=False, break_on_hyphens=False
    ) or [""]


def folded(text: str, width: int | None, colour: str | None = None) -> list[ScreenLine]:
    """Fold a sentence that may hold anything into lines of one colour. `width` None: one line."""
    cleaned = clean(text)
    return [ScreenLine(line, colour) for line in (fold(cleaned, width) if width else [cleaned])]


def _squeeze(columns: Sequence[Column], wanted: Sequence[int], width: int) -> list[int]:
    """Shrink the widest column that can be shortened, one cell at a time, until the table fits."""
    widths = list(wanted)
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while excess > 0:
        givers = [i for i, c in enumerate(columns) if c.fit is not Fit.KEEP and widths[i] > _NARROWEST]
        if not givers:
            break
        widths[max(givers, key=lambda i: (columns[i].fit is Fit.END, widths[i]))] -= 1
        excess -= 1
    return widths


def _cell(column: Column, text: str, width: int) -> str:
    text = shorten(text, width, column.fit)
    padding = " " * (width - cells_wide(text))
    return padding + text if column.right else text + padding


def _take(text: str, width: int) -> str:
    taken, used = [], 0
    for ch in text:
        used += _char_cells(ch)
        if used > width:
            break
        taken.append(ch)
    return "".join(taken)


def _char_cells(ch: str) -> int:
    if unicodedata.combining(ch):
        return 0
    return 2 if unicodedata.east_asian_width(ch) in "WF" else 1
