"""The page of the search, and the list that the dialog of every page asks for."""

from __future__ import annotations

import httpx2

from fairway.ledger import Ledger
from tests.unit.web.fleet_sights import mirror, node, observe, runs

PART = {"HX-Request": "true", "HX-Target": "search-results"}


async def test_results_by_kind_as_a_page_and_in_the_dialog(
    ledger: Ledger, member: httpx2.AsyncClient
) -> None:
    await observe(ledger, node("train-node"))
    await mirror(ledger, runs(1, 1, "train-node"))
    page = (await member.get("/search?q=train")).text
    assert '<section class="found" aria-label="Jobs">' in page
    assert '<section class="found" aria-label="Nodes">' in page
    assert 'value="train"' in page
    part = (await member.get("/search?q=train", headers=PART)).text
    assert "train-node" in part and "<html" not in part
    assert "Type a part of a name" in (await member.get("/search", headers=PART)).text
    hostile = (await member.get("/search?q=<script>alert(1)</script>")).text
    assert "<script>alert" not in hostile and "Nothing matches" in hostile


async def test_every_page_has_the_dialog(member: httpx2.AsyncClient, stranger: httpx2.AsyncClient) -> None:
    for path in ("/", "/fleet", "/jobs", "/policy", "/jobs/zzzz"):
        page = (await member.get(path)).text
        assert '<dialog id="search-dialog"' in page, path
        assert 'aria-keyshortcuts="/ Control+K Meta+K"' in page, path
    assert "search-dialog" not in (await stranger.get("/sign-in")).text
