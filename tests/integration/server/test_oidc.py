"""Signing in by OpenID Connect at a real provider, without a browser; and what others might try."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import httpx2
import pytest
import structlog
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES
from fairway.client.login import LoginSecret
from fairway.ledger import Ledger
from fairway.services.fleets import Fleets
from fairway.settings import Settings, read_settings
from fairway.web.app import add_pages
from fairway.web.auth import oidc_provider, oidc_token
from fairway.web.sessions import COOKIE, csrf_of
from lab.oidc import OidcProvider, Setting, has_node
from tests.contract.driver import absent
from tests.unit.api.conftest import build_policy_services
from tests.unit.api.governed import Memory
from tests.unit.web.conftest import FLEET, URL, browser

BACK = f"{URL}/sign-in/oidc/back"
SECRET = "a secret with /+ % and =, as they are"
CLIENT = {"redirect_uris": [BACK], "grant_types": ["authorization_code"], "response_types": ["code"]}
CLIENTS = [
    CLIENT | {"client_id": "fairway", "client_secret": SECRET},
    CLIENT
    | {"client_id": "by-post", "client_secret": SECRET, "token_endpoint_auth_method": "client_secret_post"},
    CLIENT | {"client_id": "public", "token_endpoint_auth_method": "none"},
    CLIENT | {"client_id": "other", "client_secret": "another"},
]
PEOPLE: dict[str, dict[str, object]] = {
    "ada": {
        "preferred_username": "ada",
        "groups": ["staff"],
        "email": "ada@acme.test",
        "email_verified": True,
    },
    "olga": {"preferred_username": "olga", "groups": ["staff", "platform", "leads"]},
    "nobody": {"groups": ["platform"]},
    "eve": {"preferred_username": "eve", "email": "ada@acme.test", "email_verified": False},
}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OidcProvider]:
    """The provider, as the specification has it: claims are asked for."""
    if not has_node():
        absent("Node, which runs the OpenID Connect provider", "apt install nodejs npm")
    made = OidcProvider(Setting(CLIENTS, PEOPLE), tmp_path_factory.mktemp("oidc"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def server(ledger: Ledger, provider: OidcProvider, tmp_path: Path) -> Callable[..., FastAPI]:
    """Makes a server that trusts the provider; settings may be told otherwise."""

    def make(**told: str) -> FastAPI:
        secret = tmp_path / "client-secret"
        secret.write_text(f"{SECRET}\n")
        given = {
            "oidc_issuer": provider.issuer,
            "oidc_client_id": "fairway",
            "oidc_client_secret_file": str(secret),
            "oidc_roles": "leads=lead, platform=operator, staff=viewer",
            "state_dir": str(tmp_path),
        } | told
        settings = read_settings(
            {name: value for name, value in given.items() if value}, {"XDG_CONFIG_HOME": str(tmp_path)}
        )
        return app_of(ledger, settings)

    return make


def app_of(ledger: Ledger, settings: Settings) -> FastAPI:
    policy = build_policy_services(Memory())
    app = create_app(ledger, CollectorRegistry(), Fleets(ledger, lambda _: FLEET), policy, NO_JOB_SERVICES)
    add_pages(app, ledger, app.state.fleets, policy, NO_JOB_SERVICES, settings)
    return app


@asynccontextmanager
async def at_provider() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=20) as client:
        yield client


async def begun(client: httpx2.AsyncClient, path: str = "/sign-in/oidc") -> str:
    """Where Fairway sends the browser to."""
    answer = await client.get(path)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


async def through(where: str, login: str, *, cancel: bool = False) -> str:
    """The provider's forms, filled in; the address it sends the browser back to."""
    async with at_provider() as http:
        for _ in range(20):
            if where.startswith(URL):
                return where
            answer = await http.get(where)
            if answer.is_redirect:
                where = urljoin(where, answer.headers["location"])
                continue
            assert answer.status_code == 200, answer.text[-800:]
            if cancel:
                found = re.search(r'href="([^"]+/abort)"', answer.text)
                assert found, answer.text
                where = urljoin(where, found[1])
                continue
            where = await submitted(http, where, answer.text, login)
    raise AssertionError("the provider asks for ever")


async def submitted(http: httpx2.AsyncClient, where: str, page: str, login: str) -> str:
    form = re.search(r'<form[^>]+action="([^"]+)"', page)
    assert form, page
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="(\w*)"', page))
    if 'name="login"' in page:
        fields |= {"login": login, "password": "any"}
    answer = await http.post(urljoin(where, form[1]), data=fields)
    assert answer.is_redirect, answer.text
    return urljoin(where, answer.headers["location"])


def altered(url: str, **query: str | None) -> str:
    """The address with other parameters; None takes one away."""
    parts = urlsplit(url)
    known = {name: values[0] for name, values in parse_qs(parts.query).items()} | query
    left = {name: value for name, value in known.items() if value is not None}
    return parts._replace(query=urlencode(left)).geturl()


