"""Create and revoke API tokens; list and end sessions of the pages."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Final

from fairway.ledger import LastAdmin, Ledger, Token, TokenNameTaken
from fairway.model.names import UserName
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets
from fairway.services.rights import require_person
from fairway.wire import fleet as wire

SECRET_PREFIX: Final = "fw_"  # noqa: S105 - the part of every token that is no secret
_SECRET_BYTES: Final = 32


def new_secret() -> str:
    """Generate a token: 256 random bits, with a prefix that scanners for leaked secrets can find."""
    return SECRET_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def hash_secret(secret: str) -> bytes:
    """Hash a token for the ledger, which does not store the token itself.

    Plain SHA-256 is right here: slow, salted hashes protect secrets that people choose and
    attackers can guess. 256 random bits cannot be guessed, and a slow hash would slow down every request.
    It also makes the lookup safe against timing: the index compares digests, and nobody can choose
    a secret by the first bytes of its digest.
    """
    return hashlib.sha256(secret.encode()).digest()


async def list_tokens(ledger: Ledger) -> list[wire.Token]:
    """List every token ever created, by name, without secrets."""
    return [wire.Token(**asdict(token)) for token in await ledger.tokens.all()]


async def create_token(ledger: Ledger, fleets: Fleets, caller: Token, new: wire.NewToken) -> wire.MadeToken:
    """Create a token. Only this response ever has its secret."""
    user = new.user or new.name
    require_person(user, reserved=(await fleets.current()).is_reserved(user))
    secret = new_secret()
    expires_at = None
    if new.expires_in_seconds is not None:
        expires_at = datetime.now(UTC) + timedelta(seconds=new.expires_in_seconds)
    try:
        created = await ledger.tokens.create(
            new.name,
            new.role,
            hash_secret(secret),
            caller.name,
            expires_at,
            user=UserName(new.user) if new.user else None,
        )
    except TokenNameTaken as error:
        raise RequestError.wrap(ErrorKind.CONFLICT, error) from error
    return wire.MadeToken(**asdict(created), secret=secret)


async def revoke_token(ledger: Ledger, name: str) -> wire.Token:
    """Revoke a token at once. Revoking it again changes nothing."""
    try:
        revoked = await ledger.tokens.revoke(name)
    except LastAdmin as error:
        raise RequestError.wrap(ErrorKind.CONFLICT, error) from error
    if revoked is None:
        raise RequestError(
            ErrorKind.NOT_FOUND, "NoSuchToken", f"there is no token called {name}", "fairway token list"
        )
    return wire.Token(**asdict(revoked))


async def list_sessions(ledger: Ledger, user: str | None) -> list[wire.Session]:
    """List the valid sessions of the pages, of everybody or of one user."""
    found = await ledger.sessions.all(None if user is None else UserName(user))
    return [wire.Session(**asdict(session)) for session in found]


async def revoke_sessions(ledger: Ledger, user: str) -> wire.EndedSessions:
    """End every session of a user at once, and revoke the tokens of `fairway login`. None is not an error."""
    tokens = await ledger.logins.revoke(user=UserName(user))
    return wire.EndedSessions(user=user, ended=await ledger.sessions.end_all(UserName(user)), tokens=tokens)
