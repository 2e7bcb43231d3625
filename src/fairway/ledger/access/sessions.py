"""Store sessions of the web pages, by the hash of their cookie; none outlives the token behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import and_, delete, func, insert, or_, select, text, true

from fairway.ledger.access.tokens import FIELDS, LIVE, as_token
from fairway.ledger.connection import LedgerStore
from fairway.ledger.records.fleet import Session, Token
from fairway.ledger.schema.tables import api_token, web_session
from fairway.model.access import Role
from fairway.model.names import UserName

BY_SIGN_IN: Final = 0
"""The token id of a caller that has no token."""
MAX_PER_USER: Final = 50
"""Sessions of one user; a new one ends the oldest."""
_ID_LENGTH: Final = 12
_MAX_SWEPT: Final = 100
"""Expired sessions that a new one deletes: more than one, so that they do not accumulate."""


class SessionStore(LedgerStore):
    """Reads and writes web sessions."""

    async def create(
        self,
        digest: bytes,
        *,
        token: Token | None,
        user: UserName,
        role: Role,
        issuer: str = "",
        seconds: float,
    ) -> None:
        """Store a session by the hash of its cookie: of a token, or of a user authenticated by an issuer.

        The oldest sessions of a user who has too many end.
        """
        expired = select(web_session.c.hash).where(web_session.c.expires_at < func.now()).limit(_MAX_SWEPT)
        oldest = (
            select(web_session.c.hash)
            .where(web_session.c.user_name == user)
            .order_by(web_session.c.created_at.desc())
            .offset(MAX_PER_USER - 1)
        )
        values = {
            "hash": digest,
            "token": None if token is None else token.id,
            "user_name": user,
            "role": role.value,
            "issuer": issuer,
            "expires_at": func.now()
            + text("make_interval(secs => :seconds)").bindparams(seconds=float(seconds)),
        }
        async with self._connections.transaction() as connection:
            await connection.execute(delete(web_session).where(web_session.c.hash.in_(expired)))
            await connection.execute(delete(web_session).where(web_session.c.hash.in_(oldest)))
            await connection.execute(insert(web_session).values(values))

    async def caller(self, digest: bytes) -> Token | None:
        """Look up a session's caller. Returns None if the session or its token is no longer valid."""
        session = select(web_session).where(
            web_session.c.hash == digest, web_session.c.expires_at > func.now()
        )
        async with self._connections.single() as connection:
            row = (await connection.execute(session)).first()
            if row is None:
                return None
            if row.token is not None:
                token = select(*FIELDS).where(api_token.c.id == row.token, LIVE)
                token_row = (await connection.execute(token)).first()
                return None if token_row is None else as_token(token_row)
        return Token(
            id=BY_SIGN_IN,
            name=row.user_name,
            role=Role(row.role),
            created_at=row.created_at,
            created_by=row.issuer,
            expires_at=row.expires_at,
            revoked_at=None,
            last_used_at=None,
            user=UserName(row.user_name),
        )

    async def end(self, digest: bytes) -> None:
        """End one session; does nothing if there is none."""
        async with self._connections.single() as connection:
            await connection.execute(delete(web_session).where(web_session.c.hash == digest))

    async def all(self, user: UserName | None = None) -> tuple[Session, ...]:
        """Return the valid sessions, of everybody or of one user, by user and id."""
        rows = await self._fetch(
            select(web_session, api_token.c.name.label("token_name"))
            .join(api_token, and_(api_token.c.id == web_session.c.token, LIVE), isouter=True)
            .where(
                web_session.c.expires_at > func.now(),
                or_(web_session.c.token.is_(None), api_token.c.id.is_not(None)),
                true() if user is None else web_session.c.user_name == user,
            )
            .order_by(web_session.c.user_name, web_session.c.hash)
        )
        return tuple(
            Session(
                id=bytes(row.hash).hex()[:_ID_LENGTH],
                user=UserName(row.user_name),
                role=Role(row.role),
                token=row.token_name,
                issuer=row.issuer,
                created_at=row.created_at,
                expires_at=row.expires_at,
            )
            for row in rows
        )

    async def end_all(self, user: UserName) -> int:
        """End every session of a user. Returns how many."""
        async with self._connections.single() as connection:
            ended = await connection.execute(delete(web_session).where(web_session.c.user_name == user))
        return ended.rowcount

    async def live(self, digests: Sequence[bytes]) -> frozenset[bytes]:
        """Return the hashes of those sessions that are still valid."""
        live_token = select(api_token.c.id).where(api_token.c.id == web_session.c.token, LIVE).exists()
        live = select(web_session.c.hash).where(
            web_session.c.hash.in_(digests),
            web_session.c.expires_at > func.now(),
            or_(web_session.c.token.is_(None), live_token),
        )
        return frozenset(bytes(row.hash) for row in await self._fetch(live))
