"""Coming in, being turned away, going out."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.pages.browser import Visitor
from tests.pages.conftest import Visit
from tests.pages.served import Served


def test_a_token_that_nobody_has(visit: Visit) -> None:
    visitor = visit()
    visitor.open("/jobs?state=running")
    page = visitor.page
    page.get_by_label("Token").fill("fw_no-such-token")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("unknown, expired or revoked")
    expect(page.get_by_label("Token")).to_have_value("")
    expect(page.get_by_role("navigation", name="Pages")).to_have_count(0)


def test_where_one_wanted_to_go(visit: Visit, served: Served) -> None:
    visitor = visit()
    visitor.sign_in(served.member, "/jobs?state=running")
    expect(visitor.page).to_have_url(f"{served.url}/jobs?state=running")
    expect(visitor.page.locator(".who")).to_contain_text("alice")


def test_signing_out(visit: Visit, served: Served) -> None:
    visitor = visit()
    visitor.sign_in(served.member)
    cookies = visitor.page.context.cookies()
    assert [(c["name"], c["httpOnly"], c["sameSite"]) for c in cookies] == [("fairway_session", True, "Lax")]
    visitor.page.get_by_role("button", name="Sign out").click()
    expect(visitor.page).to_have_url(re.compile("/sign-in"))
    visitor.page.context.add_cookies([dict(c) for c in cookies])  # type: ignore[misc]
    visitor.open("/policy")
    expect(visitor.page).to_have_url(re.compile("/sign-in"))


def test_search_from_every_page(admin: Visitor, served: Served) -> None:
    """`/`, Ctrl-K and the link open one dialog, which the keyboard alone can use."""
    job = served.ask("/v1/jobs", state="running", limit=1)["items"][0]
    pool = served.ask("/v1/pools")["items"][0]["name"]
    admin.open("/policy")
    page = admin.page
    dialog = page.get_by_role("dialog", name="Search")
    page.keyboard.press("/")
    expect(dialog).to_be_visible()
    page.keyboard.type(job["id"])
    expect(dialog.get_by_role("link").first).to_contain_text(job["id"])
    assert admin.faults_for_people() == []
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/jobs/{job['id']}|array="))
    page.wait_for_load_state()
    page.keyboard.press("Control+k")
    expect(page.get_by_label("Search jobs, teams, users, nodes and pools")).to_be_focused()
    page.keyboard.type(pool)
    expect(dialog.get_by_role("region", name="Pools").get_by_role("link").first).to_contain_text(pool)
    page.keyboard.press("ArrowDown")
    expect(dialog.get_by_role("link").first).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_label("Search jobs, teams, users, nodes and pools")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.locator("#search").click()
    expect(dialog).to_be_visible()


def test_keys_and_theme(admin: Visitor) -> None:
    admin.open("/")
    page = admin.page
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page.get_by_role("heading", name="Policy", level=1)).to_be_visible()
    page.wait_for_load_state()  # a heading can be seen before the script that hears keys
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
