"""Store sign-ins of the command line that are in progress, by the hash of the secret that only it has."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import and_, delete, func, insert, select, text, update

from fairway.ledger.connection import LedgerStore
from fairway.ledger.errors import TooManyLogins
from fairway.ledger.records.fleet import AllowedLogin, LoginRequest
from fairway.ledger.schema.tables import api_token, login_request
from fairway.ledger.sql_values import AnyRow
from fairway.model.access import Role
from fairway.model.names import UserName

LOGIN_SECONDS: Final = 600
"""How long a person may take to confirm a sign-in."""
BY_LOGIN: Final = "fairway login"
"""What `created_by` of a token begins with that a sign-in of the command line made. No name has a space."""
MAX_OPEN: Final = 10_000
"""Sign-ins in progress: anybody may begin one."""
_MAX_PER_USER: Final = 50
"""Live tokens of one person that sign-ins made; a new one revokes the oldest."""
_SWEPT: Final = 100
_KEPT: Final = text("interval '30 days'")
"""How long tokens of sign-ins stay listed after they expired."""

_OPEN: Final = and_(
    login_request.c.expires_at > func.now(),
    login_request.c.user_name.is_(None),
    login_request.c.refused.is_(False),
)
_MADE_BY_LOGIN: Final = api_token.c.created_by.startswith(BY_LOGIN, autoescape=True)


class LoginStore(LedgerStore):
    """Reads and writes sign-ins of the command line, and the tokens that they made."""

    async def begin(self, challenge: bytes, user_code: str, host: str, port: int | None) -> None:
        """Store a sign-in that a person has to confirm. Raises TooManyLogins.

        Expired sign-ins, and tokens of sign-ins that expired long ago, are removed on the way.
        """
        expired = select(login_request.c.challenge).where(login_request.c.expires_at < func.now())
        old = (
            select(api_token.c.id)
            .where(_MADE_BY_LOGIN, api_token.c.expires_at < func.now() - _KEPT)
            .limit(_SWEPT)
        )
        values = {
            "challenge": challenge,
            "user_code": user_code,
            "host": host,
            "port": port,
            "expires_at": func.now()
            + text("make_interval(secs => :seconds)").bindparams(seconds=float(LOGIN_SECONDS)),
        }
        async with self._connections.transaction() as connection:
            await connection.execute(
                delete(login_request).where(login_request.c.challenge.in_(expired.limit(_SWEPT)))
            )
            await connection.execute(delete(api_token).where(api_token.c.id.in_(old)))
            limited = select(login_request.c.challenge).limit(MAX_OPEN + 1).subquery()
            count = (await connection.execute(select(func.count()).select_from(limited))).scalar_one()
            if count >= MAX_OPEN:
                raise TooManyLogins(
                    "TooManyLogins", "too many sign-ins are in progress", "try again in some minutes"
                )
            await connection.execute(insert(login_request).values(values))

    async def find(self, user_code: str) -> LoginRequest | None:
        """Return a sign-in that waits to be confirmed. Returns None if it is unknown, answered or expired."""
        row = await self._fetch_first(
            select(login_request).where(login_request.c.user_code == user_code, _OPEN)
        )
        return None if row is None else LoginRequest(row.user_code, row.host, row.port)

    async def allow(
        self,
        user_code: str,
        *,
        user: UserName,
        role: Role,
        issuer: str,
        code_hash: bytes | None,
        until: datetime,
    ) -> bool:
        """Record that a person confirmed a sign-in: once. Returns whether it was still open."""
        allowed = {
            "user_name": user,
            "role": role.value,
            "issuer": issuer,
            "code_hash": code_hash,
            "token_expires_at": until,
        }
        return await self._answer(user_code, allowed)

    async def refuse(self, user_code: str) -> bool:
        """Record that a person refused a sign-in. Returns whether it was still open."""
        return await self._answer(user_code, {"refused": True})

    async def _answer(self, user_code: str, values: Mapping[str, object]) -> bool:
        answer = (
            update(login_request).where(login_request.c.user_code == user_code, _OPEN).values(dict(values))
        )
        async with self._connections.single() as connection:
            return (await connection.execute(answer)).rowcount == 1

    async def take(self, challenge: bytes, code_hash: bytes | None) -> AllowedLogin | LoginRequest | None:
        """Take a sign-in that was confirmed; nobody gets it a second time.

        Returns the request while nobody has confirmed it, and None if it is unknown, refused or expired. One
        with a port also needs the code that the person's browser brought there.
        """
        of_code = (
            login_request.c.code_hash.is_(None)
            if code_hash is None
            else login_request.c.code_hash == code_hash
        )
        live = and_(login_request.c.challenge == challenge, login_request.c.expires_at > func.now())
        taken = (
            delete(login_request)
            .where(live, login_request.c.user_name.is_not(None), of_code)
            .returning(*login_request.c)
        )
        async with self._connections.transaction() as connection:
            row: AnyRow | None = (await connection.execute(taken)).first()
            if row is not None:
                return AllowedLogin(
                    UserName(row.user_name), Role(row.role), row.issuer, row.host, row.token_expires_at
                )
            waiting = select(login_request).where(live, login_request.c.refused.is_(False))
            row = (await connection.execute(waiting)).first()
        return None if row is None else LoginRequest(row.user_code, row.host, row.port)

    async def revoke_oldest(self, user: UserName) -> None:
        """Revoke the oldest tokens of a person's sign-ins if there are too many."""
        newest = (
            select(api_token.c.id)
            .where(_MADE_BY_LOGIN, api_token.c.user_name == user, api_token.c.revoked_at.is_(None))
            .order_by(api_token.c.id.desc())
            .offset(_MAX_PER_USER)
        )
        async with self._connections.single() as connection:
            await connection.execute(
                update(api_token).where(api_token.c.id.in_(newest)).values(revoked_at=func.now())
            )

    async def revoke(self, *, token_id: int | None = None, user: UserName | None = None) -> int:
        """Revoke a token that a sign-in made, or all of a person's. Returns how many there were.

        Unlike other tokens it may be the last one of an admin, who can sign in again.
        """
        which = api_token.c.id == token_id if token_id is not None else api_token.c.user_name == user
        revoke = (
            update(api_token)
            .where(
                _MADE_BY_LOGIN, which, api_token.c.revoked_at.is_(None), api_token.c.expires_at > func.now()
            )
            .values(revoked_at=func.now())
        )
        async with self._connections.single() as connection:
            return (await connection.execute(revoke)).rowcount
