"""Signing in with one's organisation, in the browser: a real provider, a real server, real forms."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from lab.oidc import OidcProvider, Setting, has_node
from tests.contract.driver import absent
from tests.integration.server_process import temporary_home
from tests.pages.browser import Visitor, visiting

SECRET: Final = "known to both"
PEOPLE: Final[dict[str, dict[str, object]]] = {
    "olga": {"preferred_username": "olga", "groups": ["staff", "platform"]},
    "ada": {"preferred_username": "ada", "groups": ["staff"]},
    "nobody": {"groups": ["platform"]},
}


@dataclass(frozen=True, slots=True)
class Organisation:
    """A server that trusts a provider."""

    url: str
    provider: OidcProvider


@pytest.fixture(scope="module")
def organisation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Organisation]:
    """The server is first, at any port: the provider has to know its address. It asks only when people do."""
    if not has_node():
        absent("Node, which runs the OpenID Connect provider", "apt install nodejs npm")
    folder = tmp_path_factory.mktemp("organisation")
    secret = folder / "client-secret"
    secret.write_text(SECRET)
    port = _free_port()
    with temporary_home() as home:
        server = home.start(
            "--listen",
            "127.0.0.1:0",
            FAIRWAY_OIDC_ISSUER=f"http://127.0.0.1:{port}",
            FAIRWAY_OIDC_CLIENT_ID="fairway",
            FAIRWAY_OIDC_CLIENT_SECRET_FILE=str(secret),
            FAIRWAY_OIDC_ROLES="platform=operator, staff=viewer",
        )
        provider = _provider(folder, port, server.url)
        provider.start()
        try:
            yield Organisation(server.url, provider)
        finally:
            provider.stop()


def _provider(folder: Path, port: int, url: str) -> OidcProvider:
    client = {
        "client_id": "fairway",
        "client_secret": SECRET,
        "redirect_uris": [f"{url}/sign-in/oidc/back"],
        "grant_types": ["authorization_code"],
        "response_types": ["code"],
    }
    return OidcProvider(Setting([client], PEOPLE), folder / "provider", port)


def _free_port() -> int:
    """One that the system picks: hardly the same one twice for tests that run side by side."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _window(browser: Browser, organisation: Organisation) -> Iterator[Visitor]:
    """A window in which Fairway's own pages behave. The provider's may ask for a font, and get none."""
    with visiting(browser, organisation.url) as visitor:
        left: list[str] = []

        def note(request: Request) -> None:
            if request.frame.url.startswith(organisation.url) and not _here(request.url):
                left.append(request.url)

        visitor.page.on("request", note)
        visitor.page.route(lambda url: not _here(url), lambda route: route.abort())
        yield visitor
        assert not left, f"left the host: {left}"
        assert not visitor.noticed.failed
        assert not [v for v in visitor.noticed.violations if organisation.url in v]


def _here(url: str) -> bool:
    return urlsplit(url).hostname in (None, "127.0.0.1")


def _to_the_provider(visitor: Visitor, organisation: Organisation, path: str = "/") -> Page:
    """Asked for a page, offered to sign in, on to the organisation."""
    visitor.open(path)
    page = visitor.page
    page.get_by_role("link", name="Sign in with your organisation").click()
    expect(page.locator("input[name=login]")).to_be_visible()
    assert page.url.startswith(organisation.provider.issuer)
    return page


def _signed_in_there(page: Page, login: str) -> None:
    page.locator("input[name=login]").fill(login)
    page.locator("input[name=password]").fill("any")
    page.locator("button[type=submit]").click()
    page.get_by_role("button", name="Continue").click()


@pytest.mark.parametrize(("login", "role"), [("olga", "operator"), ("ada", "viewer")])
def test_in_with_the_role_of_ones_group_and_out_again(
    browser: Browser, organisation: Organisation, login: str, role: str
) -> None:
    with _window(browser, organisation) as visitor:
        page = _to_the_provider(visitor, organisation, "/jobs?state=running")
        _signed_in_there(page, login)
        expect(page).to_have_url(f"{organisation.url}/jobs?state=running")
        expect(page.locator(".who .name")).to_have_text(f"{login} {role}")
        page.get_by_role("button", name="Sign out").click()
        expect(page).to_have_url(re.compile("/sign-in"))
        visitor.open("/jobs")
        expect(page.get_by_role("link", name="Sign in with your organisation")).to_be_visible()
        expect(page.get_by_role("navigation", name="Pages")).to_have_count(0)


def test_the_offer_is_for_everybody(browser: Browser, organisation: Organisation) -> None:
    with _window(browser, organisation) as visitor:
        visitor.open("/sign-in")
        expect(visitor.page.get_by_label("Token")).to_be_visible()  # for who has no account there
        for width in (1440, 390):
            visitor.show("dark", width)
            assert not visitor.faults_for_people()
            assert not visitor.sticks_out()


def test_somebody_without_a_name_is_told_what_is_missing(
    browser: Browser, organisation: Organisation
) -> None:
    with _window(browser, organisation) as visitor:
        page = _to_the_provider(visitor, organisation)
        _signed_in_there(page, "nobody")
        expect(page.get_by_role("heading", level=1)).to_have_text("Forbidden")
        expect(page.locator("main")).to_contain_text("does not say who you are")
        expect(page.locator("main .hint")).to_contain_text("FAIRWAY_OIDC_USER_CLAIM")
        expect(page.locator("main")).to_contain_text("OidcUserMissing")
        expect(page.get_by_role("navigation", name="Pages")).to_have_count(0)
        assert not visitor.faults_for_people()


def test_who_declines_may_begin_again(browser: Browser, organisation: Organisation) -> None:
    with _window(browser, organisation) as visitor:
        page = _to_the_provider(visitor, organisation)
        page.get_by_role("link", name="Cancel").click()
        expect(page.locator("main")).to_contain_text("The sign-in was declined")
        expect(page.locator("main .hint")).to_contain_text("egin again")
        page.get_by_role("link", name="Sign in", exact=True).click()
        expect(page.get_by_role("link", name="Sign in with your organisation")).to_be_visible()
