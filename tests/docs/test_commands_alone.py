"""Every command of pages that start servers themselves is typed, and must do what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.desk import follow_page, page_name
from tests.docs.reading import typed_pages

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("page", typed_pages("empty"), ids=page_name)
def test_every_command_does_what_the_page_shows(page: Path) -> None:
    follow_page(page, {})


@pytest.mark.parametrize("page", typed_pages("ledger"), ids=page_name)
def test_every_command_on_a_ledger_of_its_own(page: Path, database_url: str) -> None:
    follow_page(page, {"FAIRWAY_DATABASE_URL": database_url})
