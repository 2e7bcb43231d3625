"""The built site: links and search work, no other host is asked, every code and command has a page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, expect, sync_playwright
from playwright.sync_api import Page as BrowserPage

from docs.reference import code_pages, command_pages
from tests.docs.reading import ROOT
from tests.pages.browser import launched

pytestmark = pytest.mark.timeout(300)

LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""What a browser fetches by itself."""


class Page(HTMLParser):
    """What a page links to, loads, and can be linked to by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif (source := given.get(LOADED.get(tag, ""))) and given.get("rel") != "canonical":
            self.loads.append(source)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def read(site: Path) -> dict[Path, Page]:
    return {
        path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.stem != "404"
    }


def targets(read: dict[Path, Page]) -> Iterator[tuple[Path, str, Path, str]]:
    for path, page in read.items():
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if not parts.scheme and not parts.netloc:
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                yield (
                    path,
                    link,
                    target / "index.html" if target.is_dir() else target,
                    unquote(parts.fragment),
                )


def test_no_link_is_dead(site: Path, read: dict[Path, Page]) -> None:
    dead = {
        f"{path.relative_to(site)}: {link}" for path, link, target, _ in targets(read) if not target.is_file()
    }
    assert sorted(dead) == []
    assert len(read) > 350


def test_no_anchor_is_dead(site: Path, read: dict[Path, Page]) -> None:
    dead = {
        f"{path.relative_to(site)}: {link}"
        for path, link, target, anchor in targets(read)
        if anchor and target in read and anchor not in read[target].anchors
    }
    assert sorted(dead) == []


def test_nothing_is_asked_of_another_host(site: Path, read: dict[Path, Page]) -> None:
    outside = {
        f"{path.relative_to(site)}: {source}"
        for path, page in read.items()
        for source in page.loads
        if urlsplit(source).netloc
    }
    assert sorted(outside) == []
    for sheet in site.rglob("*.css"):
        assert "@import" not in (text := sheet.read_text(encoding="utf-8")), sheet
        assert "url(http" not in text and "url(//" not in text, sheet


def test_every_code_has_a_page(site: Path) -> None:
    missing = [
        entry.name
        for entry in code_pages.entries()
        if not (site / "reference/codes" / f"{entry.name}.html").is_file()
    ]
    assert missing == []


def test_a_page_that_is_written_is_found(site: Path) -> None:
    """Whatever somebody adds under docs/ is reached from the front page, by the menu or by links."""
    start = site / "index.html"
    seen, waiting = {start}, [start]
    while waiting:
        path = waiting.pop()
        for _, _, target, _ in targets({path: Page(path.read_text(encoding="utf-8"))}):
            if target.suffix == ".html" and target.is_file() and target not in seen:
                seen.add(target)
                waiting.append(target)
    lonely = {path for path in site.rglob("*.html") if path.stem != "404"} - seen
    assert sorted(str(path.relative_to(site)) for path in lonely) == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright, launched(playwright) as made:
        yield made


@pytest.fixture
def window(browser: Browser) -> Iterator[BrowserPage]:
    """A browser window of a laptop's size. It may meet no error and ask no host for anything."""
    errors: list[str] = []
    asked: list[str] = []
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(120_000)  # a machine that runs other tests beside this one is slow
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    yield page
    page.close()
    assert errors == []
    assert [url for url in asked if not url.startswith(("file:", "about:", "data:"))] == []


def test_search_works_when_the_site_is_opened_from_a_folder(site: Path, window: BrowserPage) -> None:
    window.goto((site / "guides/jobs.html").as_uri())
    window.keyboard.press("/")
    window.get_by_role("textbox", name="Search").press_sequentially("preemption")

    expect(window.locator(".md-search-result__meta")).to_contain_text("matching document", timeout=120_000)
    found = window.locator(".md-search-result__link").first
    assert (found.get_attribute("href") or "").startswith(site.as_uri())


def test_the_fairway_column_of_the_comparison_is_visible(site: Path, window: BrowserPage) -> None:
    window.goto((site / "compare/index.html").as_uri())
    heads = window.locator(".comparison thead th")

    assert heads.nth(1).inner_text() == "Fairway"
    for width in (1440, 390):
        window.set_viewport_size({"width": width, "height": 900})
        box = heads.nth(1).bounding_box()
        assert box is not None and box["x"] + box["width"] <= width
    window.locator(".comparison .md-typeset__scrollwrap").evaluate("box => box.scrollLeft = 200")
    feature = window.locator(".comparison tbody td").first.bounding_box()
    assert feature is not None and feature["x"] >= 0, "the column with the feature stays while others scroll"


def test_the_landing_page_fits_on_one_screen(site: Path, window: BrowserPage) -> None:
    window.goto((site / "index.html").as_uri())

    assert "pip install" in window.locator(".landing code").inner_text()
    assert window.locator(".landing p").first.inner_text().count(".") == 3
    picture = window.locator(".landing img")
    assert picture.evaluate("picture => picture.naturalWidth") > 0
    for part in (picture, window.locator(".md-content table")):
        box = part.bounding_box()
        assert box is not None and box["y"] + box["height"] <= 900


def test_a_copied_block_has_only_its_commands(site: Path, window: BrowserPage) -> None:
    window.goto((site / "guides/why.html").as_uri())
    copied = window.locator("pre > code").first.evaluate(
        """code => { code.setAttribute("data-md-copying", ""); return code.innerText }"""
    )
    commands = [line for line in copied.splitlines() if line.strip()]
    assert commands == ["fairway why 8f3k", "fairway why 8f3k -o json"]


def test_the_logo_is_the_one_of_the_web_pages(site: Path) -> None:
    start = (site / "index.html").read_text(encoding="utf-8")

    assert (site / "assets/icon.svg").read_bytes() == (ROOT / "src/fairway/web/static/icon.svg").read_bytes()
    assert '<link rel="icon" href="assets/icon.svg">' in start
    assert '<img src="assets/icon.svg" alt="logo">' in start


def test_every_command_has_a_page(site: Path) -> None:
    index = (site / "reference/cli/index.html").read_text(encoding="utf-8")
    names = [command.file.removesuffix(".md") for command in command_pages.commands()]

    assert len(names) > 60
    assert re.findall(r'<h2 id="(\w+)"', index)[:5] == ["jobs", "fleet", "policy", "money", "admin"]
    assert [name for name in names if f'href="{name}.html"' not in index] == []


def test_make_docs_leaves_the_environment_of_the_developer_alone() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "docs"], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert "build/docs-venv/bin/mkdocs build" in done.stdout
    assert " .venv" not in done.stdout


def test_the_docs_are_built_with_the_versions_that_are_tested() -> None:
    docs, dev = (
        {line for line in (ROOT / "requirements" / name).read_text().splitlines() if "==" in line}
        for name in ("docs.txt", "dev.txt")
    )
    assert docs and docs <= dev
