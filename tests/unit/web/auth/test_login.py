"""Signing in from the command line: confirmed in the browser, once, by one person; and what others try."""

from __future__ import annotations

import html
import re
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import psycopg
import pytest
from fastapi import FastAPI

from fairway.client.login import LoginSecret
from fairway.ledger import Ledger, TooManyLogins
from fairway.ledger.access import logins as store
from fairway.model.access import Role
from fairway.model.names import UserName
from fairway.services import logins
from fairway.services.tokens import hash_secret
from fairway.settings import Settings, read_settings
from fairway.web.sessions import COOKIE, csrf_of
from tests.unit.web.conftest import SignIn, browser

ISSUER = "https://id.acme.test"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A server with a provider, which nobody asks here: tests/integration/server/test_oidc.py does."""
    given = {"state_dir": str(tmp_path), "oidc_issuer": ISSUER, "oidc_client_id": "fairway"}
    return read_settings(given, {"XDG_CONFIG_HOME": str(tmp_path)})


async def person(
    app: FastAPI, ledger: Ledger, user: str = "ada", role: Role = Role.MEMBER, *, hours: float = 12
) -> httpx2.AsyncClient:
    """The browser of somebody who has just signed in at the provider."""
    client, secret = browser(app), secrets.token_urlsafe(32)
    await ledger.sessions.create(
        hash_secret(secret), token=None, user=UserName(user), role=role, issuer=ISSUER, seconds=hours * 3600
    )
    client.cookies.set(COOKIE, secret)
    return client


async def send(client: httpx2.AsyncClient, path: str, code: str, **headers: str) -> httpx2.Response:
    """Send a form of the page, with its secret."""
    csrf = csrf_of(client.cookies[COOKIE])
    return await client.post(path, data={"code": code, "csrf": csrf}, headers=headers)


class CommandLine:
    """`fairway login` on some machine."""

    def __init__(self, http: httpx2.AsyncClient, port: int | None = None) -> None:
        self.http = http
        self.port = port
        self.secret = LoginSecret.new()
        self.code = ""
        self.path = ""

    async def begin(self) -> CommandLine:
        body = {"challenge": self.secret.challenge, "host": "laptop <b>", "port": self.port}
        answer = await self.http.post("/v1/logins", json=body)
        assert answer.status_code == 201, answer.text
        begun = answer.json()
        assert (begun["expires_in_seconds"], begun["poll_seconds"]) == (600, 2.0)
        self.code, self.path = begun["code"], begun["path"]
        return self

    async def redeem(self, code: str | None = None, verifier: str | None = None) -> httpx2.Response:
        body = {"verifier": verifier or self.secret.verifier, "code": code}
        return await self.http.post("/v1/logins/redeem", json=body)

    async def token(self, code: str | None = None) -> dict[str, str]:
        answer = await self.redeem(code)
        assert answer.status_code == 200, answer.text
        found: dict[str, str] = answer.json()["token"]
        return found


async def ended(line: CommandLine, code: str | None = None) -> bool:
    """The sign-in is gone: refused, used or expired."""
    answer = await line.redeem(code)
    return answer.status_code == 404 and answer.json()["code"] == "LoginEnded"


async def who(http: httpx2.AsyncClient, secret: str) -> httpx2.Response:
    return await http.get("/v1/whoami", headers={"Authorization": f"Bearer {secret}"})


async def test_with_a_code_on_another_machine(
    app: FastAPI, ledger: Ledger, stranger: httpx2.AsyncClient
) -> None:
    line = await CommandLine(stranger).begin()
    assert re.fullmatch(r"[B-Z]{4}-[B-Z]{4}", line.code)
    assert line.path == "/login", "the code is not in the address: the person types it"
    assert await line.token() is None
    ada = await person(app, ledger)
    assert 'name="code"' in (await ada.get("/login")).text
    asked = await send(ada, "/login", line.code.lower().replace("-", " "))
    assert (
        line.code in asked.text and "<strong>ada</strong>" in asked.text and "the role member" in asked.text
    )
    assert "laptop &lt;b&gt;" in asked.text, "what the machine calls itself is not trusted"
    assert await line.token() is None, "the person has not confirmed yet"
    assert "is signed in" in (await send(ada, "/login/allow", line.code)).text
    made = await line.token()
    assert (made["user"], made["role"]) == ("ada", "member")
    expires = datetime.fromisoformat(made["expires_at"])
    assert timedelta(hours=11.9) < expires - datetime.now(UTC) <= timedelta(hours=12)
    said = (await who(stranger, made["secret"])).json()
    assert (said["user"], said["role"], said["name"]) == ("ada", "member", made["name"])
    (listed,) = [t for t in await ledger.tokens.all() if t.name == made["name"]]
    assert listed.created_by == f"fairway login at {ISSUER} from laptop <b>"
    assert await ended(line), "a sign-in gives one token"


async def test_in_the_browser_of_this_machine(
    app: FastAPI, ledger: Ledger, stranger: httpx2.AsyncClient
) -> None:
    line = await CommandLine(stranger, port=50123).begin()
    assert line.path == f"/login?request={line.code}"
    there = await stranger.get(line.path)
    assert (there.status_code, there.headers["location"]) == (
        303,
        f"/sign-in?next=%2Flogin%3Frequest%3D{line.code}",
    )
    ada = await person(app, ledger)
    assert line.code in (await ada.get(line.path)).text
    done = await send(ada, "/login/allow", line.code)
    found = re.fullmatch(r"0; url=http://127\.0\.0\.1:50123/\?code=([\w-]{43})", done.headers["refresh"])
    assert found is not None
    assert "no-store" in done.headers["cache-control"]
    assert f"127.0.0.1:50123/?code={found[1]}" in html.unescape(done.text)
    assert await line.token() is None, "without what the browser brings, the verifier alone is not enough"
    assert await line.token("x" * 43) is None
    made = await line.token(found[1])
    assert (await who(stranger, made["secret"])).status_code == 200
    assert await ended(line, found[1])


async def test_who_has_the_code_but_not_the_verifier_gets_nothing(
    app: FastAPI, ledger: Ledger, stranger: httpx2.AsyncClient
) -> None:
    line = await CommandLine(stranger, port=50123).begin()
    done = await send(await person(app, ledger), "/login/allow", line.code)
    code = done.headers["refresh"].rpartition("=")[2]
    thief = CommandLine(stranger)
    assert await ended(thief, code)
    assert (await thief.redeem(code, line.code * 5)).status_code == 404
    assert await line.token(code) is not None


async def test_a_link_that_somebody_sends_does_not_confirm_their_own_sign_in(
    app: FastAPI, ledger: Ledger, stranger: httpx2.AsyncClient
) -> None:
    """The attacker waits for a code on their own machine and sends a link: it must be typed instead."""
    attacker = await CommandLine(stranger).begin()
    ada = await person(app, ledger)
    page = await ada.get(f"/login?request={attacker.code}")
    assert page.status_code == 404 and "NoSuchLogin" in page.text
    # With a port the code goes to the victim's machine, where the attacker does not listen.
    attacker = await CommandLine(stranger, port=50123).begin()
    assert "Refresh" in (await send(ada, "/login/allow", attacker.code)).headers
    assert await attacker.token() is None


@pytest.mark.parametrize("path", ["/login", "/login/allow", "/login/refuse"])
async def test_forms_of_other_sites_confirm_nothing(
    app: FastAPI, ledger: Ledger, stranger: httpx2.AsyncClient, path: str
) -> None:
    line = await CommandLine(stranger).begin()
    ada = await person(app, ledger)
    for data, headers in (
        ({"code": line.code}, {}),
        ({"code": line.code, "csrf": "0" * 64}, {}),
        ({"code": line.code, "csrf": csrf_of(ada.cookies[COOKIE])}, {"Origin": "https://evil.test"}),
        ({"code": line.code, "csrf": csrf_of(ada.cookies[COOKIE])}, {"Sec-Fetch-Site": "cross-site"}),
    ):
        answer = await ada.post(path, data=data, headers=headers)
        assert answer.status_code == 403 and "NotFromHere" in answer.text
    assert (await stranger.post(path, data={"code": line.code})).headers["location"] == "/sign-in"
    assert await line.token() is None
    page = await ada.get("/login")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]


async def test_one_person_confirms_and_nobody_after(
    app: FastAPI, ledger: Ledger, stranger: httpx2.AsyncClient
) -> None:
    line = await CommandLine(stranger).begin()
    ada, olga = await person(app, ledger), await person(app, ledger, "olga", Role.OPERATOR)
    await send(ada, "/login/allow", line.code)
    for path in ("/login", "/login/allow"):
        again = await send(olga, path, line.code)
        assert again.status_code == 404 and "NoSuchLogin" in again.text
    await send(olga, "/login/refuse", line.code)
    assert (await line.token())["user"] == "ada"


async def test_refused(app: FastAPI, ledger: Ledger, stranger: httpx2.AsyncClient) -> None:
    line = await CommandLine(stranger).begin()
    ada = await person(app, ledger)
    assert "Access refused" in (await send(ada, "/login/refuse", line.code)).text
    assert (await send(ada, "/login/allow", line.code)).status_code == 404
    assert await ended(line)


async def test_after_ten_minutes_it_is_gone(
    app: FastAPI, ledger: Ledger, stranger: httpx2.AsyncClient, database_url: str
) -> None:
    ada = await person(app, ledger)
    early, late = await CommandLine(stranger).begin(), await CommandLine(stranger).begin()
    await send(ada, "/login/allow", late.code)
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE login_request SET expires_at = now() - interval '1 s'")
    assert (await send(ada, "/login", early.code)).status_code == 404
    assert (await send(ada, "/login/allow", early.code)).status_code == 404
    assert await ended(early)
    assert await ended(late), "confirmed in time, fetched too late"
    await CommandLine(stranger).begin()
    with psycopg.connect(database_url) as db:
        assert db.execute("SELECT count(*) FROM login_request").fetchone() == (1,), "expired ones are removed"


async def test_who_signed_in_by_a_token_or_long_ago_signs_in_with_the_organisation_first(
    app: FastAPI, ledger: Ledger, sign_in: SignIn, stranger: httpx2.AsyncClient, database_url: str
) -> None:
    """A token's holder must not make another that outlives it, and an old session has an old role."""
    line = await CommandLine(stranger, port=50123).begin()
    by_token, ada = await sign_in(Role.ADMIN), await person(app, ledger)
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE web_session SET created_at = now() - interval '2 h' WHERE user_name = 'ada'")
    for client in (by_token, ada):
        page = await client.get(line.path)
        assert page.status_code == 303
        assert page.headers["location"] == f"/sign-in/oidc?next=%2Flogin%3Frequest%3D{line.code}"
        refused = await send(client, "/login/allow", line.code)
        assert refused.status_code == 403 and "SignInTooOld" in refused.text
    assert await line.token() is None


