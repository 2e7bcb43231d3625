"""Takes pictures of every page of a demo: `python -m tests.pages.screenshots [--docs] [NAME…]`.

All of them, on every screen in light and dark, go to build/screenshots to be looked at. With --docs, the few
that the docs show go to docs/pictures too. The demo is seeded, so that pictures of two days look alike.
"""

from __future__ import annotations

import argparse
import mimetypes
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Route, sync_playwright

from tests.pages.addresses import PAGES
from tests.pages.browser import THEMES, WIDTHS, Visitor, launched, visiting
from tests.pages.served import Served, busy, served_demo

ROOT: Final = Path(__file__).parents[2]
ALL: Final = ROOT / "build" / "screenshots"
DOCS: Final = ROOT / "docs" / "pictures"
IN_DOCS: Final = (
    "fleet",
    "pool",
    "teams",
    "jobs",
    "job-running",
    "job-waiting",
    "cost",
    "policy",
    "policy-plan-made",
)
_TALLEST: Final = 2600
"""Pixels of a picture; who wants to see the rest of a long list scrolls."""
_TALLEST_IN_DOCS: Final = 1100


def _make_plan(page: Page) -> None:
    """A change that a team lead might ask for."""
    field = page.get_by_label("Fleet file", exact=True)
    text = field.input_value()
    field.fill(re.sub(r"share: (\d+)", lambda m: f"share: {int(m[1]) + 10}", text, count=1))
    page.get_by_role("button", name="Plan", exact=True).click()
    page.get_by_text("Apply this plan").wait_for()


def _make_faults(page: Page) -> None:
    field = page.get_by_label("Fleet file", exact=True)
    field.fill(field.input_value().replace("share:", "shares:", 2))
    page.get_by_role("button", name="Plan", exact=True).click()
    page.get_by_text("errors in the file").first.wait_for()


ACTS: Final[Mapping[str, tuple[str, Callable[[Page], None]]]] = {
    "policy-plan-made": ("policy-plan", _make_plan),
    "policy-plan-faults": ("policy-plan", _make_faults),
}
"""Pages that somebody did something on first."""


def main(arguments: list[str]) -> None:
    """Take the pictures that are asked for, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.pages.screenshots")
    parser.add_argument("names", nargs="*", help="of pages; none: all")
    parser.add_argument("--docs", action="store_true", help="also those that the docs show")
    parser.add_argument("--static", type=Path, help="take styles and scripts from this folder instead")
    parser.add_argument("--widths", type=int, nargs="*", default=list(WIDTHS))
    asked = parser.parse_args(arguments)
    names = asked.names or ["sign-in", *PAGES, *ACTS]
    with sync_playwright() as playwright, launched(playwright) as browser, served_demo() as served:
        busy(served)
        for name in names:
            docs = asked.docs and name in IN_DOCS
            take(browser, served, name, widths=asked.widths, static=asked.static, docs=docs)


def take(
    browser: Browser, served: Served, name: str, *, widths: list[int], static: Path | None, docs: bool
) -> None:
    """One page on all screens; its top, in light at a desk, for the docs."""
    ALL.mkdir(parents=True, exist_ok=True)
    DOCS.mkdir(parents=True, exist_ok=True)
    for theme in THEMES:
        for width in widths:
            with visiting(browser, served.url, theme=theme, width=width) as visitor:
                if static is not None:
                    visitor.page.route("**/static/**", lambda route: _from(static, route))
                _go(visitor, served, name)
                _wait_for_plots(visitor.page)
                visitor.page.evaluate("scrollTo(0, 0)")
                _picture(visitor.page, ALL / f"{name}-{width}-{theme}.png", width, _TALLEST)
                if docs and (theme, width) == ("light", WIDTHS[0]):
                    _picture(visitor.page, DOCS / f"{name}.png", width, _TALLEST_IN_DOCS)


def _picture(page: Page, file: Path, width: int, tallest: int) -> None:
    height = min(tallest, page.evaluate("document.documentElement.scrollHeight"))
    page.screenshot(path=file, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
    sys.stdout.write(f"{file.relative_to(ROOT)}\n")


def _wait_for_plots(page: Page) -> None:
    """Plots are drawn after the page is there; one without figures stays empty. The policy forbids waiting
    by a function in the page, which Playwright would evaluate from a text."""
    drawn = (
        "!document.querySelector('[aria-busy=true]') && "
        "[...document.querySelectorAll('[data-plot]')].every((plot) => plot.querySelector('canvas'))"
    )
    for _ in range(16):
        page.wait_for_timeout(500)
        if page.evaluate(drawn):
            return


def _go(visitor: Visitor, served: Served, name: str) -> None:
    if name == "sign-in":
        visitor.open("/sign-in")
        return
    page, act = ACTS.get(name, (name, None))
    visitor.sign_in(served.admin, PAGES[page](served))
    visitor.page.wait_for_load_state("load")
    if act is not None:
        act(visitor.page)


def _from(folder: Path, route: Route) -> None:
    """A file of the checkout instead of the server's: styles are tried without starting a demo anew."""
    file = folder / urlsplit(route.request.url).path.removeprefix("/static/")
    kind = mimetypes.guess_type(file.name)[0] or "text/plain"
    route.fulfill(body=file.read_bytes(), content_type=kind)


if __name__ == "__main__":
    main(sys.argv[1:])