async def refused(client: httpx2.AsyncClient, back: str, code: str) -> httpx2.Response:
    """Coming back with this is answered by a page of that code, and by no session."""
    with structlog.testing.capture_logs() as logs:
        answer = await client.get(back)
    assert answer.status_code >= 400
    assert f"{code} ·" in answer.text, answer.text
    assert "Traceback" not in answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert COOKIE not in client.cookies
    assert any(line["event"] == "sign-in failed" and line["code"] == code for line in logs)
    assert SECRET not in str(logs) and SECRET not in answer.text
    return answer


async def who(client: httpx2.AsyncClient) -> str:
    """User and role, as the page's corner shows them."""
    answer = await client.get("/no-such-page")  # as good as any: it reads nothing else
    found = re.search(r'class="name">(\S+) <small>(\w+)<', answer.text)
    return f"{found[1]} {found[2]}" if found else ""


async def test_the_whole_way(server: Callable[..., FastAPI]) -> None:
    async with browser(server()) as client:
        assert (
            "/sign-in/oidc?next=/jobs%3Fstate%3Drunning"
            in (await client.get("/sign-in?next=/jobs%3Fstate%3Drunning")).text
        )
        where = await begun(client, "/sign-in/oidc?next=/jobs%3Fstate%3Drunning")
        asked = parse_qs(urlsplit(where).query)
        assert asked["code_challenge_method"] == ["S256"]
        assert asked["scope"] == ["openid profile email groups"]
        answer = await client.get(await through(where, "olga"))
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=running")
        assert await who(client) == "olga operator"  # the highest of her groups
        assert "fairway_oidc" not in client.cookies


@pytest.mark.parametrize("client_id", ["fairway", "by-post"])
async def test_both_ways_to_say_who_fairway_is(server: Callable[..., FastAPI], client_id: str) -> None:
    app = server(oidc_client_id=client_id)
    for _ in range(2):  # the second time it knows which
        async with browser(app) as client:
            await client.get(await through(await begun(client), "ada"))
            assert await who(client) == "ada viewer"


async def test_a_public_client(server: Callable[..., FastAPI]) -> None:
    async with browser(server(oidc_client_id="public", oidc_client_secret_file="")) as client:
        await client.get(await through(await begun(client), "ada"))
        assert await who(client) == "ada viewer"


async def test_without_a_group_one_is_a_member(server: Callable[..., FastAPI]) -> None:
    async with browser(server(oidc_roles="none")) as client:
        await client.get(await through(await begun(client), "ada"))
        assert await who(client) == "ada member"


async def test_claims_in_the_id_token(server: Callable[..., FastAPI], tmp_path: Path) -> None:
    other = OidcProvider(Setting(CLIENTS, PEOPLE, claims_in_user_info_only=False), tmp_path / "provider")
    other.start()
    try:
        async with browser(server(oidc_issuer=other.issuer)) as client:
            await client.get(await through(await begun(client), "olga"))
            assert await who(client) == "olga operator"
    finally:
        other.stop()


async def test_a_code_is_worth_nothing_the_second_time(server: Callable[..., FastAPI]) -> None:
    app = server()
    async with browser(app) as client:
        where = await begun(client)
        kept = client.cookies["fairway_oidc"]
        back = await through(where, "ada")
        assert (await client.get(back)).status_code == 303
    async with browser(app) as thief:  # who read the address alone
        await refused(thief, back, "OidcStale")
    async with browser(app) as thief:  # who has the browser's cookie too
        thief.cookies.set("fairway_oidc", kept)
        await refused(thief, back, "OidcNotProven")


async def test_an_answer_to_another_question(server: Callable[..., FastAPI]) -> None:
    app = server()
    async with browser(app) as one, browser(app) as other:
        back = await through(await begun(one), "ada")
        await begun(other)
        await refused(other, back, "OidcStale")  # planted in somebody else's browser
        await refused(one, altered(back, state="0" * 64), "OidcStale")
        await refused(one, back, "OidcStale")  # one try a question
    async with browser(app) as client:
        await refused(client, altered(await through(await begun(client), "ada"), state=None), "OidcStale")


async def test_a_token_for_another_question(server: Callable[..., FastAPI]) -> None:
    async with browser(server()) as client:
        where = altered(await begun(client), nonce="of somebody else's question")
        await refused(client, await through(where, "ada"), "OidcNotProven")


async def test_a_code_of_another_proof(server: Callable[..., FastAPI]) -> None:
    async with browser(server()) as client:
        where = altered(await begun(client), code_challenge="E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM")
        await refused(client, await through(where, "ada"), "OidcNotProven")


async def test_a_code_for_another_client(server: Callable[..., FastAPI]) -> None:
    async with browser(server()) as client:
        where = altered(await begun(client), client_id="other")
        await refused(client, await through(where, "ada"), "OidcNotProven")


async def test_an_answer_of_another_provider(server: Callable[..., FastAPI]) -> None:
    for issuer in ("https://elsewhere.test", None):
        async with browser(server()) as client:
            back = altered(await through(await begun(client), "ada"), iss=issuer)
            await refused(client, back, "OidcNotProven")


