"""Addresses and names that no page of ours has: refused in words, and shown as what they are."""

from __future__ import annotations

import html

import httpx2
import pytest

from fairway import __version__
from fairway.web.render import without_marks


@pytest.mark.parametrize(
    "path",
    [
        "/cost?user=%00",
        "/policy/history?cluster=%00",
        "/jobs?q=%00",
        "/jobs?user=%00",
        "/jobs/%00",
        "/teams/%00",
        "/pools/%00",
        "/cost?team=%ED%A0%80",
        "/policy/history?cluster=%ED%A0%80",
    ],
)
async def test_what_cannot_be_stored_is_no_internal_error(admin: httpx2.AsyncClient, path: str) -> None:
    answer = await admin.get(path)
    assert answer.status_code < 500, answer.text
    assert "InternalError" not in answer.text


def test_marks_of_direction_are_not_shown() -> None:
    assert without_marks("train\u202egpj.exe") == "traingpj.exe"
    assert without_marks("zażółć \u2066x\u2069") == "zażółć x"
    assert without_marks("plain") == "plain"
    assert without_marks(7) == 7


async def test_a_search_with_marks_is_shown_without_them(admin: httpx2.AsyncClient) -> None:
    answer = await admin.get("/jobs", params={"q": "abc\u202edef"})
    assert "abcdef" in html.unescape(answer.text)
    assert "\u202e" not in html.unescape(answer.text)


async def test_the_version_is_for_those_who_signed_in(
    stranger: httpx2.AsyncClient, admin: httpx2.AsyncClient
) -> None:
    assert f"Fairway {__version__}" not in (await stranger.get("/sign-in")).text
    assert f"Fairway {__version__}" in (await admin.get("/teams")).text
