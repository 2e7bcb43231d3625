"""Finding a job, following it as it lives, ending it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Route, expect

from fairway.client.client import Client
from fairway.client.contexts import Target
from tests.pages.browser import Visitor
from tests.pages.conftest import Visit
from tests.pages.served import Served

LIVE_MS = 30_000
"""How long a change may take to appear on an open page, beside other tests."""


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(Target(url=served.url, token=served.member)) as made:
        yield made


def test_search_and_filter(admin: Visitor, served: Served) -> None:
    job = served.ask("/v1/jobs", state="running", limit=1)["items"][0]
    admin.open("/jobs")
    page = admin.page
    page.get_by_label("Search by name, user or id").fill(job["id"])
    expect(page).to_have_url(re.compile(rf"[?&]q={job['id']}"))  # nobody has to press a button
    expect(page.locator(f"#job-{job['id']}")).to_be_visible()
    expect(page.get_by_role("list", name="Active filters")).to_contain_text(job["id"])
    page.get_by_role("navigation", name="Which jobs").get_by_role("link", name="Waiting").click()
    expect(page).to_have_url(re.compile(f"q={job['id']}&state=pending"))
    admin.open("/jobs?state=waiting")
    expect(page.locator("td.states").first).to_contain_text("waiting")
    # An array's tasks are counted after the list is read: if one started in between, the next update says so.
    expect(page.locator("td.states").filter(has_not_text="waiting")).to_have_count(0)


def test_selected_jobs_stay_selected_and_columns_stay_hidden(admin: Visitor, served: Served) -> None:
    admin.open("/jobs?state=running&sort=-gpus")
    page = admin.page
    first = page.locator("td.pick input").first
    name = first.get_attribute("name") or ""
    first.check()
    expect(page.locator("[data-selected]")).to_have_text("1 selected")
    page.locator("summary", has_text="Columns").click()
    menu = page.locator("[data-columns]")
    menu.evaluate("(menu) => menu.setAttribute('data-drawn', 'before')")
    page.evaluate("document.body.dispatchEvent(new CustomEvent('fw:jobs', { bubbles: true }))")
    expect(menu).not_to_have_attribute("data-drawn", "before")
    expect(page.locator(f"input[name='{name}']")).to_be_checked()
    page.get_by_label("Priority", exact=True).last.uncheck()
    expect(page.locator("th.priority")).to_be_hidden()
    page.get_by_role("button", name="Hold").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Hold 1 job?")
    page.get_by_role("link", name="Go back").click()
    expect(page.locator("th.gpus")).to_have_attribute("aria-sort", "descending")
    expect(page.locator("th.priority")).to_be_hidden()


def test_opened_by_keyboard(admin: Visitor) -> None:
    admin.open("/jobs?state=done&age=")
    page = admin.page
    word = page.locator("[data-rows] tbody tr a[data-open]").first.inner_text()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/jobs/{word}|array={word}"))


def test_a_job_appears_and_is_cancelled(visit: Visit, served: Served, client: Client) -> None:
    """Nobody loads the page again: the job that alice submits elsewhere comes by itself."""
    visitor = visit()
    visitor.sign_in(served.member, "/jobs?user=alice")
    page = visitor.page
    expect(page.locator("#live-state")).to_have_text("live", timeout=LIVE_MS)
    page.evaluate("window.stillTheSame = true")
    job = client.run(["sleep", "600"], name="seen-at-once", gpus="1")
    row = page.locator(f"#job-{job.id}")
    expect(row).to_contain_text("seen-at-once", timeout=LIVE_MS)
    assert page.evaluate("window.stillTheSame"), "the page was loaded again"

    row.get_by_role("link", name=job.id).click()
    expect(page.get_by_role("heading", name="seen-at-once", level=1)).to_be_visible()
    page.get_by_role("link", name="Cancel", exact=True).click()
    asked = page.get_by_role("dialog")
    expect(asked).to_contain_text("seen-at-once")
    asked.get_by_role("button", name="Go back").click()
    expect(asked).to_be_hidden()
    assert client.job(job.id).state.value not in ("cancelled", "failed")
    page.get_by_role("link", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^Cancel")).click()
    expect(page.locator(".job-head .state")).to_contain_text("cancelled", timeout=LIVE_MS)


def test_an_answer_that_comes_late_leaves_the_dialog_open(
    visit: Visit, served: Served, client: Client
) -> None:
    job = client.run(["sleep", "600"], name="asked-about", gpus="1")
    visitor = visit()
    visitor.sign_in(served.member, f"/jobs/{job.id}")
    page = visitor.page
    held: list[Route] = []
    page.route(f"**/jobs/{job.id}", lambda route: held.append(route))  # noqa: PLW0108 - it marks its handlers
    with page.expect_request(f"**/jobs/{job.id}"):
        page.evaluate("document.body.dispatchEvent(new CustomEvent('fw:jobs'))")
    page.get_by_role("link", name="Cancel", exact=True).click()
    asked = page.get_by_role("dialog")
    expect(asked).to_contain_text("asked-about")
    page.evaluate("document.addEventListener('htmx:afterRequest', () => { document.body.dataset.seen = 1; })")
    for one in held:
        one.continue_()
    expect(page.locator("body[data-seen]")).to_be_attached()
    expect(asked).to_be_visible()
    page.unroute(f"**/jobs/{job.id}")
    asked.get_by_role("button", name=re.compile("^Cancel")).click()
    expect(page.locator(".job-head .state")).to_contain_text("cancelled", timeout=LIVE_MS)


def test_somebody_elses_job(visit: Visit, served: Served) -> None:
    jobs = served.ask("/v1/jobs", state="running", limit=50)["items"]
    other = next(j["id"] for j in jobs if j["user"] != "alice")
    visitor = visit()
    visitor.sign_in(served.member, f"/jobs/{other}")
    expect(visitor.page.get_by_role("link", name="Cancel", exact=True)).to_have_count(0)
