"""Charts are read by keyboard, stack by team or pool, and are tables too; slow parts arrive later."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.pages.browser import Visitor

pytestmark = pytest.mark.timeout(180)


def test_the_chart_of_the_fleet(admin: Visitor) -> None:
    admin.open("/fleet?window=30d")
    page = admin.page
    expect(page.locator("#fleet-plot canvas")).to_be_visible()
    reading, key = page.locator("#fleet-plot-reading"), page.locator("#fleet-plot-key")
    expect(reading).to_contain_text(re.compile(r"Average [\d.,]+ of [\d.,]+ GPUs in use"))
    for name in ("nlp", "idle", "capacity (GPUs in all)", "queued (requested by waiting jobs)"):
        expect(key).to_contain_text(name)
    page.locator("#fleet-plot").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    expect(reading).to_contain_text(re.compile(r"^\d{4}-\d\d-\d\d: .*idle .*capacity"))
    page.get_by_role("button", name="By pool").click()
    expect(key).to_contain_text("hpc-a100")
    page.get_by_text("Show as a table").first.click()
    expect(page.locator("#fleet-plot-table tbody tr")).to_have_count(30)


def test_slow_parts_and_the_range_follow(admin: Visitor) -> None:
    admin.open("/fleet?window=24h")
    page = admin.page
    expect(page.locator("#held-h")).to_have_text("Held and busy, 24 h")
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    page.get_by_role("link", name="hpc-a100", exact=True).first.click()
    expect(page.get_by_role("navigation", name="Time range").locator("[aria-current]")).to_have_text("24 h")
    page.get_by_role("link", name="By user").click()
    expect(page.locator(".map-key")).to_contain_text("on loan")
    admin.open("/cost")
    expect(page.get_by_role("navigation", name="Time range").locator("[aria-current]")).to_have_text("Today")
