"""Signing in by a token: cookies, sessions, forms from elsewhere, where one is sent afterwards."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

import httpx2
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from fairway.api.problems import ApiError
from fairway.api.rate_limit import EACH_SECONDS, WrongTokenLimiter, address_of
from fairway.ledger import Ledger, LedgerUnreachable, Token
from fairway.model.access import Role
from fairway.model.names import UserName
from fairway.services.tokens import hash_secret, new_secret
from fairway.settings import Settings
from fairway.web.auth.sign_in import local_path
from fairway.web.render import CSP
from fairway.web.sessions import COOKIE, csrf_of
from tests.unit.api.conftest import bearer
from tests.unit.web.conftest import URL, SignIn, browser, token
from tests.waiting import eventually

HOSTILE = [
    "https://elsewhere.test/",
    "//elsewhere.test",
    "///elsewhere.test",
    "/\\elsewhere.test",
    "\\\\elsewhere.test",
    "/\t/elsewhere.test",
    "/\n/elsewhere.test",
    " //elsewhere.test",
    "javascript:alert(1)",
    "/jobs\r\nSet-Cookie: a=b",
    "elsewhere.test",
    "",
    "/" + "x" * 3000,
    "/sign-out",
    "/live",
]


@pytest.mark.parametrize("where", HOSTILE)
async def test_nobody_is_sent_elsewhere(stranger: httpx2.AsyncClient, ledger: Ledger, where: str) -> None:
    answer = await stranger.get("/sign-in", params={"next": where})
    assert 'name="next" value="/"' in answer.text
    secret = await token(ledger, Role.VIEWER)
    answer = await stranger.post("/sign-in", data={"token": secret, "next": where})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@given(st.text())
def test_what_comes_out_is_a_path_here(text: str) -> None:
    joined = httpx2.URL(URL).join(local_path(text))
    assert (joined.scheme, joined.host) == ("http", "fairway.test")


def test_own_paths_stay() -> None:
    for path in ("/", "/jobs?state=running&q=a%20b", "/pools/hpc-a100#map", "/teams/größe"):
        assert local_path(path) == path


async def test_one_comes_back_to_where_one_was(stranger: httpx2.AsyncClient, ledger: Ledger) -> None:
    answer = await stranger.get("/jobs?state=running")
    assert answer.headers["location"] == "/sign-in?next=%2Fjobs%3Fstate%3Drunning"
    page = (await stranger.get(answer.headers["location"])).text
    assert 'value="/jobs?state=running"' in page
    secret = await token(ledger, Role.VIEWER)
    answer = await stranger.post("/sign-in", data={"token": f" {secret}\n", "next": "/jobs?state=running"})
    assert answer.headers["location"] == "/jobs?state=running"


async def test_a_part_of_an_open_page_leads_to_sign_in_as_a_whole(stranger: httpx2.AsyncClient) -> None:
    answer = await stranger.get("/jobs", headers={"HX-Request": "true"})
    assert (answer.status_code, answer.headers["hx-redirect"]) == (204, "/sign-in?next=%2Fjobs")


async def test_the_cookie(stranger: httpx2.AsyncClient, ledger: Ledger, settings: Settings) -> None:
    answer = await stranger.post("/sign-in", data={"token": await token(ledger, Role.VIEWER)})
    name, *flags = (part.strip().lower() for part in answer.headers["set-cookie"].split(";"))
    assert name.startswith(f"{COOKIE}=")
    assert set(flags) == {
        "httponly",
        "samesite=lax",
        "path=/",
        f"max-age={int(settings.session_hours * 3600)}",
    }


async def test_the_cookie_by_https(app: FastAPI, ledger: Ledger) -> None:
    async with browser(app, "https://fairway.test") as client:
        answer = await client.post("/sign-in", data={"token": await token(ledger, Role.VIEWER)})
        assert answer.headers["set-cookie"].startswith(f"__Host-{COOKIE}=")
        assert "secure" in answer.headers["set-cookie"].lower()
        assert "domain" not in answer.headers["set-cookie"].lower()
        assert "strict-transport-security" in answer.headers
        assert (await client.get("/")).status_code == 200
        # A cookie without the prefix may be a neighbour's.
        secret = client.cookies[f"__Host-{COOKIE}"]
    async with browser(app, "https://fairway.test") as client:
        client.cookies.set(COOKIE, secret)
        assert (await client.get("/")).status_code == 303


async def test_the_cookie_behind_a_proxy_that_says_https(app: FastAPI, ledger: Ledger) -> None:
    async with browser(app, "http://10.0.0.1:8470") as client:
        form, said = {"token": await token(ledger, Role.VIEWER)}, {"X-Forwarded-Proto": "https"}
        answer = await client.post("/sign-in", data=form, headers=said)
        assert answer.headers["set-cookie"].startswith(f"__Host-{COOKIE}=")
        assert "secure" in answer.headers["set-cookie"].lower()
        plain = await client.post("/sign-in", data=form)
        assert "secure" not in plain.headers["set-cookie"].lower()


class TestBehindAProxy:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return replace(settings, public_url="https://gpus.acme.test")

    async def test_what_is_in_front_speaks_https(self, app: FastAPI, ledger: Ledger) -> None:
        async with browser(app, "http://10.0.0.1:8470") as client:
            form = {"token": await token(ledger, Role.VIEWER)}
            answer = await client.post("/sign-in", data=form, headers={"Origin": "https://gpus.acme.test"})
            assert answer.status_code == 303
            assert answer.headers["set-cookie"].startswith(f"__Host-{COOKIE}=")
            assert "secure" in answer.headers["set-cookie"].lower()
            answer = await client.post("/sign-in", data=form, headers={"Origin": "https://other.acme.test"})
            assert answer.status_code == 401


async def test_every_sign_in_is_a_new_session_and_ends_the_one_before(
    stranger: httpx2.AsyncClient, app: FastAPI, ledger: Ledger
) -> None:
    secret = await token(ledger, Role.VIEWER)
    stranger.cookies.set(COOKIE, "planted-by-somebody-else")
    await stranger.post("/sign-in", data={"token": secret})
    first = stranger.cookies.get(COOKIE, domain="fairway.test") or stranger.cookies[COOKIE]
    assert first != "planted-by-somebody-else"
    stranger.cookies.clear()
    stranger.cookies.set(COOKIE, first)
    answer = await stranger.post("/sign-in", data={"token": secret})
    assert f"{COOKIE}={first}" not in answer.headers["set-cookie"]
    async with browser(app) as other:
        other.cookies.set(COOKIE, first)
        assert (await other.get("/")).status_code == 303


async def test_signing_out_ends_the_session_on_the_server(viewer: httpx2.AsyncClient, app: FastAPI) -> None:
    secret = viewer.cookies[COOKIE]
    answer = await viewer.post("/sign-out", data={"csrf": csrf_of(secret)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert COOKIE not in viewer.cookies
    async with browser(app) as thief:
        thief.cookies.set(COOKIE, secret)
        assert (await thief.get("/")).status_code == 303


async def test_a_session_ends_with_its_token(ledger: Ledger, sign_in: SignIn) -> None:
    client = await sign_in(Role.VIEWER, name="short")
    assert (await client.get("/")).status_code == 200
    await ledger.tokens.revoke("short")
    assert (await client.get("/")).status_code == 303


async def shows(client: httpx2.AsyncClient, user: str) -> bool:
    """Whether the corner of a page names them."""
    return f"{user} <small>" in (await client.get("/nothing-here")).text


async def test_a_session_ends_when_its_token_or_itself_runs_out(app: FastAPI, ledger: Ledger) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=4)
    made = await ledger.tokens.create("t", Role.VIEWER, hash_secret("t"), "test", soon, user=UserName("ada"))
    for name, token_, seconds in (("of-a-token", made, 60.0), ("short", None, 4.0)):
        await ledger.sessions.create(
            hash_secret(name), token=token_, user=UserName("ada"), role=Role.VIEWER, seconds=seconds
        )
    async with browser(app) as one, browser(app) as other:
        one.cookies.set(COOKIE, "of-a-token")
        other.cookies.set(COOKIE, "short")
        assert [await shows(client, "ada") for client in (one, other)] == [True, True]
        await asyncio.sleep(4)
        assert [(await client.get("/")).status_code for client in (one, other)] == [303, 303]


async def test_wrong_tokens(stranger: httpx2.AsyncClient, ledger: Ledger) -> None:
    expired = new_secret()
    past = datetime.now(UTC) - timedelta(seconds=1)
    await ledger.tokens.create("old", Role.ADMIN, hash_secret(expired), "test", past)
    for wrong in ("", "x", expired, new_secret(), "fw_" + "x" * 5000, "\x00", "fw_ü"):
        answer = await stranger.post("/sign-in", data={"token": wrong})
        assert answer.status_code == 401
        assert "unknown, expired or revoked" in answer.text
        assert len(wrong) < 3 or wrong not in answer.text
        assert "set-cookie" not in answer.headers


# forms from elsewhere


async def test_a_form_needs_its_sessions_secret(sign_in: SignIn) -> None:
    one, other = await sign_in(Role.VIEWER), await sign_in(Role.VIEWER)
    good = csrf_of(one.cookies[COOKIE])
    wrong = {
        "missing": {},
        "empty": {"csrf": ""},
        "wrong": {"csrf": good[:-1] + ("0" if good[-1] != "0" else "1")},
        "another session's": {"csrf": csrf_of(other.cookies[COOKIE])},
        "the cookie itself": {"csrf": one.cookies[COOKIE]},
        "not ASCII": {"csrf": "ü" * 64},
    }
    for name, form in wrong.items():
        answer = await one.post("/sign-out", data=form)
        assert answer.status_code == 403, name
        assert "NotFromHere" in answer.text
    assert (await one.get("/")).status_code == 200  # nothing of it happened
    assert f'name="csrf" value="{good}"' in (await one.get("/")).text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.test"},
        {"Origin": "null"},
        {"Origin": "http://fairway.test.elsewhere.test"},
        {"Origin": "http://fairway.test:8080"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_form_from_another_site_is_refused(
    viewer: httpx2.AsyncClient, stranger: httpx2.AsyncClient, ledger: Ledger, headers: dict[str, str]
) -> None:
    good = {"csrf": csrf_of(viewer.cookies[COOKIE])}
    assert (await viewer.post("/sign-out", data=good, headers=headers)).status_code == 403
    # Nor is anybody signed in as somebody else from there.
    answer = await stranger.post("/sign-in", data={"token": await token(ledger, Role.ADMIN)}, headers=headers)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


async def test_a_form_of_our_own_is_taken(viewer: httpx2.AsyncClient) -> None:
    headers = {"Origin": URL, "Sec-Fetch-Site": "same-origin", "X-CSRF": csrf_of(viewer.cookies[COOKIE])}
    assert (await viewer.post("/sign-out", headers=headers)).status_code == 303


async def test_a_form_of_too_many_fields(stranger: httpx2.AsyncClient) -> None:
    answer = await stranger.post("/sign-in", content="&".join(f"f{n}=" for n in range(200)))
    assert answer.status_code == 400
    assert "FormTooLong" in answer.text


# too many wrong tokens


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def at(host: str) -> tuple[str, int]:
    return (host, 1)


def test_wrong_ones_are_bounded_by_address_and_forgiven() -> None:
    clock = Clock()
    guesses = WrongTokenLimiter(3, clock)
    for _ in range(3):
        guesses.record_wrong(at("10.0.0.1"))
    with pytest.raises(ApiError) as refused:
        guesses.record_wrong(at("10.0.0.1"))
    assert (refused.value.status, refused.value.headers) == (
        HTTPStatus.TOO_MANY_REQUESTS,
        {"Retry-After": "60"},
    )
    guesses.record_wrong(at("10.0.0.2"))
    clock.now += 2 * EACH_SECONDS
    guesses.record_wrong(at("10.0.0.1"))


def test_memory_is_bounded() -> None:
    guesses = WrongTokenLimiter()
    for n in range(12_000):
        guesses.record_wrong(at(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"))
        guesses.record_valid(n.to_bytes(4))
    assert (len(guesses._wrong._levels), len(guesses._valid)) == (10_000, 10_000)


def test_an_address_of_ipv6_is_a_network() -> None:
    assert address_of(at("2001:db8::1")) == address_of(at("2001:db8::ffff")) == "2001:db8::/64"
    assert address_of(at("2001:db8:0:1::1")) != address_of(at("2001:db8::1"))
    assert address_of(at("10.0.0.1")) == "10.0.0.1"
    assert address_of(at("a socket")) == "a socket"


async def test_pages_and_api_count_together(
    app: FastAPI, stranger: httpx2.AsyncClient, ledger: Ledger
) -> None:
    app.state.token_limiter = WrongTokenLimiter(4, Clock())
    good = await bearer(ledger, Role.VIEWER)
    assert (await stranger.get("/v1/whoami", headers=good)).status_code == 200
    wrong = {"Authorization": f"Bearer {new_secret()}"}
    for _ in range(2):
        assert (await stranger.get("/v1/whoami", headers=wrong)).status_code == 401
        assert (await stranger.post("/sign-in", data={"token": "wrong"})).status_code == 401
    answer = await stranger.get("/v1/whoami", headers=wrong | {"Accept": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (429, "TooManyWrongTokens")
    answer = await stranger.post("/sign-in", data={"token": new_secret()})
    assert answer.status_code == 429
    assert answer.headers["content-type"].startswith("text/html")
    # Whoever works from the same address goes on working, also with a token that was never seen here.
    assert (await stranger.get("/v1/whoami", headers=good)).status_code == 200
    fresh = await bearer(ledger, Role.ADMIN)
    assert (await stranger.get("/v1/whoami", headers=fresh)).status_code == 200
    signing_in = {"token": fresh["Authorization"].removeprefix("Bearer ")}
    assert (await stranger.post("/sign-in", data=signing_in)).status_code == 303


async def test_few_unknown_tokens_and_cookies_are_looked_up_at_once(
    app: FastAPI, stranger: httpx2.AsyncClient, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = await bearer(ledger, Role.VIEWER)
    assert (await stranger.get("/v1/whoami", headers=good)).status_code == 200
    looked_up: list[bytes] = []
    go_on = asyncio.Event()
    by_hash, caller = ledger.tokens.by_hash, ledger.sessions.caller

    async def slow_token(digest: bytes) -> Token | None:
        looked_up.append(digest)
        if digest != hash_secret(good["Authorization"].removeprefix("Bearer ")):
            await go_on.wait()
        return await by_hash(digest)

    async def slow_session(digest: bytes) -> Token | None:
        looked_up.append(digest)
        await go_on.wait()
        return await caller(digest)

    monkeypatch.setattr(ledger.tokens, "by_hash", slow_token)
    monkeypatch.setattr(ledger.sessions, "caller", slow_session)
    # Four: one place among the reads that run at once is left for the good one.
    wrong = [{"Authorization": f"Bearer {new_secret()}"} for _ in range(2)]
    wrong += [{"Cookie": f"fairway_session={new_secret()}"} for _ in range(2)]
    asking = [
        asyncio.create_task(stranger.get("/v1/whoami" if "Authorization" in w else "/", headers=w))
        for w in wrong
    ]
    await eventually(lambda: len(looked_up) >= 3, 10, "the first look-ups")
    assert (await stranger.get("/v1/whoami", headers=good)).status_code == 200
    assert len(looked_up) == 4
    go_on.set()
    assert {(await asked).status_code for asked in asking} == {401, 303}
    async with browser(app, address="10.0.0.9") as other:
        assert (await other.post("/sign-in", data={"token": "wrong"})).status_code == 401


# errors as pages


@pytest.fixture
async def failing(app: FastAPI) -> AsyncIterator[FastAPI]:
    """An app that has a page which fails, and one whose ledger is gone."""
    from fairway.web.sessions import PAGE_PUBLIC, PageRoute

    app.router.route_class = PageRoute

    @app.get("/fails", dependencies=PAGE_PUBLIC)
    async def fails() -> None:
        raise ZeroDivisionError("a secret of the server")

    @app.get("/gone", dependencies=PAGE_PUBLIC)
    async def gone() -> None:
        raise LedgerUnreachable("LedgerUnreachable", "the ledger at db.internal does not answer", "")

    yield app


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing-here", 404, "NoSuchPath"),
        ("GET", "/static/no-such-file.js", 404, "NoSuchPath"),
        ("DELETE", "/sign-in", 405, "MethodNotAllowed"),
        ("GET", "/fails", 500, "InternalError"),
        ("GET", "/gone", 503, "LedgerUnreachable"),
        ("GET", "/" + "x" * 9000, 414, "TargetTooLong"),
    ],
)
async def test_people_get_pages(failing: FastAPI, method: str, path: str, status: int, code: str) -> None:
    async with browser(failing) as client:
        answer = await client.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"] == CSP
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert f"{code} · request id {answer.headers['x-request-id']}" in answer.text
        for secret in ("secret of the server", "db.internal", "Traceback"):
            assert secret not in answer.text
        told = await client.request(method, path, headers={"Accept": "application/json"})
        of_no_page = not path.startswith("/static/")
        assert (told.headers["content-type"] == "application/problem+json") == of_no_page


async def test_programs_get_problems_whatever_they_accept(stranger: httpx2.AsyncClient) -> None:
    answer = await stranger.get("/v1/no-such-thing")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    answer = await stranger.get("/nothing-here", headers={"Accept": "*/*"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


async def test_who_is_signed_in_keeps_the_navigation_on_an_error(viewer: httpx2.AsyncClient) -> None:
    answer = await viewer.get("/nothing-here")
    assert 'aria-label="Pages"' in answer.text
    assert "finance <small>viewer</small>" in answer.text


async def test_every_page_has_the_strict_policy(
    viewer: httpx2.AsyncClient, stranger: httpx2.AsyncClient
) -> None:
    for client, path in ((viewer, "/"), (viewer, "/jobs"), (stranger, "/sign-in"), (stranger, "/nothing")):
        answer = await client.get(path)
        assert answer.headers["content-security-policy"] == CSP
        assert "unsafe" not in CSP
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\sstyle=|\son\w+=", answer.text), path