async def test_every_role_may_confirm_and_gets_its_own(
    app: FastAPI, ledger: Ledger, stranger: httpx2.AsyncClient
) -> None:
    for role in (Role.VIEWER, Role.MEMBER, Role.LEAD, Role.OPERATOR, Role.ADMIN):
        line = await CommandLine(stranger).begin()
        client = await person(app, ledger, f"u-{role}", role)
        assert (await client.get("/login")).status_code == 200
        await send(client, "/login/allow", line.code)
        assert (await line.token())["role"] == role
    line = await CommandLine(stranger).begin()
    refused = await send(await person(app, ledger, "root", Role.ADMIN), "/login/allow", line.code)
    assert refused.status_code == 403 and "SystemUser" in refused.text


async def test_signing_out_revokes_the_token_and_no_other(
    app: FastAPI, ledger: Ledger, stranger: httpx2.AsyncClient, sign_in: SignIn
) -> None:
    tokens = []
    ada = await person(app, ledger, role=Role.ADMIN)
    for _ in range(3):
        line = await CommandLine(stranger).begin()
        await send(ada, "/login/allow", line.code)
        tokens.append((await line.token())["secret"])
    first, second, third = ({"Authorization": f"Bearer {secret}"} for secret in tokens)
    assert (await stranger.post("/v1/logout", headers=first)).json()["revoked_at"]
    assert (await stranger.post("/v1/logout", headers=first)).status_code == 401
    assert (await who(stranger, tokens[1])).status_code == 200
    made = await stranger.post(
        "/v1/tokens", headers=second, json={"name": "robot", "role": "admin", "user": "ada"}
    )
    robot = {"Authorization": f"Bearer {made.json()['secret']}"}
    kept = await stranger.post("/v1/logout", headers=robot)
    assert (kept.status_code, kept.json()["code"]) == (409, "NotALogin")
    out = (await stranger.delete("/v1/sessions?user=ada", headers=robot)).json()
    assert out == {"user": "ada", "ended": 1, "tokens": 2}
    assert (await who(stranger, tokens[2])).status_code == 401
    assert (await stranger.get("/v1/whoami", headers=robot)).status_code == 200
    assert third


