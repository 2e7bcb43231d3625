"""What leaves as a file, and what a fleet file would change."""

from __future__ import annotations

import csv
import json
import re

import pytest
from playwright.sync_api import expect

from fairway.wire.policy import PlanFile
from tests.pages.browser import Visitor


@pytest.mark.parametrize("kind", ["CSV", "JSON", "FOCUS"])
def test_export(kind: str, admin: Visitor) -> None:
    admin.open("/cost?window=2d")
    with admin.page.expect_download() as waiting:
        admin.page.locator(".export").get_by_role("link", name=kind, exact=True).click()
    text = waiting.value.path().read_text()
    if kind == "JSON":
        assert json.loads(text)
    else:
        header, *rows = csv.reader(text.splitlines())
        assert rows and len({len(row) for row in (header, *rows)}) == 1


def test_a_line_has_an_address(admin: Visitor) -> None:
    admin.open("/policy#L12")
    line = admin.page.locator("#L12")
    expect(line).to_be_in_viewport()
    shaded = "getComputedStyle(document.querySelector('{}')).backgroundColor"
    assert admin.page.evaluate(shaded.format("#L12")) != admin.page.evaluate(shaded.format("#L20"))


def test_a_plan_is_made_and_kept(admin: Visitor) -> None:
    admin.open("/policy/plan")
    page = admin.page
    field = page.get_by_label("Fleet file", exact=True)
    text = field.input_value()
    changed = re.sub(r"share: (\d+)", lambda m: f"share: {int(m[1]) + 5}", text, count=1)
    field.fill(changed)
    page.get_by_role("button", name="Plan", exact=True).click()
    answer = page.locator("#plan-answer")
    expect(answer).to_contain_text("1 change", timeout=30_000)
    expect(answer).to_contain_text("share")
    expect(answer).to_contain_text("fairway apply plan-")
    answer.locator("summary", has_text="Apply…").click()
    expect(answer.get_by_role("button", name=re.compile("^Apply plan-"))).to_be_visible()
    expect(answer).to_contain_text("the apply is refused for it")
    with page.expect_download() as waiting:
        answer.get_by_role("link", name=re.compile("^Download plan-")).click()
    kept = PlanFile.model_validate(json.loads(waiting.value.path().read_text()))
    assert kept.text == changed and kept.plan.changes > 0
    assert re.fullmatch(r"plan-[0-9a-f]{4}\.json", waiting.value.suggested_filename)


def test_a_fault_leads_to_its_line(admin: Visitor) -> None:
    admin.open("/policy/plan")
    page = admin.page
    field = page.get_by_label("Fleet file", exact=True)
    lines = field.input_value().splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("share:"))
    lines[at] = lines[at].replace("share:", "shares:")
    field.fill("\n".join(lines))
    check = page.locator("#check-answer")
    expect(check).to_contain_text("1 error in the file")  # nobody has pressed Plan
    expect(page.locator(".paint .row-error .lens")).to_contain_text("shares")
    expect(check.locator("tr.added")).to_contain_text("shares:")
    assert admin.faults_for_people() == []
    page.get_by_role("button", name="Plan", exact=True).click()
    answer = page.locator("#plan-answer")
    expect(answer).to_contain_text("1 error in the file", timeout=30_000)
    expect(answer).to_contain_text("hint:")
    listed = page.locator(".faults:visible")
    expect(listed).to_have_count(1)  # by the check or by the plan, whichever answers last
    listed.get_by_role("link", name=f"line {at + 1}").click()
    picked = field.evaluate("(e) => e.value.slice(e.selectionStart, e.selectionEnd)")
    assert picked == lines[at]


def test_a_chosen_file_is_read_here(admin: Visitor) -> None:
    admin.open("/policy/plan")
    page = admin.page
    page.get_by_label("or upload a file").set_input_files(
        {"name": "fleet.yaml", "mimeType": "text/yaml", "buffer": b"name: chosen\n"}
    )
    expect(page.get_by_label("Fleet file", exact=True)).to_have_value("name: chosen\n")
