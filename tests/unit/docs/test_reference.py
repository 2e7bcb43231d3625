"""The committed reference says what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES: dict[Path, str] = runpy.run_path(str(ROOT / "docs/reference/generate.py"))["pages"]()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_is_up_to_date(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page], "run `make reference`"
