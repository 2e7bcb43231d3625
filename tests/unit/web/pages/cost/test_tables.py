"""What the pages of cost say beside a figure."""

from __future__ import annotations

from decimal import Decimal

import pytest

from fairway.web.pages.cost.tables import compared


@pytest.mark.parametrize(
    ("now", "before", "said"),
    [
        ("112", "100", "12 % more than before"),
        ("88", "100", "12 % less than before"),
        ("2500", "100", "2,400 % more than before"),
        ("0", "100", "100 % less than before"),
        ("100.4", "100", "as before"),
        ("100.5", "100", "as before"),
        ("100.6", "100", "1 % more than before"),
        ("5", "0", ""),
        ("5", None, ""),
    ],
)
def test_how_a_figure_compares(now: str, before: str | None, said: str) -> None:
    assert compared(Decimal(now), None if before is None else Decimal(before)) == said
