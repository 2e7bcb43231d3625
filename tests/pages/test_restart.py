"""A page outlives its server: it says that it lost it, and goes on by itself when it is back."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.integration.server_process import temporary_home
from tests.pages.browser import visiting

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
PATIENCE_MS = 60_000


@pytest.mark.timeout(300)
def test_a_restart(browser: Browser) -> None:
    """On the same port and ledger; what is applied afterwards appears, and nobody loaded the page again."""
    with temporary_home() as home:
        server = home.start("-f", str(QUICKSTART), "--listen", "127.0.0.1:0")
        url = server.url
        with visiting(browser, url) as visitor:
            page = visitor.page
            visitor.sign_in(home.token_file.read_text().strip(), "/policy/history")
            expect(page.locator("#history-part")).to_contain_text("Nothing has been applied yet")
            expect(page.locator("#live-state")).to_have_text("live", timeout=PATIENCE_MS)
            page.evaluate("window.stillTheSame = true")

            assert server.stop() == 0, server.log
            expect(page.locator("#live-state")).to_contain_text("reconnecting", timeout=PATIENCE_MS)
            expect(page.locator("#history-part")).to_contain_text("Nothing has been applied yet")

            server = home.start("--listen", url.removeprefix("http://"))
            expect(page.locator("#live-state")).to_have_text("live", timeout=PATIENCE_MS)
            applied = home.fairway("apply", "-f", str(QUICKSTART), "--yes")
            assert applied.returncode == 0, applied.stderr
            row = page.locator("#apply-1-lab")
            expect(row).to_contain_text("done", timeout=PATIENCE_MS)
            assert page.evaluate("window.stillTheSame"), "the page was loaded again"
            visitor.noticed.forget_errors()
            visitor.noticed.nothing()
        assert server.stop() == 0, server.log
