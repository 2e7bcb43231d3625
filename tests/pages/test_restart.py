"""A page outlives its server: it says that it lost it, and goes on by itself when it is back."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from fairway.api.job_wire import JobSpec
from fairway.client.client import Client
from fairway.client.contexts import Target
from tests.integration.server_process import temporary_home
from tests.pages.browser import visiting

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
PATIENCE_MS = 60_000


@pytest.mark.timeout(300)
def test_a_restart(browser: Browser) -> None:
    with temporary_home() as home:
        server = home.start("-f", str(QUICKSTART), "--listen", "127.0.0.1:0")
        url, token = server.url, home.token_file.read_text().strip()
        with visiting(browser, url) as visitor, Client(Target(url=url, token=token)) as client:
            page = visitor.page
            visitor.sign_in(token, "/jobs")
            expect(page.locator("#live-state")).to_have_text("live", timeout=PATIENCE_MS)
            page.evaluate("window.stillTheSame = true")

            assert server.stop() == 0, server.log
            expect(page.locator("#live-state")).to_contain_text("reconnecting", timeout=PATIENCE_MS)
            expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()

            server = home.start("--listen", url.removeprefix("http://"))
            expect(page.locator("#live-state")).to_have_text("live", timeout=PATIENCE_MS)
            spec = JobSpec(name="after-the-restart", command=["sleep", "60"])
            (job,) = client.submit(spec, as_user="alice")
            expect(page.locator(f"#job-{job.id}")).to_contain_text("after-the-restart", timeout=PATIENCE_MS)
            assert page.evaluate("window.stillTheSame"), "the page was loaded again"
            visitor.noticed.forget_errors()
            visitor.noticed.nothing()
        assert server.stop() == 0, server.log
