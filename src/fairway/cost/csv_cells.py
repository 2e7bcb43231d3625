"""Escape text in CSV files that spreadsheets open."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_FORMULA: Final = frozenset("=+-@\t\r")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def escape_cell(value: object) -> object:
    """Prefix text that a spreadsheet would run as a formula with an apostrophe; return other values as is.

    Names of jobs and users are untrusted input, and the reader of the file trusts it.
    """
    return escape_row((value,))[0] if isinstance(value, str) else value


def escape_row(cells: Iterable[str]) -> list[str]:
    """Escape a row of text. Almost all cells need nothing, and are not worth a call each."""
    return [f"'{cell}" if cell[:1] in _FORMULA and not _NUMBER.fullmatch(cell) else cell for cell in cells]
