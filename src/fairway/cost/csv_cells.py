"""Escape text in CSV files that spreadsheets open."""

from __future__ import annotations

import re
from typing import Final

_FORMULA: Final = re.compile(r"[=+\-@\t\r]")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def escape_cell(value: object) -> object:
    """Prefix text that a spreadsheet would run as a formula with an apostrophe; return other values as is.

    Names of jobs and users are untrusted input, and the reader of the file trusts it.
    """
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
