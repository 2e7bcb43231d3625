"""Verify ID tokens: signature, issuer, audience, expiry, nonce. Pure, given the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import Key, KeySet, import_key

from fairway.web.auth.oidc_flow import not_proven

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA",
)  # fmt: skip
"""Asymmetric signatures only: no shared secrets, and never `none`."""
LEEWAY_SECONDS: Final = 60
"""Allowed clock skew."""
_MAX_TOKEN_LENGTH: Final = 100_000
_MIN_RSA_BITS: Final = 2048


class UnknownKey(Exception):
    """The token is signed by a key that is not cached: it may be new."""


class _Registry(jws.JWSRegistry):
    # Some providers send a certificate along, which is ignored.
    max_header_length = 16_000


def read_keys(document: Mapping[str, Any]) -> KeySet:
    """Return the provider's signing keys. Raises OidcError if there is none."""
    listed = document.get("keys")
    keys = [key for entry in (listed if isinstance(listed, list) else []) if (key := _read_key(entry))]
    if not keys:
        raise not_proven("the provider publishes no key that could sign an ID token")
    return KeySet(keys)


def _read_key(entry: object) -> Key | None:
    """Parse one key. Returns None if it is not understood, not a public signing key, or too weak."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
        return None
    public = {name: value for name, value in entry.items() if name not in ("d", "p", "q", "dp", "dq", "qi")}
    try:
        key = import_key(public)
    except (JoseError, ValueError, TypeError):
        return None
    weak = key.key_type == "RSA" and key.public_key.key_size < _MIN_RSA_BITS  # type: ignore[union-attr]
    return None if weak else key


def verified_claims(
    token: object, keys: KeySet, *, issuer: str, client_id: str, nonce: str, now: int
) -> dict[str, Any]:
    """Return the token's claims. Raises OidcError if it is invalid, UnknownKey if other keys may help."""
    if not isinstance(token, str) or not token.isascii() or len(token) > _MAX_TOKEN_LENGTH:
        raise not_proven("there is no ID token in the answer, or one of absurd length")
    registry = _Registry(algorithms=ALGORITHMS, strict_check_header=False)
    try:
        claims = jwt.decode(token, lambda signed: _key_of(signed.headers(), keys), registry=registry).claims
        _check(claims, issuer, client_id, nonce, now)
    except (JoseError, ValueError, TypeError) as error:
        raise not_proven(f"ID token: {type(error).__name__}: {str(error)[:300]}") from error
    return claims


def _key_of(header: Mapping[str, Any], keys: KeySet) -> Key:
    kid = header.get("kid")
    named: Sequence[Key] = [key for key in keys if key.kid == kid]
    if named:
        return named[0]
    if kid is None and len(keys.keys) == 1:  # a provider with one key need not name it
        return keys.keys[0]
    raise UnknownKey


def _check(claims: dict[str, Any], issuer: str, client_id: str, nonce: str, now: int) -> None:
    registry = jwt.JWTClaimsRegistry(
        now=now,
        leeway=LEEWAY_SECONDS,
        iss={"essential": True, "value": issuer},
        sub={"essential": True},
        aud={"essential": True, "value": client_id},
        exp={"essential": True},
        iat={"essential": True},
        nonce={"essential": True, "value": nonce},
    )
    registry.validate(claims)
    if claims["nonce"] != nonce:  # the check above accepts a list that contains it
        raise ValueError("it answers another question (nonce)")
    others = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if claims.get("azp", None if others else client_id) != client_id:
        raise ValueError("it was made for somebody else (azp)")
