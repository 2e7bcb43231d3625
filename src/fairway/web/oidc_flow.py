"""What signing in by OpenID Connect decides: what goes out, what may come back, who it is then. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge

from fairway.api.problems import ApiError
from fairway.model.access import Role
from fairway.model.names import UserName

_LONGEST_NAME: Final = 256
_AGAIN: Final = "go back to the sign-in page and begin again"


class OidcFault(ApiError):
    """Signing in did not work; `why` is for the log alone, and holds no secret."""

    def __init__(self, status: HTTPStatus, code: str, message: str, hint: str, why: str = "") -> None:
        super().__init__(status, code, message, hint)
        self.why = why


@dataclass(frozen=True, slots=True)
class Attempt:
    """One sign-in that was begun. All that is bound to it follows from one secret, which only the browser
    that began it has: no server needs to remember anything, and nothing that leaves leads back to it."""

    secret: str
    next: str
    """Where they wanted to go."""

    @property
    def state(self) -> str:
        """Comes back from the provider: the answer belongs to this browser's question."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """Stands in the ID token: it was made for this question."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """Shown when the code is redeemed: whoever else sees the code cannot use it (PKCE)."""
        return self._derived("verifier")

    def as_cookie(self) -> str:
        """What the browser keeps."""
        return f"{self.secret}.{base64.urlsafe_b64encode(self.next.encode()).decode().rstrip('=')}"

    def _derived(self, use: str) -> str:
        return hmac.new(self.secret.encode(), f"oidc {use}".encode(), hashlib.sha256).hexdigest()


def attempt_of(cookie: str) -> Attempt | None:
    """What the browser kept; None: nothing that could be one."""
    secret, dot, path = cookie.partition(".")
    if not dot or len(secret) < 32 or len(cookie) > 4000:
        return None
    try:
        where = base64.urlsafe_b64decode(path + "=" * (-len(path) % 4)).decode()
    except ValueError:  # not base64, or not text
        return None
    return Attempt(secret, where)


def authorization_url(
    endpoint: str, client_id: str, redirect_uri: str, scopes: Iterable[str], attempt: Attempt
) -> str:
    """Where the browser goes to sign in."""
    return str(
        prepare_grant_uri(
            endpoint,
            client_id,
            "code",
            redirect_uri,
            " ".join(scopes),
            attempt.state,
            nonce=attempt.nonce,
            code_challenge=create_s256_code_challenge(attempt.verifier),
            code_challenge_method="S256",
        )
    )


def scopes_of(metadata: Mapping[str, Any], groups_claim: str) -> tuple[str, ...]:
    """What is asked for. A scope for groups is asked for only where the provider knows one: some refuse what
    they do not know."""
    known = metadata.get("scopes_supported")
    offered = known if isinstance(known, list) else []
    return (
        "openid",
        "profile",
        "email",
        *(s for s in dict.fromkeys(("groups", groups_claim)) if s in offered),
    )


def code_of(answer: Mapping[str, str], attempt: Attempt | None, issuer: str, *, names_issuer: bool) -> str:
    """The code in the provider's answer; raises OidcFault if it is no answer to what this browser asked.

    `names_issuer`: the provider says that its answers carry its name (RFC 9207).
    """
    if attempt is None or not hmac.compare_digest(answer.get("state", "").encode(), attempt.state.encode()):
        raise OidcFault(
            HTTPStatus.BAD_REQUEST,
            "OidcStale",
            "this sign-in was not begun in this browser, was used already, or took too long",
            _AGAIN,
            "state is not the cookie's",
        )
    given = answer.get("iss")
    if (given is None and names_issuer) or given not in (None, issuer):
        raise refused(f"the answer names the issuer {str(given)[:200]!r}")
    if "error" in answer:
        raise _told(answer["error"], answer.get("error_description", ""))
    code = answer.get("code", "")
    if not code or len(code) > 4096:
        raise refused("the answer has no code")
    return code


def _told(error: str, description: str) -> OidcFault:
    why = f"{error[:80]}: {description[:300]}"
    if error == "access_denied":
        return OidcFault(
            HTTPStatus.FORBIDDEN,
            "OidcDenied",
            "the sign-in was declined",
            "begin again and agree, or ask whoever runs your organisation's sign-in to let you use Fairway",
            why,
        )
    return OidcFault(
        HTTPStatus.BAD_GATEWAY,
        "OidcError",
        "your organisation's sign-in answered with an error",
        "begin again; if it stays so, the server's log has the provider's words",
        why,
    )


def refused(why: str) -> OidcFault:
    """What came back does not prove who it is."""
    return OidcFault(
        HTTPStatus.UNAUTHORIZED,
        "OidcNotProven",
        "the answer of your organisation's sign-in does not prove who you are",
        "begin again; if it stays so, the server's log says what is wrong with it",
        why,
    )


@dataclass(frozen=True, slots=True)
class Person:
    """Who the provider vouches for."""

    user: UserName
    role: Role


def person_of(
    claims: Mapping[str, Any], user_claim: str, groups_claim: str, roles: Iterable[tuple[str, str]]
) -> Person:
    """Who somebody is; raises OidcFault if the provider does not say."""
    name = claim_of(claims, user_claim)
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise OidcFault(
            HTTPStatus.FORBIDDEN,
            "OidcUserMissing",
            f"your organisation's sign-in does not say who you are: it sends no claim {user_claim}",
            "have the provider send it, or name the claim that it sends:  FAIRWAY_OIDC_USER_CLAIM",
            f"claims: {', '.join(sorted(map(str, claims)))[:500]}",
        )
    if user_claim == "email" and claims.get("email_verified", True) is not True:
        raise OidcFault(
            HTTPStatus.FORBIDDEN,
            "OidcUserMissing",
            "your e-mail address was never verified by your organisation's sign-in",
            "verify it there, and sign in again",
        )
    return Person(UserName(name.strip()), role_of(groups_of(claims, groups_claim), roles))


def claim_of(claims: Mapping[str, Any], name: str) -> object:
    """A claim by its name or, if no claim is called so, by its way: `realm_access.roles`."""
    if name in claims:
        return claims[name]
    found: object = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def groups_of(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """The groups somebody is in; one as a word, several as a list."""
    given = claim_of(claims, claim)
    listed = given if isinstance(given, list) else [given]
    return frozenset(group for group in listed if isinstance(group, str))


def role_of(groups: frozenset[str], roles: Iterable[tuple[str, str]]) -> Role:
    """The highest role of somebody's groups; a member without any.

    A member sees the money of the teams they are in alone, a viewer everybody's: `viewer` must be given too.
    """
    found = [Role(role) for group, role in roles if group in groups]
    order = list(Role)
    return max(found, key=order.index, default=Role.MEMBER)
