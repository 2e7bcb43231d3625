"""The built site: no dead link, no dead anchor, nothing asked of another host, a page for every code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from docs.reference import code_pages
from tests.docs.reading import ROOT

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
