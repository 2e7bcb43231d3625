"""Scripts and styles: kept by browsers for good, and nothing beside them can be had."""

from __future__ import annotations

import re

import httpx2
import pytest

from fairway.web.static import StaticFiles


async def test_what_pages_name_is_there_and_kept(stranger: httpx2.AsyncClient) -> None:
    page = (await stranger.get("/sign-in")).text
    named = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert {address.partition("?")[0] for address in named} >= {
        "/static/fairway.css",
        "/static/fairway.js",
        "/static/theme.js",
        "/static/vendor/htmx.js",
    }
    for address in named:
        answer = await stranger.get(address)
        assert answer.status_code == 200, address
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = await stranger.get(address, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name",
    [
        "../app.py",
        "..%2fapp.py",
        "vendor/../../pages.py",
        "/etc/passwd",
        "vendor/",
        "",
        "fairway.css.map",
        "%00",
        "FAIRWAY.CSS",
    ],
)
async def test_nothing_else_can_be_had(stranger: httpx2.AsyncClient, name: str) -> None:
    answer = await stranger.get(f"/static/{name}")
    assert answer.status_code == 404, answer.text[:200]


def test_an_address_changes_with_what_it_holds() -> None:
    files = StaticFiles()
    before = files.url("fairway.js")
    assert re.fullmatch(r"/static/fairway\.js\?v=[0-9a-f]{16}", before)
    assert before == StaticFiles().url("fairway.js")
    assert before.partition("=")[2] != files.url("live.js").partition("=")[2]


def test_types_that_browsers_accept() -> None:
    kinds = {name.rpartition(".")[2]: file.media_type for name, file in StaticFiles()._files.items()}
    assert kinds["css"] == "text/css"
    assert kinds["js"] in ("text/javascript", "application/javascript")
    assert kinds["svg"] == "image/svg+xml"


def test_no_script_needs_what_the_policy_forbids() -> None:
    """Our own scripts: no eval, no markup from text, no address elsewhere."""
    forbidden = re.compile(
        r"\beval\(|new Function|innerHTML|outerHTML|insertAdjacentHTML|https?://(?!www\.w3\.org)"
    )
    own = {n: f for n, f in StaticFiles()._files.items() if n.endswith(".js") and not n.startswith("vendor/")}
    assert {"fairway.js", "live.js", "theme.js"} <= own.keys()
    for name, file in own.items():
        assert not forbidden.search(file.body.decode()), name
