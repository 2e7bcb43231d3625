"""The OpenID Connect flow: authorization URL, callback checks, user and role from claims. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from fairway.api.problems import ApiError
from fairway.model.access import Role
from fairway.model.names import UserName

_MAX_NAME_LENGTH: Final = 256
_AGAIN: Final = "go back to the sign-in page and begin again"


class OidcError(ApiError):
    """A failed sign-in; `why` goes to the log only, and contains no secret."""

    def __init__(self, status: HTTPStatus, code: str, message: str, hint: str, why: str = "") -> None:
        super().__init__(status, code, message, hint)
        self.why = why


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """One sign-in in progress.

    Everything bound to it is derived from one secret, which only the browser has: servers store nothing, and
    nothing that is sent reveals the secret.
    """

    secret: str
    next: str
    """The path to go to after signing in."""

    @property
    def state(self) -> str:
        """Return the OAuth `state`: it binds the provider's response to this browser."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """Return the `nonce`: it binds the ID token to this sign-in."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """Return the PKCE code verifier: an intercepted code cannot be redeemed without it."""
        return self._derived("verifier")

    def as_cookie(self) -> str:
        """Encode the attempt as a cookie."""
        return f"{self.secret}.{base64.urlsafe_b64encode(self.next.encode()).decode().rstrip('=')}"

    def _derived(self, use: str) -> str:
        return hmac.new(self.secret.encode(), f"oidc {use}".encode(), hashlib.sha256).hexdigest()


def decode_attempt(cookie: str) -> SignInAttempt | None:
    """Decode the attempt from a cookie. Returns None if it is malformed."""
    secret, dot, path = cookie.partition(".")
    if not dot or len(secret) < 32 or len(cookie) > 4000:
        return None
    try:
        where = base64.urlsafe_b64decode(path + "=" * (-len(path) % 4)).decode()
    except ValueError:  # not base64, or not text
        return None
    return SignInAttempt(secret, where)


def authorization_url(
    endpoint: str, client_id: str, redirect_uri: str, scopes: Iterable[str], attempt: SignInAttempt
) -> str:
    """Build the URL of the authorization request. Keep the query of the endpoint itself (RFC 6749, 3.1)."""
    params = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": redirect_uri,
        "scope": " ".join(scopes),
        "state": attempt.state,
        "nonce": attempt.nonce,
        "code_challenge": code_challenge(attempt.verifier),
        "code_challenge_method": "S256",
    }
    parts = urlsplit(endpoint)
    query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), *params.items()])
    return urlunsplit(parts._replace(query=query))


def code_challenge(verifier: str) -> str:
    """Derive the S256 challenge of a PKCE verifier (RFC 7636, 4.2)."""
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def scopes_of(metadata: Mapping[str, Any], groups_claim: str) -> tuple[str, ...]:
    """Return the scopes to request; a groups scope only if supported, because some providers reject it."""
    listed = metadata.get("scopes_supported")
    supported = listed if isinstance(listed, list) else []
    groups = (scope for scope in dict.fromkeys(("groups", groups_claim)) if scope in supported)
    return ("openid", "profile", "email", *groups)


def code_of(
    response: Mapping[str, str], attempt: SignInAttempt | None, issuer: str, *, names_issuer: bool
) -> str:
    """Return the code in the provider's response. Raises OidcError if it does not belong to this attempt.

    `names_issuer`: the provider declares that its responses contain the issuer (RFC 9207).
    """
    if attempt is None or not hmac.compare_digest(response.get("state", "").encode(), attempt.state.encode()):
        raise OidcError(
            HTTPStatus.BAD_REQUEST,
            "OidcStale",
            "this sign-in was not begun in this browser, was used already, or took too long",
            _AGAIN,
            "state is not the cookie's",
        )
    response_issuer = response.get("iss")
    if (response_issuer is None and names_issuer) or response_issuer not in (None, issuer):
        raise not_proven(f"the answer names the issuer {str(response_issuer)[:200]!r}")
    if "error" in response:
        raise _provider_error(response["error"], response.get("error_description", ""))
    code = response.get("code", "")
    if not code or len(code) > 4096:
        raise not_proven("the answer has no code")
    return code


def _provider_error(error: str, description: str) -> OidcError:
    why = f"{error[:80]}: {description[:300]}"
    if error == "access_denied":
        return OidcError(
            HTTPStatus.FORBIDDEN,
            "OidcDenied",
            "the sign-in was declined",
            "begin again and agree, or ask whoever runs your organisation's sign-in to let you use Fairway",
            why,
        )
    return OidcError(
        HTTPStatus.BAD_GATEWAY,
        "OidcError",
        "your organisation's sign-in answered with an error",
        "begin again; if it continues, the server's log has the provider's words",
        why,
    )


def not_proven(why: str) -> OidcError:
    """Return the error for a response that does not prove the user's identity."""
    return OidcError(
        HTTPStatus.UNAUTHORIZED,
        "OidcNotProven",
        "the answer of your organisation's sign-in does not prove who you are",
        "begin again; if it continues, the server's log says what is wrong with it",
        why,
    )


@dataclass(frozen=True, slots=True)
class OidcIdentity:
    """A user authenticated by the provider."""

    user: UserName
    role: Role


def identity_of(
    claims: Mapping[str, Any],
    user_claim: str,
    groups_claim: str,
    roles: Iterable[tuple[str, str]],
    default: Role | None = Role.MEMBER,
) -> OidcIdentity:
    """Return the user and role from the claims. Raises OidcError if the name or the role is missing."""
    name = claim_of(claims, user_claim)
    if (
        not isinstance(name, str)
        or not name.strip()
        or len(name) > _MAX_NAME_LENGTH
        or not name.isprintable()
    ):
        raise OidcError(
            HTTPStatus.FORBIDDEN,
            "OidcUserMissing",
            f"your organisation's sign-in does not say who you are: it sends no claim {user_claim}",
            "have the provider send it, or name the claim that it sends:  FAIRWAY_OIDC_USER_CLAIM",
            f"claims: {', '.join(sorted(map(str, claims)))[:500]}",
        )
    if user_claim == "email" and claims.get("email_verified") is not True:
        raise OidcError(
            HTTPStatus.FORBIDDEN,
            "OidcUserMissing",
            "your organisation's sign-in does not say that your e-mail address was verified",
            "verify it there, and sign in again; or name another claim:  FAIRWAY_OIDC_USER_CLAIM",
        )
    role = role_of(groups_of(claims, groups_claim), roles, default)
    if role is None:
        raise OidcError(
            HTTPStatus.FORBIDDEN,
            "OidcNoRole",
            "none of your groups has a role in Fairway",
            "ask whoever runs Fairway to give one of your groups a role:  FAIRWAY_OIDC_ROLES",
        )
    return OidcIdentity(UserName(name.strip()), role)


def claim_of(claims: Mapping[str, Any], name: str) -> object:
    """Return a claim by name or, if there is none of this name, by path: `realm_access.roles`."""
    if name in claims:
        return claims[name]
    found: object = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def groups_of(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """Return the user's groups; the claim may be a string or a list."""
    value = claim_of(claims, claim)
    listed = value if isinstance(value, list) else [value]
    return frozenset(group for group in listed if isinstance(group, str))


def role_of(
    groups: frozenset[str], roles: Iterable[tuple[str, str]], default: Role | None = Role.MEMBER
) -> Role | None:
    """Return the highest role of the groups; without one, the default.

    A member sees only the money of their own teams, a viewer that of all: so `viewer` must be granted, too.
    """
    granted = [Role(role) for group, role in roles if group in groups]
    return max(granted, key=list(Role).index, default=default)
