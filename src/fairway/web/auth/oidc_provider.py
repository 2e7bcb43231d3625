"""The client of the OpenID Connect provider: few requests, each with a time and size limit."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx2
from joserfc.jwk import KeySet

from fairway.model.errors import PermanentError
from fairway.model.hosts import is_loopback
from fairway.settings import Settings
from fairway.web.auth.oidc_flow import OidcFault, SignInAttempt, claim_of, refused
from fairway.web.auth.oidc_token import UnknownKey, read_keys, verified_claims

CALL_SECONDS: Final = 10.0
MOST_BYTES: Final = 512 * 1024
KEEP_SECONDS: Final = 3600.0
"""How long the provider's metadata and keys are cached."""
NEW_KEYS_SECONDS: Final = 10.0
"""The shortest time between refreshes of keys because of an unknown one: anyone can send a token."""
_AT_ONCE: Final = 8
_NEEDED: Final = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True, slots=True)
class OidcClient:
    """Fairway's registration with the provider."""

    issuer: str
    id: str
    secret_file: Path | None

    def secret(self) -> str | None:
        """Read the client secret from its file on every use, so that a new one takes effect at once."""
        return None if self.secret_file is None else self.secret_file.read_text(encoding="utf-8").strip()


def client_of(settings: Settings) -> OidcClient | None:
    """Return the OIDC client of the settings. Returns None if no issuer is set.

    Raises PermanentError for settings that cannot work: better at start-up than when the first user signs in.
    """
    if settings.oidc_issuer is None:
        return None
    client = OidcClient(settings.oidc_issuer, settings.oidc_client_id or "", settings.oidc_client_secret_file)
    if not may_be_asked(client.issuer):
        raise _unusable(
            f"{client.issuer} would be asked unencrypted", "give an issuer that begins with https:"
        )
    if not client.id:
        raise _unusable("oidc_issuer is given, but oidc_client_id is not", "set FAIRWAY_OIDC_CLIENT_ID")
    try:
        client.secret()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise _unusable(
            f"{client.secret_file} cannot be read: {why}", "correct FAIRWAY_OIDC_CLIENT_SECRET_FILE"
        ) from error
    return client


def _unusable(message: str, hint: str) -> PermanentError:
    return PermanentError("OidcSettings", f"nobody could sign in by OpenID Connect: {message}", hint)


def may_be_asked(url: object) -> bool:
    """Return whether requests to the URL are confidential: https, or loopback."""
    if not isinstance(url, str) or len(url) > 2000 or not url.isprintable():
        return False
    parts = urlsplit(url)
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    )


class _WrongClient(OidcFault):
    """The provider rejected the client authentication; another method may work."""

    def __init__(self, fault: OidcFault) -> None:
        super().__init__(fault.status, fault.code, fault.message, fault.hint, fault.why)