async def test_a_token_for_another_client(
    server: Callable[..., FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browser(server()) as client:
        back = await through(await begun(client), "ada")
        real = oidc_token.verified_claims
        monkeypatch.setattr(
            oidc_provider,
            "verified_claims",
            lambda *a, **known: real(*a, **known | {"client_id": "somebody-else"}),
        )
        await refused(client, back, "OidcNotProven")


async def test_an_expired_token(server: Callable[..., FastAPI], monkeypatch: pytest.MonkeyPatch) -> None:
    async with browser(server()) as client:
        back = await through(await begun(client), "ada")
        real = oidc_token.verified_claims
        later = int(time.time()) + 3600 + 61
        monkeypatch.setattr(
            oidc_provider, "verified_claims", lambda *a, **known: real(*a, **known | {"now": later})
        )
        await refused(client, back, "OidcNotProven")


async def test_new_keys_are_found_when_they_are_needed(
    server: Callable[..., FastAPI], provider: OidcProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = server()
    async with browser(app) as client:
        await client.get(await through(await begun(client), "ada"))
        assert await who(client) == "ada viewer"
    provider.stop()
    provider.start()  # with another key
    async with browser(app) as client:
        back = await through(await begun(client), "ada")
        await refused(client, back, "OidcNotProven")  # keys were asked for a moment ago: not again so soon
    monkeypatch.setattr(oidc_provider, "NEW_KEYS_SECONDS", 0.0)
    async with browser(app) as client:
        await client.get(await through(await begun(client), "ada"))
        assert await who(client) == "ada viewer"


async def test_who_declines(server: Callable[..., FastAPI]) -> None:
    async with browser(server()) as client:
        back = await through(await begun(client), "ada", cancel=True)
        answer = await refused(client, back, "OidcDenied")
        assert "declined" in answer.text


async def test_nobody_by_name(server: Callable[..., FastAPI]) -> None:
    async with browser(server()) as client:
        answer = await refused(client, await through(await begun(client), "nobody"), "OidcUserMissing")
        assert "preferred_username" in answer.text
    async with browser(server(oidc_user_claim="email")) as client:
        await refused(client, await through(await begun(client), "eve"), "OidcUserMissing")


async def test_a_wrong_secret_is_a_page_and_a_word_in_the_log(
    server: Callable[..., FastAPI], tmp_path: Path
) -> None:
    app = server()
    (tmp_path / "client-secret").write_text("not the secret")
    async with browser(app) as client:
        back = await through(await begun(client), "ada")
        with structlog.testing.capture_logs() as logs:
            answer = await client.get(back)
        assert "OidcMisconfigured" in answer.text
        assert "invalid_client" in str(logs)
        assert "not the secret" not in str(logs) + answer.text


async def test_a_provider_that_is_gone(server: Callable[..., FastAPI], provider: OidcProvider) -> None:
    app, fresh = server(), server()
    async with browser(app) as client, browser(fresh) as other:
        back = await through(await begun(client), "ada")
        provider.stop()
        try:
            await refused(client, back, "OidcUnreachable")
            answer = await refused(other, "/sign-in/oidc", "OidcUnreachable")
            assert answer.status_code == 503
            assert "by a token" in answer.text
        finally:
            provider.start()


async def test_an_issuer_by_another_name(server: Callable[..., FastAPI], provider: OidcProvider) -> None:
    app = server(oidc_issuer=provider.issuer.replace("127.0.0.1", "localhost"))
    async with browser(app) as client:
        await refused(client, "/sign-in/oidc", "OidcMisconfigured")


async def test_the_command_line_signs_in(server: Callable[..., FastAPI]) -> None:
    """The whole way of `fairway login`: sign-in page, provider, confirmation, token; and out again."""
    app = server()
    async with browser(app) as line, browser(app) as person:
        secret = LoginSecret.new()
        request = (await line.post("/v1/logins", json={"challenge": secret.challenge, "port": 50123})).json()
        asked = await person.get(request["path"])
        sign_in = await person.get(asked.headers["location"])
        (link,) = re.findall(r'href="(/sign-in/oidc[^"]+)"', sign_in.text)
        back = await person.get(await through(await begun(person, link), "olga"))
        assert back.headers["location"] == request["path"]
        assert "<strong>olga</strong> with the role operator" in (await person.get(request["path"])).text
        form = {"code": request["code"], "csrf": csrf_of(person.cookies[COOKIE])}
        done = await person.post("/login/allow", data=form)
        code = done.headers["refresh"].rpartition("code=")[2]
        redeemed = await line.post("/v1/logins/redeem", json={"verifier": secret.verifier, "code": code})
        token = redeemed.json()["token"]
        assert (token["user"], token["role"]) == ("olga", "operator")
        headers = {"Authorization": f"Bearer {token['secret']}"}
        assert (await line.get("/v1/whoami", headers=headers)).json()["user"] == "olga"
        assert (await line.post("/v1/logout", headers=headers)).status_code == 200
        assert (await line.get("/v1/whoami", headers=headers)).status_code == 401
