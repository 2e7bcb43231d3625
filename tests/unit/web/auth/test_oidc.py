"""OpenID Connect without a provider: what is decided, and tokens that nobody should believe."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from joserfc import jws, jwt
from joserfc.jwk import ECKey, Key, KeySet, OctKey, RSAKey

from fairway.model.access import Role
from fairway.model.errors import PermanentError
from fairway.settings import Settings
from fairway.web.auth import oidc_provider
from fairway.web.auth.oidc_flow import (
    OidcError,
    SignInAttempt,
    authorization_url,
    code_challenge,
    code_of,
    decode_attempt,
    identity_of,
    role_of,
    scopes_of,
)
from fairway.web.auth.oidc_provider import (
    OidcClient,
    Provider,
    auth_methods,
    client_of,
    token_request,
)
from fairway.web.auth.oidc_token import UnknownKey, read_keys, verified_claims

ISSUER, CLIENT, NOW = "https://id.acme.test", "fairway", 1_800_000_000
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"}, private=True)
KEYS = read_keys({"keys": [KEY.as_dict(private=False)]})
GOOD: dict[str, Any] = {
    "iss": ISSUER,
    "sub": "1",
    "aud": CLIENT,
    "exp": NOW + 300,
    "iat": NOW,
    "nonce": "asked",
}


def signed(claims: dict[str, Any], key: Key = KEY, **header: Any) -> str:
    head = {"alg": "RS256", "kid": "one"} | header
    return jwt.encode({k: v for k, v in head.items() if v is not None}, claims, key, algorithms=[head["alg"]])


def check(token: object, keys: KeySet = KEYS) -> dict[str, Any]:
    return verified_claims(token, keys, issuer=ISSUER, client_id=CLIENT, nonce="asked", now=NOW)


def test_a_good_token() -> None:
    assert check(signed(GOOD))["sub"] == "1"
    assert check(signed(GOOD | {"aud": [CLIENT]}))
    assert check(signed(GOOD | {"aud": [CLIENT, "other"], "azp": CLIENT}))
    assert check(signed(GOOD | {"exp": NOW - 59}))  # clocks differ
    assert check(signed(GOOD, kid=None))  # who has one key need not name it
    assert check(signed(GOOD, x5t="what we do not know is not looked at"))


@pytest.mark.parametrize(
    "change",
    [
        {"iss": "https://elsewhere.test"},
        {"iss": ISSUER + "/"},
        {"iss": None},
        {"aud": "other"},
        {"aud": []},
        {"aud": ["other"]},
        {"aud": [CLIENT, "other"]},
        {"aud": [CLIENT, "other"], "azp": "other"},
        {"azp": "other"},
        {"aud": None},
        {"exp": NOW - 61},
        {"exp": None},
        {"exp": "tomorrow"},
        {"iat": NOW + 3600},
        {"nbf": NOW + 3600},
        {"nonce": "another"},
        {"nonce": None},
        {"nonce": ["asked"]},
        {"sub": None},
        {"sub": ""},
    ],
)
def test_a_token_that_is_not_for_us_now(change: dict[str, Any]) -> None:
    claims = {name: value for name, value in (GOOD | change).items() if value is not None}
    with pytest.raises(OidcError, match="does not prove"):
        check(signed(claims))


def test_a_token_of_another_key() -> None:
    other = RSAKey.generate_key(2048, {"kid": "one"}, private=True)
    with pytest.raises(OidcError):
        check(signed(GOOD, other))
    with pytest.raises(UnknownKey):
        check(signed(GOOD, other, kid="two"))
    two = KeySet([*KEYS.keys, RSAKey.generate_key(2048, {"kid": "two"}, private=False)])
    with pytest.raises(UnknownKey):  # which of them is it?
        check(signed(GOOD, kid=None), two)


def _quoted(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def test_signatures_that_prove_nothing() -> None:
    unsigned = jws.serialize_compact({"alg": "none"}, json.dumps(GOOD), OctKey.import_key("x"), ["none"])
    with pytest.raises(OidcError):
        check(unsigned)
    # Signed by the public key as if it were a shared secret.
    said = ".".join(_quoted(json.dumps(part).encode()) for part in ({"alg": "HS256", "kid": "one"}, GOOD))
    mac = hmac.new(KEY.as_pem(private=False), said.encode(), hashlib.sha256).digest()
    with pytest.raises(OidcError):
        check(f"{said}.{_quoted(mac)}")
    head, body, _ = signed(GOOD).split(".")
    for broken in (f"{head}.{body}.", f"{head}.{body}", "a.b.c", "", None, 1, "x" * 200_000, "ü.ü.ü"):
        with pytest.raises(OidcError):
            check(broken)


def test_an_elliptic_key() -> None:
    key = ECKey.generate_key("P-256", {"kid": "curve"}, private=True)
    keys = read_keys({"keys": [key.as_dict(private=False), KEY.as_dict(private=False)]})
    assert check(signed(GOOD, key, alg="ES256", kid="curve"), keys)


def test_keys_we_cannot_use_do_not_spoil_the_others() -> None:
    good = KEY.as_dict(private=False)
    weak = RSAKey.generate_key(1024, {"kid": "weak"}, private=False).as_dict(private=False)
    listed = [{"kty": "new"}, {"kty": "RSA"}, "text", None, good | {"use": "enc", "kid": "enc"}, weak, good]
    assert [key.kid for key in read_keys({"keys": listed})] == ["one"]
    none: list[dict[str, Any]] = [{}, {"keys": {}}, {"keys": []}, {"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}]
    for document in none:
        with pytest.raises(OidcError):
            read_keys(document)


# what is asked, and what comes back


def test_an_attempt_comes_back_from_its_cookie() -> None:
    attempt = SignInAttempt("s" * 43, "/jobs?state=running&q=ü")
    assert decode_attempt(attempt.as_cookie()) == attempt
    assert len({attempt.state, attempt.nonce, attempt.verifier, attempt.secret}) == 4
    assert attempt.state != SignInAttempt("t" * 43, "/").state
    for cookie in ("", ".", "short.Lw", "s" * 43, "s" * 43 + ".ü", "s" * 43 + "._____w", "s" * 5000 + ".Lw"):
        assert decode_attempt(cookie) is None


def test_what_is_asked() -> None:
    attempt = SignInAttempt("s" * 43, "/")
    url = authorization_url(f"{ISSUER}/auth?a=b", CLIENT, "https://f.test/back", ("openid", "email"), attempt)
    asked = {name: value[0] for name, value in parse_qs(urlsplit(url).query).items()}
    assert asked.pop("code_challenge") == code_challenge(attempt.verifier) != attempt.verifier
    assert asked == {
        "a": "b",
        "response_type": "code",
        "client_id": CLIENT,
        "redirect_uri": "https://f.test/back",
        "scope": "openid email",
        "state": attempt.state,
        "nonce": attempt.nonce,
        "code_challenge_method": "S256",
    }
    assert attempt.verifier not in url and attempt.secret not in url


def test_the_challenge_is_the_one_of_the_specification() -> None:
    """RFC 7636, appendix B."""
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    assert code_challenge(verifier) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_how_fairway_says_who_it_is() -> None:
    """What Authlib sent: both are quoted as in a form, then in Base64 (RFC 6749, 2.3.1), or in the form."""
    form = {"code": "c o+é"}
    plain = {"Content-Type": "application/x-www-form-urlencoded"}
    headers, body = token_request("a b", "p:w +é%", "client_secret_basic", form)
    assert headers == plain | {"Authorization": "Basic YStiOnAlM0F3KyUyQiVDMyVBOSUyNQ=="}
    assert body == "code=c+o%2B%C3%A9"
    post = token_request("a b", "p:w", "client_secret_post", form)
    assert post == (plain, "code=c+o%2B%C3%A9&client_id=a+b&client_secret=p%3Aw")
    assert token_request("a b", None, "none", form) == (plain, "code=c+o%2B%C3%A9&client_id=a+b")


def test_scopes_that_the_provider_knows() -> None:
    assert scopes_of({}, "groups") == ("openid", "profile", "email")
    assert scopes_of({"scopes_supported": ["groups", "roles"]}, "roles")[3:] == ("groups", "roles")
    assert scopes_of({"scopes_supported": "groups"}, "groups")[3:] == ()


def test_answers() -> None:
    attempt = SignInAttempt("s" * 43, "/")
    good = {"state": attempt.state, "code": "c"}
    assert code_of(good, attempt, ISSUER, names_issuer=False) == "c"
    assert code_of(good | {"iss": ISSUER}, attempt, ISSUER, names_issuer=True) == "c"
    wrong: list[tuple[dict[str, str], SignInAttempt | None, bool, str]] = [
        (good, None, False, "OidcStale"),
        (good | {"state": ""}, attempt, False, "OidcStale"),
        (good | {"state": "ü"}, attempt, False, "OidcStale"),
        ({"error": "access_denied"}, attempt, False, "OidcStale"),
        (good, attempt, True, "OidcNotProven"),
        (good | {"iss": "https://elsewhere.test"}, attempt, False, "OidcNotProven"),
        ({"state": attempt.state}, attempt, False, "OidcNotProven"),
        ({"state": attempt.state, "error": "access_denied"}, attempt, False, "OidcDenied"),
        ({"state": attempt.state, "error": "login_required"}, attempt, False, "OidcError"),
    ]
    for answer, asked, names_issuer, code in wrong:
        with pytest.raises(OidcError) as fault:
            code_of(answer, asked, ISSUER, names_issuer=names_issuer)
        assert fault.value.code == code, answer


# who somebody is


def test_the_highest_role_counts() -> None:
    roles = (("leads", "lead"), ("platform", "admin"), ("staff", "viewer"), ("ops", "operator"))
    assert role_of(frozenset({"staff", "platform", "leads"}), roles) is Role.ADMIN
    assert role_of(frozenset({"staff"}), roles) is Role.VIEWER
    assert role_of(frozenset({"others", "PLATFORM"}), roles) is Role.MEMBER
    assert role_of(frozenset(), roles) is Role.MEMBER


@pytest.mark.parametrize(
    ("claims", "claim", "role"),
    [
        ({"groups": ["platform"]}, "groups", Role.ADMIN),
        ({"groups": "platform"}, "groups", Role.ADMIN),
        ({"groups": ["other", 1, None, ["platform"]]}, "groups", Role.MEMBER),
        ({"groups": {"platform": True}}, "groups", Role.MEMBER),
        ({}, "groups", Role.MEMBER),
        ({"realm_access": {"roles": ["platform"]}}, "realm_access.roles", Role.ADMIN),
        ({"https://acme.test/groups": ["platform"]}, "https://acme.test/groups", Role.ADMIN),
        ({"realm_access": "platform"}, "realm_access.roles", Role.MEMBER),
    ],
)
def test_groups(claims: dict[str, Any], claim: str, role: Role) -> None:
    found = identity_of(claims | {"name": " ada "}, "name", claim, (("platform", "admin"),))
    assert (found.user, found.role) == ("ada", role)


@pytest.mark.parametrize("name", [None, "", "  ", 7, ["ada"], "x" * 300, "ada\nroot"])
def test_nobody_by_name(name: object) -> None:
    with pytest.raises(OidcError) as fault:
        identity_of({"name": name, "secret": "value"}, "name", "groups", ())
    assert fault.value.code == "OidcUserMissing"
    assert "value" not in fault.value.why  # names of claims, not what they hold


def test_an_address_nobody_verified() -> None:
    address = {"email": "ada@acme.test"}
    for verified in ({"email_verified": v} for v in (False, "false", None, "true", 1)):
        with pytest.raises(OidcError):
            identity_of(address | verified, "email", "groups", ())
    with pytest.raises(OidcError):  # who says nothing has verified nothing
        identity_of(address, "email", "groups", ())
    assert identity_of(address | {"email_verified": True}, "email", "groups", ()).user == "ada@acme.test"


def test_who_is_in_no_group_may_be_kept_out() -> None:
    roles = (("platform", "admin"),)
    with pytest.raises(OidcError) as fault:
        identity_of({"name": "ada", "groups": ["guests"]}, "name", "groups", roles, None)
    assert (fault.value.code, fault.value.status) == ("OidcNoRole", 403)
    known = identity_of({"name": "ada", "groups": ["platform"]}, "name", "groups", roles, None)
    assert known.role is Role.ADMIN


# the provider


def test_settings_that_cannot_work(settings: Settings, tmp_path: Path) -> None:
    assert client_of(settings) is None
    good = replace(settings, oidc_issuer=ISSUER, oidc_client_id=CLIENT)
    assert client_of(good) == OidcClient(ISSUER, CLIENT, None)
    for wrong in (
        replace(good, oidc_issuer="http://id.acme.test"),
        replace(good, oidc_client_id=None),
        replace(good, oidc_client_secret_file=tmp_path / "missing"),
    ):
        with pytest.raises(PermanentError) as error:
            client_of(wrong)
        assert error.value.code == "OidcSettings"
        assert error.value.hint


def test_how_to_say_who_we_are() -> None:
    assert auth_methods(None, ["client_secret_basic"]) == ("none",)
    assert auth_methods("s", None) == ("client_secret_basic",)
    assert auth_methods("s", ["client_secret_post", "private_key_jwt"]) == ("client_secret_post",)
    both = ["client_secret_post", "client_secret_basic"]
    assert auth_methods("s", both) == ("client_secret_basic", "client_secret_post")
    assert auth_methods("s", ["private_key_jwt"]) == ()


class Asked(Provider):
    """Answers by itself, and counts: what is tested is what the provider remembers."""

    def __init__(self, answers: dict[str, dict[str, Any]]) -> None:
        self.now = float(NOW)
        super().__init__(OidcClient(ISSUER, CLIENT, None), lambda: self.now)
        self.answers = answers
        self.asked: list[str] = []

    async def _send(self, method: str, url: str, *_: Any) -> dict[str, Any]:
        self.asked.append(urlsplit(url).path)
        return self.answers[urlsplit(url).path]


METADATA = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/auth",
    "token_endpoint": f"{ISSUER}/token",
    "jwks_uri": f"{ISSUER}/keys",
    "userinfo_endpoint": f"{ISSUER}/me",
}


def asked(**tokens: Any) -> Asked:
    return Asked(
        {
            "/.well-known/openid-configuration": dict(METADATA),
            "/keys": {"keys": [KEY.as_dict(private=False)]},
            "/token": {"access_token": "a", **tokens},
            "/me": {"sub": "1", "groups": ["platform"], "iss": "https://elsewhere.test"},
        }
    )


@pytest.fixture
async def attempt() -> AsyncIterator[SignInAttempt]:
    yield SignInAttempt("s" * 43, "/")


async def test_keys_are_remembered_and_unknown_ones_ask_again_but_not_too_often(
    attempt: SignInAttempt,
) -> None:
    provider = asked(id_token=signed(GOOD | {"nonce": attempt.nonce}))
    for _ in range(3):
        await provider.claims("code", attempt, "https://f.test/back")
    assert provider.asked.count("/keys") == 1
    other = RSAKey.generate_key(2048, {"kid": "two"}, private=True)
    provider.answers["/token"]["id_token"] = signed(GOOD | {"nonce": attempt.nonce}, other, kid="two")
    provider.now += oidc_provider.NEW_KEYS_SECONDS + 1
    for _ in range(3):  # three with a key that is nowhere
        with pytest.raises(OidcError):
            await provider.claims("code", attempt, "https://f.test/back")
    assert provider.asked.count("/keys") == 2
    provider.answers["/keys"] = {"keys": [KEY.as_dict(private=False), other.as_dict(private=False)]}
    provider.now += oidc_provider.NEW_KEYS_SECONDS + 1
    assert await provider.claims("code", attempt, "https://f.test/back")
    provider.now += oidc_provider.CACHE_SECONDS + 1  # what the provider took back is believed no longer
    provider.answers["/keys"] = {"keys": [KEY.as_dict(private=False)]}
    with pytest.raises(OidcError):
        await provider.claims("code", attempt, "https://f.test/back")


async def test_what_is_missing_is_asked_for_and_overrules_nothing(attempt: SignInAttempt) -> None:
    provider = asked(id_token=signed(GOOD | {"nonce": attempt.nonce, "name": "ada"}))
    assert "groups" not in await provider.claims("code", attempt, "https://f.test/back", "name")
    assert "/me" not in provider.asked
    claims = await provider.claims("code", attempt, "https://f.test/back", "name", "groups")
    assert (claims["groups"], claims["iss"]) == (["platform"], ISSUER)
    provider.answers["/me"]["sub"] = "somebody else"
    with pytest.raises(OidcError):
        await provider.claims("code", attempt, "https://f.test/back", "groups")


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "https://elsewhere.test"},
        {"token_endpoint": "http://id.acme.test/token"},
        {"jwks_uri": 7},
        {"authorization_endpoint": "javascript:alert(1)"},
    ],
)
async def test_metadata_that_cannot_be_right(change: dict[str, Any]) -> None:
    provider = asked()
    provider.answers["/.well-known/openid-configuration"].update(change)
    with pytest.raises(OidcError) as fault:
        await provider.metadata()
    assert fault.value.code == "OidcMisconfigured"


# what a provider may cost us


@asynccontextmanager
async def answering(answer: bytes, *, wait: float = 0) -> AsyncIterator[str]:
    """A server that says this, whatever it is asked."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(wait)
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (oidc_provider.MAX_BYTES + 1), "OidcMisconfigured"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "OidcMisconfigured"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "OidcMisconfigured"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "OidcMisconfigured"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "OidcMisconfigured"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "OidcUnreachable"),
        (b"nonsense\r\n\r\n", "OidcUnreachable"),
        (b"", "OidcUnreachable"),
    ],
)
async def test_answers_nobody_can_use(answer: bytes, code: str) -> None:
    async with answering(answer) as issuer:
        with pytest.raises(OidcError) as fault:
            await Provider(OidcClient(issuer, CLIENT, None)).metadata()
        assert fault.value.code == code, fault.value.why


async def test_a_provider_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc_provider, "CALL_SECONDS", 0.2)
    async with answering(b"", wait=2) as issuer:
        with pytest.raises(OidcError) as fault:
            await Provider(OidcClient(issuer, CLIENT, None)).metadata()
        assert (fault.value.code, fault.value.status) == ("OidcUnreachable", 503)