class Provider:
    """The OIDC provider; caches its metadata and keys."""

    def __init__(self, client: OidcClient, clock: Callable[[], float] = time.time) -> None:
        self.client = client
        self._clock = clock
        self._metadata: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None
        self._way = ""
        """The client authentication method that last succeeded."""
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def metadata(self) -> Mapping[str, Any]:
        """Return the provider's metadata, validated."""
        if self._metadata is None or self._clock() - self._metadata[0] > KEEP_SECONDS:
            found = await self._ask("GET", f"{self.client.issuer}/.well-known/openid-configuration")
            self._metadata = (self._clock(), self._checked(found))
        return self._metadata[1]

    async def claims(
        self, code: str, attempt: SignInAttempt, redirect_uri: str, *wanted: str
    ) -> dict[str, Any]:
        """Redeem `code` and return the verified claims.

        Claims in `wanted` that are not in the ID token are read from the user info endpoint, where some
        providers put them.
        """
        tokens = await self._redeem(code, attempt, redirect_uri)
        claims = await self._verified(tokens.get("id_token"), attempt.nonce)
        if any(claim_of(claims, name) is None for name in wanted):
            claims = await self._user_info(tokens.get("access_token"), claims) | claims
        return claims

    async def _redeem(self, code: str, attempt: SignInAttempt, redirect_uri: str) -> dict[str, Any]:
        metadata = await self.metadata()
        form = {
            "grant_type": "authorization_code",
            "redirect_uri": redirect_uri,
            "code": code,
            "code_verifier": attempt.verifier,
        }
        secret = await asyncio.to_thread(self._secret)
        ways = ways_to_say_who(secret, metadata.get("token_endpoint_auth_methods_supported"))
        refusal: OidcFault | None = None
        for way in sorted(ways, key=lambda way: way != self._way):  # what worked last time comes first
            headers, body = token_request(self.client.id, secret, way, form)
            try:
                tokens = await self._ask("POST", metadata["token_endpoint"], headers, body)
            except _WrongClient as fault:
                refusal = fault
            else:
                self._way = way
                return tokens
        raise refusal or self._wrong("it takes none of the ways in which Fairway can say who it is")

    def _secret(self) -> str | None:
        try:
            return self.client.secret()
        except (OSError, UnicodeDecodeError) as error:
            raise self._wrong(f"{self.client.secret_file} cannot be read: {type(error).__name__}") from error

    async def _verified(self, token: object, nonce: str) -> dict[str, Any]:
        issuer = (await self.metadata())["issuer"]
        for newest in (False, True):
            keys = await self._known_keys(newest=newest)
            try:
                return verified_claims(
                    token,
                    keys,
                    issuer=issuer,
                    client_id=self.client.id,
                    nonce=nonce,
                    now=int(self._clock()),
                )
            except UnknownKey:
                continue
        raise refused("the ID token is signed by a key that the provider does not publish")

    async def _known_keys(self, *, newest: bool) -> KeySet:
        age = KEEP_SECONDS + 1 if self._keys is None else self._clock() - self._keys[0]
        if self._keys is None or age > (NEW_KEYS_SECONDS if newest else KEEP_SECONDS):
            metadata = await self.metadata()
            self._keys = (self._clock(), read_keys(await self._ask("GET", metadata["jwks_uri"])))
        return self._keys[1]

    async def _user_info(self, token: object, claims: Mapping[str, Any]) -> dict[str, Any]:
        url = (await self.metadata()).get("userinfo_endpoint")
        if not may_be_asked(url) or not isinstance(token, str) or not token.isascii():
            return {}
        told = await self._ask("GET", str(url), {"Authorization": f"Bearer {token}"})
        if told.get("sub") != claims["sub"]:  # the specification's own word: never take it for theirs
            raise refused("the user info is of somebody else")
        return told

    def _checked(self, found: dict[str, Any]) -> dict[str, Any]:
        missing = [name for name in _NEEDED if not isinstance(found.get(name), str)]
        if missing:
            raise self._wrong(f"its metadata has no {', '.join(missing)}")
        if found["issuer"].rstrip("/") != self.client.issuer:
            raise self._wrong(f"it calls itself {found['issuer'][:200]!r}")
        bare = [name for name in _NEEDED if not may_be_asked(found[name])]
        if bare:
            raise self._wrong(f"{', '.join(bare)} would be asked unencrypted")
        return found

    async def _ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: str | None = None
    ) -> dict[str, Any]:
        """Send one request. Raises OidcFault with details that are safe to log."""
        where = urlsplit(url)
        named = f"{where.scheme}://{where.netloc}{where.path}"  # a query may hold what a log must not
        try:
            async with self._at_once, asyncio.timeout(CALL_SECONDS):
                status, content = await _call(
                    method, url, {"Accept": "application/json", **(headers or {})}, body
                )
        except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            said = str(error)[:200] or "no answer in time"
            raise self._unreachable(f"{method} {named}: {type(error).__name__}: {said}") from error
        if content is None:
            raise self._wrong(f"{method} {named} answers with more than {MOST_BYTES} bytes")
        found = _object(content)
        if status != HTTPStatus.OK or found is None:
            said = str((found or {}).get("error", "no JSON object"))[:80]
            why = f"{method} {named} answered {status}: {said}"
            if said == "invalid_client":
                raise _WrongClient(self._wrong(why))
            if found is not None and said == "invalid_grant":  # used, too old, or another browser's
                raise refused(why)
            raise self._unreachable(why) if status >= HTTPStatus.INTERNAL_SERVER_ERROR else self._wrong(why)
        return found

    def _unreachable(self, why: str) -> OidcFault:
        return OidcFault(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "OidcUnreachable",
            f"your organisation's sign-in at {urlsplit(self.client.issuer).netloc} does not answer",
            "try again in a minute, or sign in by a token",
            why,
        )

    def _wrong(self, why: str) -> OidcFault:
        return OidcFault(
            HTTPStatus.BAD_GATEWAY,
            "OidcMisconfigured",
            "Fairway and your organisation's sign-in do not understand each other",
            "sign in by a token; whoever runs this server finds in its log what to correct",
            why,
        )


def ways_to_say_who(secret: str | None, supported: object) -> tuple[str, ...]:
    """Return the client authentication methods to try, the most common first.

    The provider does not tell which one the client is registered for, and some accept only that.
    """
    if secret is None:
        return ("none",)
    offered = supported if isinstance(supported, list) else ["client_secret_basic"]
    return tuple(way for way in ("client_secret_basic", "client_secret_post") if way in offered)


def token_request(
    client_id: str, secret: str | None, way: str, form: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """Build the headers and the body of a request for tokens that says in this way who Fairway is."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if way == "client_secret_basic":  # RFC 6749, 2.3.1: both are quoted as in a form
        pair = f"{quote_plus(client_id)}:{quote_plus(secret or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return headers, urlencode(form)
    shown = {"client_secret": secret or ""} if way == "client_secret_post" else {}
    return headers, urlencode({**form, "client_id": client_id, **shown})


async def _call(
    method: str, url: str, headers: Mapping[str, str], body: str | None
) -> tuple[int, bytes | None]:
    """Return status and body; the body is None if too large. Redirects are not followed: none is expected."""
    content = b""
    async with (
        httpx2.AsyncClient(timeout=CALL_SECONDS, follow_redirects=False) as http,
        http.stream(method, url, headers=dict(headers), content=body) as answer,
    ):
        async for chunk in answer.aiter_bytes():
            content += chunk
            if len(content) > MOST_BYTES:
                return answer.status_code, None
        return answer.status_code, content


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
