"""Text in files that spreadsheets open."""

from __future__ import annotations

import re
from typing import Final

_FORMULA: Final = re.compile(r"[=+\-@\t\r]")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def plain(value: object) -> object:
    """The value, with an apostrophe before text that a spreadsheet would take for a formula.

    Names of jobs and people come from anywhere, and whoever opens the file trusts it.
    """
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
