"""Sessions of the pages: who is signed in, how many at once, and how an admin signs somebody out."""

from __future__ import annotations

import httpx2
import pytest

from fairway.ledger import Ledger
from fairway.ledger.access.sessions import MAX_PER_USER
from fairway.model.access import Role
from fairway.model.names import UserName
from fairway.services.tokens import hash_secret, new_secret
from fairway.web.sessions import COOKIE
from tests.unit.web.conftest import SignIn, token


@pytest.fixture
async def root(ledger: Ledger) -> dict[str, str]:
    secret = await token(ledger, Role.ADMIN, "root")
    return {"Authorization": f"Bearer {secret}", "Accept": "application/json"}


async def single_sign_on(ledger: Ledger, user: str, role: Role = Role.OPERATOR, seconds: float = 60) -> str:
    """A session as OpenID Connect makes them; its cookie."""
    secret = new_secret()
    await ledger.sessions.create(
        hash_secret(secret), token=None, user=UserName(user), role=role, issuer="https://id", seconds=seconds
    )
    return secret


async def test_an_admin_lists_sessions_and_ends_those_of_a_user(
    stranger: httpx2.AsyncClient, sign_in: SignIn, ledger: Ledger, root: dict[str, str]
) -> None:
    ada = await sign_in(Role.MEMBER, name="ada-laptop")
    cookie = {"Cookie": f"{COOKIE}={await single_sign_on(ledger, 'olga')}"}
    await single_sign_on(ledger, "olga", seconds=-1)
    await sign_in(Role.LEAD, name="revoked")
    await ledger.tokens.revoke("revoked")
    listed = (await stranger.get("/v1/sessions", headers=root)).json()["items"]
    assert [(s["user"], s["role"], s["token"], s["issuer"]) for s in listed] == [
        ("ada", "member", "ada-laptop", ""),
        ("olga", "operator", None, "https://id"),
    ]
    first = (await stranger.get("/v1/sessions?limit=1", headers=root)).json()
    second = await stranger.get("/v1/sessions", params={"cursor": first["next_cursor"]}, headers=root)
    assert first["items"] + second.json()["items"] == listed
    assert (await stranger.get("/v1/sessions?user=olga", headers=root)).json()["items"] == listed[1:]
    assert (await stranger.get("/teams", headers=cookie)).status_code == 200
    ended = await stranger.delete("/v1/sessions?user=olga", headers=root)
    assert (ended.status_code, ended.json()["user"]) == (200, "olga")
    assert (await stranger.get("/teams", headers=cookie)).status_code == 303
    assert (await ada.get("/teams")).status_code == 200
    again = await stranger.delete("/v1/sessions?user=olga", headers=root)
    assert again.json() == {"user": "olga", "ended": 0, "tokens": 0}
    assert (await stranger.delete("/v1/sessions", headers=root)).status_code == 422


async def test_one_user_has_so_many_sessions_and_the_oldest_ends(ledger: Ledger) -> None:
    first = await single_sign_on(ledger, "ada")
    other = await single_sign_on(ledger, "olga")
    for _ in range(MAX_PER_USER):
        newest = await single_sign_on(ledger, "ada")
    assert len(await ledger.sessions.all(UserName("ada"))) == MAX_PER_USER
    assert await ledger.sessions.caller(hash_secret(first)) is None
    for secret in (newest, other):
        assert await ledger.sessions.caller(hash_secret(secret)) is not None
