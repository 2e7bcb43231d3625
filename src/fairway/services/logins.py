"""Sign in from the command line: a person confirms in the browser, the command line gets their token.

It has the shape of RFC 8628 (a code that the person enters) and of RFC 8252 with PKCE (a listener on
127.0.0.1), but Fairway itself is what is signed in to: any provider of OpenID Connect will do.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from fairway.ledger import BY_LOGIN, BY_SIGN_IN, LOGIN_SECONDS, AllowedLogin, Ledger, LoginRequest, Token
from fairway.model.text import clean
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets
from fairway.services.rights import require_person
from fairway.services.tokens import hash_secret, new_secret
from fairway.wire import fleet as wire
from fairway.wire import logins as login_wire

POLL_SECONDS: Final = 2.0
MAX_SIGN_IN_AGE: Final = timedelta(hours=1)
"""How long ago the person may have signed in to the pages: their role was read then."""
_ALPHABET: Final = "BCDFGHJKLMNPQRSTVWXZ"
"""As RFC 8628 recommends: no vowels, so no words; no digits that look like letters."""
_CODE_LENGTH: Final = 8


async def begin_login(ledger: Ledger, request: login_wire.NewLogin) -> login_wire.Login:
    """Store a sign-in that a person is to confirm."""
    code = "".join(secrets.choice(_ALPHABET) for _ in range(_CODE_LENGTH))
    await ledger.logins.begin(_digest(request.challenge), code, clean(request.host), request.port)
    shown = shown_code(code)
    # The code is in the address only if the answer goes to this machine: a link that somebody sends must not
    # lead a person past the moment in which they type the code that they see on their own screen.
    path = "/login" if request.port is None else f"/login?request={shown}"
    return login_wire.Login(
        code=shown, path=path, expires_in_seconds=LOGIN_SECONDS, poll_seconds=POLL_SECONDS
    )


async def redeem_login(
    ledger: Ledger, redemption: login_wire.LoginRedemption
) -> login_wire.LoginResult | None:
    """Create the token of a confirmed sign-in. Returns None if it is unknown, refused, used or expired."""
    code_hash = None if redemption.code is None else hash_secret(redemption.code)
    found = await ledger.logins.take(hashlib.sha256(redemption.verifier.encode()).digest(), code_hash)
    if not isinstance(found, AllowedLogin):
        return None if found is None else login_wire.LoginResult(token=None)
    secret = new_secret()
    host = f" from {found.host}" if found.host else ""
    token = await ledger.tokens.create(
        f"login-{secrets.token_hex(6)}",
        found.role,
        hash_secret(secret),
        f"{BY_LOGIN} at {found.issuer}{host}",
        found.until,
        user=found.user,
    )
    await ledger.logins.revoke_oldest(found.user)
    return login_wire.LoginResult(token=wire.MadeToken(**asdict(token), secret=secret))


def is_fresh_sign_in(caller: Token, now: datetime | None = None) -> bool:
    """Return whether a session is one of the provider's, and so recent that it may confirm a sign-in."""
    age = (now or datetime.now(UTC)) - caller.created_at
    return caller.id == BY_SIGN_IN and age < MAX_SIGN_IN_AGE


async def find_login(ledger: Ledger, typed: str, *, by_link: bool) -> LoginRequest:
    """Find the sign-in that a person is to confirm. Raises RequestError if there is none.

    By a link only those are found whose answer goes to the person's own machine.
    """
    found = await ledger.logins.find(_plain_code(typed))
    if found is None or (by_link and found.port is None):
        raise _no_login()
    return found


async def allow_login(ledger: Ledger, fleets: Fleets, caller: Token, typed: str) -> tuple[LoginRequest, str]:
    """Confirm a sign-in as the caller. Returns it with the code for its listener, which is empty without one.

    Raises RequestError if the caller did not sign in at the provider a short time ago.
    """
    if not is_fresh_sign_in(caller) or caller.expires_at is None:
        raise RequestError(
            ErrorKind.FORBIDDEN,
            "SignInTooOld",
            "only somebody who has just signed in with their organisation can allow this",
            "sign out, sign in with your organisation, and run  fairway login  again",
        )
    require_person(caller.user, reserved=(await fleets.current()).is_reserved(caller.user))
    found = await find_login(ledger, typed, by_link=False)
    code = secrets.token_urlsafe(32) if found.port is not None else ""
    allowed = await ledger.logins.allow(
        found.user_code,
        user=caller.user,
        role=caller.role,
        issuer=caller.created_by,
        code_hash=hash_secret(code) if code else None,
        until=caller.expires_at,
    )
    if not allowed:
        raise _no_login()
    return found, code


async def refuse_login(ledger: Ledger, typed: str) -> None:
    """Refuse a sign-in. Refusing one that is gone is not an error."""
    await ledger.logins.refuse(_plain_code(typed))


async def log_out(ledger: Ledger, caller: Token) -> wire.Token:
    """Revoke the caller's own token. Raises RequestError if it was not made by a sign-in."""
    if not await ledger.logins.revoke(token_id=caller.id):
        raise RequestError(
            ErrorKind.CONFLICT,
            "NotALogin",
            f"token {caller.name} was not created by  fairway login",
            f"an admin revokes it:  fairway token revoke {caller.name}",
        )
    return wire.Token(**asdict(replace(caller, revoked_at=datetime.now(UTC))))


def shown_code(code: str) -> str:
    """Format a code for people: `WDJB-MJHT`."""
    return f"{code[: _CODE_LENGTH // 2]}-{code[_CODE_LENGTH // 2 :]}"


def _plain_code(typed: str) -> str:
    """Read a code as people type it: in any case, with or without the dash."""
    return "".join(ch for ch in typed.upper() if ch in _ALPHABET)[: 2 * _CODE_LENGTH]


def _digest(challenge: str) -> bytes:
    return base64.urlsafe_b64decode(challenge + "=")


def _no_login() -> RequestError:
    return RequestError(
        ErrorKind.NOT_FOUND,
        "NoSuchLogin",
        "no sign-in waits under this code: it was used already, refused, or is older than ten minutes",
        "compare the code with the one in your terminal, or run  fairway login  again",
    )
