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
from fairway.services.outgoing import is_confidential
from fairway.settings import Settings
from fairway.web.auth.oidc_flow import OidcError, SignInAttempt, claim_of, not_proven
from fairway.web.auth.oidc_token import UnknownKey, read_keys, verified_claims

CALL_SECONDS: Final = 10.0
MAX_BYTES: Final = 512 * 1024
CACHE_SECONDS: Final = 3600.0
"""How long the provider's metadata and keys are cached."""
NEW_KEYS_SECONDS: Final = 10.0
"""The shortest time between refreshes of keys because of an unknown one: anyone can send a token."""
_MAX_CONCURRENT: Final = 8
_REQUIRED_METADATA: Final = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")


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
    if not is_confidential(client.issuer):
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


class _WrongClient(OidcError):
    """The provider rejected the client authentication; another method may work."""

    def __init__(self, fault: OidcError) -> None:
        super().__init__(fault.status, fault.code, fault.message, fault.hint, fault.why)


class Provider:
    """The OIDC provider; caches its metadata and keys."""

    def __init__(self, client: OidcClient, clock: Callable[[], float] = time.time) -> None:
        self.client = client
        self._clock = clock
        self._metadata: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None
        self._auth_method = ""
        """The client authentication method that last succeeded."""
        self._semaphore = asyncio.Semaphore(_MAX_CONCURRENT)

    async def metadata(self) -> Mapping[str, Any]:
        """Return the provider's metadata, validated."""
        if self._metadata is None or self._clock() - self._metadata[0] > CACHE_SECONDS:
            found = await self._send("GET", f"{self.client.issuer}/.well-known/openid-configuration")
            self._metadata = (self._clock(), self._validated(found))
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
        methods = auth_methods(secret, metadata.get("token_endpoint_auth_methods_supported"))
        refusal: OidcError | None = None
        for method in sorted(methods, key=lambda m: m != self._auth_method):  # the last that succeeded first
            headers, body = token_request(self.client.id, secret, method, form)
            try:
                tokens = await self._send("POST", metadata["token_endpoint"], headers, body)
            except _WrongClient as fault:
                refusal = fault
            else:
                self._auth_method = method
                return tokens
        raise refusal or self._misconfigured("it takes none of the ways in which Fairway can say who it is")

    def _secret(self) -> str | None:
        try:
            return self.client.secret()
        except (OSError, UnicodeDecodeError) as error:
            raise self._misconfigured(
                f"{self.client.secret_file} cannot be read: {type(error).__name__}"
            ) from error

    async def _verified(self, token: object, nonce: str) -> dict[str, Any]:
        issuer = (await self.metadata())["issuer"]
        for newest in (False, True):
            keys = await self._signing_keys(newest=newest)
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
        raise not_proven("the ID token is signed by a key that the provider does not publish")

    async def _signing_keys(self, *, newest: bool) -> KeySet:
        age = CACHE_SECONDS + 1 if self._keys is None else self._clock() - self._keys[0]
        if self._keys is None or age > (NEW_KEYS_SECONDS if newest else CACHE_SECONDS):
            metadata = await self.metadata()
            self._keys = (self._clock(), read_keys(await self._send("GET", metadata["jwks_uri"])))
        return self._keys[1]

    async def _user_info(self, token: object, claims: Mapping[str, Any]) -> dict[str, Any]:
        url = (await self.metadata()).get("userinfo_endpoint")
        if not is_confidential(url) or not isinstance(token, str) or not token.isascii():
            return {}
        user_info = await self._send("GET", str(url), {"Authorization": f"Bearer {token}"})
        if user_info.get("sub") != claims["sub"]:  # the specification requires this check
            raise not_proven("the user info is of somebody else")
        return user_info

    def _validated(self, found: dict[str, Any]) -> dict[str, Any]:
        missing = [name for name in _REQUIRED_METADATA if not isinstance(found.get(name), str)]
        if missing:
            raise self._misconfigured(f"its metadata has no {', '.join(missing)}")
        if found["issuer"].rstrip("/") != self.client.issuer:
            raise self._misconfigured(f"it calls itself {found['issuer'][:200]!r}")
        unencrypted = [name for name in _REQUIRED_METADATA if not is_confidential(found[name])]
        if unencrypted:
            raise self._misconfigured(f"{', '.join(unencrypted)} would be asked unencrypted")
        return found

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: str | None = None
    ) -> dict[str, Any]:
        """Send one request. Raises OidcError with details that are safe to log."""
        parts = urlsplit(url)
        logged_url = (
            f"{parts.scheme}://{parts.netloc}{parts.path}"  # without the query: it may contain secrets
        )
        try:
            async with self._semaphore, asyncio.timeout(CALL_SECONDS):
                status, content = await _request(
                    method, url, {"Accept": "application/json", **(headers or {})}, body
                )
        except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            message = str(error)[:200] or "no answer in time"
            raise self._unreachable(f"{method} {logged_url}: {type(error).__name__}: {message}") from error
        if content is None:
            raise self._misconfigured(f"{method} {logged_url} answers with more than {MAX_BYTES} bytes")
        document = _json_object(content)
        if status != HTTPStatus.OK or document is None:
            code = str((document or {}).get("error", "no JSON object"))[:80]
            why = f"{method} {logged_url} answered {status}: {code}"
            if code == "invalid_client":
                raise _WrongClient(self._misconfigured(why))
            if document is not None and code == "invalid_grant":  # used, too old, or another browser's
                raise not_proven(why)
            raise (
                self._unreachable(why)
                if status >= HTTPStatus.INTERNAL_SERVER_ERROR
                else self._misconfigured(why)
            )
        return document

    def _unreachable(self, why: str) -> OidcError:
        return OidcError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "OidcUnreachable",
            f"your organisation's sign-in at {urlsplit(self.client.issuer).netloc} does not answer",
            "try again in a minute, or sign in by a token",
            why,
        )

    def _misconfigured(self, why: str) -> OidcError:
        return OidcError(
            HTTPStatus.BAD_GATEWAY,
            "OidcMisconfigured",
            "Fairway and your organisation's sign-in do not understand each other",
            "sign in by a token; whoever runs this server finds in its log what to correct",
            why,
        )


def auth_methods(secret: str | None, supported: object) -> tuple[str, ...]:
    """Return the client authentication methods to try, the most common first.

    The provider does not tell which one the client is registered for, and some accept only that.
    """
    if secret is None:
        return ("none",)
    listed = supported if isinstance(supported, list) else ["client_secret_basic"]
    return tuple(m for m in ("client_secret_basic", "client_secret_post") if m in listed)


def token_request(
    client_id: str, secret: str | None, method: str, form: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """Build the headers and the body of a token request with this client authentication method."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if method == "client_secret_basic":  # RFC 6749, 2.3.1: both are quoted as in a form
        pair = f"{quote_plus(client_id)}:{quote_plus(secret or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return headers, urlencode(form)
    credentials = {"client_secret": secret or ""} if method == "client_secret_post" else {}
    return headers, urlencode({**form, "client_id": client_id, **credentials})


async def _request(
    method: str, url: str, headers: Mapping[str, str], body: str | None
) -> tuple[int, bytes | None]:
    """Return status and body; the body is None if too large. Redirects are not followed: none is expected."""
    content = b""
    async with (
        httpx2.AsyncClient(timeout=CALL_SECONDS, follow_redirects=False) as http,
        http.stream(method, url, headers=dict(headers), content=body) as response,
    ):
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > MAX_BYTES:
                return response.status_code, None
        return response.status_code, content


def _json_object(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
