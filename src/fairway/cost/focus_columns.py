"""The columns of a FOCUS file: 1.2's, the split-cost ones of 1.3, and our own, which begin with x_."""

from __future__ import annotations

from typing import Final

FOCUS_VERSION: Final = "1.2"

COLUMNS: Final[tuple[str, ...]] = ("BilledCost",)
