"""What holds for every page: it opens, fits, can be read by all, asks nobody else, and keeps the policy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pages.addresses import PAGES
from tests.pages.browser import THEMES, WIDTHS
from tests.pages.conftest import Visit
from tests.pages.served import Served

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("name", PAGES)
def test_page(name: str, visit: Visit, served: Served, signed_in_state: dict[str, Any]) -> None:
    """At a desk, on a tablet and on a phone, in light and dark."""
    visitor = visit(storage_state=signed_in_state)
    answer = visitor.open(PAGES[name](served))
    assert answer is not None
    assert answer.status == (404 if name.startswith("no-such") else 200)
    assert visitor.page.locator("h1").count() == 1
    found: dict[str, list[str]] = {}
    for width in WIDTHS:
        for theme in THEMES:
            visitor.show(theme, width)
            found[f"{width} {theme}: sticks out"] = visitor.sticks_out()
            if theme == "dark" and width == WIDTHS[0]:  # colours alone are other ones there
                found["dark: axe"] = visitor.faults_for_people("color-contrast")
            elif theme == "light" and width != 768:  # between the other two nothing else stands anywhere
                found[f"{width}: axe"] = visitor.faults_for_people()
    assert not {where: faults for where, faults in found.items() if faults}


NOT_HERS = {
    "policy-plan": "operator",
    "policy-what-if": "operator",
    "policy-revision": "operators",
    "team": "your team",
    "job-log": "its owner",
    "job-cancel": "its owner",
    "server": "operator",
}
"""What a member is refused of the pages, which are of another team and its jobs, and a word of why."""


@pytest.mark.parametrize("name", PAGES)
def test_page_of_a_member(name: str, visit: Visit, served: Served, member_state: dict[str, Any]) -> None:
    """Alice sees a page or a refusal with a hint, never a fault."""
    visitor = visit(storage_state=member_state)
    answer = visitor.open(PAGES[name](served))
    assert answer is not None
    if name in NOT_HERS:
        assert answer.status == 403
        assert NOT_HERS[name] in visitor.page.locator("main").inner_text()
    else:
        assert answer.status == (404 if name.startswith("no-such") else 200)


@pytest.mark.parametrize("theme", THEMES)
def test_sign_in_page(theme: Any, visit: Visit) -> None:
    visitor = visit(theme=theme)
    for width in WIDTHS:
        visitor.open("/sign-in")
        visitor.show(theme, width)
        assert visitor.sticks_out() == []
    assert visitor.faults_for_people() == []