async def test_how_much_strangers_may_ask(
    app: FastAPI, ledger: Ledger, stranger: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"challenge": LoginSecret.new().challenge}
    codes = [
        (await stranger.post("/v1/logins", json={"challenge": LoginSecret.new().challenge})).status_code
        for _ in range(35)
    ]
    assert codes[:30] == [201] * 30 and codes[-1] == 429
    async with browser(app, address="10.0.0.9") as other:
        assert (await other.post("/v1/logins", json=body)).status_code == 201
        wrong = [await ended_or_limited(other) for _ in range(70)]
        assert wrong[:55] == [404] * 55 and wrong[-1] == 429
    monkeypatch.setattr(store, "MAX_OPEN", 5)
    with pytest.raises(TooManyLogins):
        await ledger.logins.begin(b"x" * 32, "BCDFGHJK", "", None)
    ada = await person(app, ledger)
    typed = [(await send(ada, "/login", "BBBB-BBBB")).status_code for _ in range(70)]
    assert typed[0] == 404 and typed[-1] == 429, "codes cannot be guessed"


async def ended_or_limited(http: httpx2.AsyncClient) -> int:
    answer = await http.post("/v1/logins/redeem", json={"verifier": LoginSecret.new().verifier})
    return answer.status_code


async def test_a_person_has_so_many_and_old_ones_are_forgotten(
    app: FastAPI,
    ledger: Ledger,
    stranger: httpx2.AsyncClient,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "_MAX_PER_USER", 2)
    ada = await person(app, ledger)
    made = []
    for _ in range(3):
        line = await CommandLine(stranger).begin()
        await send(ada, "/login/allow", line.code)
        made.append(await line.token())
    assert [(await who(stranger, m["secret"])).status_code for m in made] == [401, 200, 200]
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE api_token SET expires_at = now() - interval '40 days'")
        db.execute(
            "INSERT INTO api_token (name, role, hash, created_by, expires_at)"
            " VALUES ('old', 'viewer', 'x', 'root', now() - interval '40 days')"
        )
    await CommandLine(stranger).begin()
    assert [t.name for t in await ledger.tokens.all()] == ["old"], "tokens that people made stay listed"


def test_a_sign_in_is_fresh_for_an_hour() -> None:
    assert timedelta(hours=1) == logins.MAX_SIGN_IN_AGE
    assert logins.shown_code("BCDFGHJK") == "BCDF-GHJK"


@pytest.mark.parametrize(
    "body",
    [
        {"challenge": "short"},
        {"challenge": "A" * 44},
        {"challenge": "A" * 42 + "="},
        {"challenge": "A" * 43, "port": 0},
        {"challenge": "A" * 43, "port": 70_000},
        {"challenge": "A" * 43, "host": "x" * 65},
        {"challenge": "A" * 43, "host": "a\nb"},
        {"challenge": "A" * 43, "url": "https://evil.test"},
    ],
)
async def test_what_makes_no_sense_is_refused(stranger: httpx2.AsyncClient, body: dict[str, object]) -> None:
    assert (await stranger.post("/v1/logins", json=body)).status_code == 422
