"""One demo and one Chromium a session; a window of its own for every test, which may not misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.pages.browser import CHROMIUM, Visitor, launched, visiting
from tests.pages.served import Served, busy, served_demo

Visit = Callable[..., Visitor]

expect.set_options(timeout=40_000)  # a machine that runs other tests beside this one is slow


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.fail(f"{CHROMIUM} is missing:  apt-get install chromium fonts-dejavu-core")
    with sync_playwright() as playwright, launched(playwright) as made:
        yield made


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with served_demo() as made:
        busy(made)
        yield made


@pytest.fixture
def visit(browser: Browser, served: Served) -> Iterator[Visit]:
    """Opens windows; at the end no window may have left the host, broken the policy or met an error."""
    with ExitStack() as windows:
        opened: list[Visitor] = []

        def open_window(**more: Any) -> Visitor:
            opened.append(windows.enter_context(visiting(browser, served.url, **more)))
            return opened[-1]

        yield open_window
        for visitor in opened:
            visitor.noticed.nothing()


@pytest.fixture(scope="session")
def signed_in_state(browser: Browser, served: Served) -> dict[str, Any]:
    """The admin's cookie: what it takes to be somebody without signing in again for each test."""
    return _state(browser, served.url, served.admin)


@pytest.fixture(scope="session")
def member_state(browser: Browser, served: Served) -> dict[str, Any]:
    """Alice's cookie: a member of one team."""
    return _state(browser, served.url, served.member)


@pytest.fixture
def admin(visit: Visit, signed_in_state: dict[str, Any]) -> Visitor:
    """A window in which the admin is signed in."""
    return visit(storage_state=signed_in_state)


def _state(browser: Browser, url: str, token: str) -> dict[str, Any]:
    with visiting(browser, url) as visitor:
        visitor.sign_in(token)
        return dict(visitor.page.context.storage_state())
