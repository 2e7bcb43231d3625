"""A job's name is no formula."""

from __future__ import annotations

import pytest

from fairway.cost.csv_cells import escape_cell


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd", "@SUM(A1)", "\t=1", "\r=1"])
def test_what_a_spreadsheet_would_run_is_text(text: str) -> None:
    assert escape_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["train", "-1.50", "+3", "12", "", "a=b", -1, None])
def test_all_else_stays(value: object) -> None:
    assert escape_cell(value) is value
