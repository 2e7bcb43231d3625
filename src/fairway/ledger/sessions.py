"""Sessions of the pages: kept by the hash of their cookie, and never longer than the token behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, func, insert, or_, select, text

from fairway.ledger.connection import Connections
from fairway.ledger.records import Token
from fairway.ledger.tables import api_token, web_session
from fairway.ledger.tokens import FIELDS, LIVE, as_token
from fairway.model.access import Role
from fairway.model.names import UserName

BY_SIGN_IN: Final = 0
"""The id of a caller who has no token."""
_SWEPT: Final = 100
"""Sessions that ran out which a new one takes away: more than one, so that they do not pile up."""


async def create(
    connections: Connections,
    digest: bytes,
    *,
    token: Token | None,
    user: UserName,
    role: Role,
    issuer: str,
    seconds: float,
) -> None:
    """Keep a session, and take away some that ran out."""
    old = select(web_session.c.hash).where(web_session.c.expires_at < func.now()).limit(_SWEPT)
    values = {
        "hash": digest,
        "token": None if token is None else token.id,
        "user_name": user,
        "role": role.value,
        "issuer": issuer,
        "expires_at": func.now() + text("make_interval(secs => :seconds)").bindparams(seconds=seconds),
    }
    async with connections.transaction() as connection:
        await connection.execute(delete(web_session).where(web_session.c.hash.in_(old)))
        await connection.execute(insert(web_session).values(values))


async def caller(connections: Connections, digest: bytes) -> Token | None:
    """Who is behind a session; None: it is unknown, ran out, or its token is no longer valid."""
    found = select(web_session).where(web_session.c.hash == digest, web_session.c.expires_at > func.now())
    async with connections.single() as connection:
        row = (await connection.execute(found)).first()
        if row is None:
            return None
        if row.token is not None:
            behind = select(*FIELDS).where(api_token.c.id == row.token, LIVE)
            known = (await connection.execute(behind)).first()
            return None if known is None else as_token(known)
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


async def end(connections: Connections, digest: bytes) -> None:
    """End one session."""
    async with connections.single() as connection:
        await connection.execute(delete(web_session).where(web_session.c.hash == digest))


async def live(connections: Connections, digests: Sequence[bytes]) -> frozenset[bytes]:
    """Which of these are still good; one question however many pages are open."""
    behind = select(api_token.c.id).where(api_token.c.id == web_session.c.token, LIVE).exists()
    found = select(web_session.c.hash).where(
        web_session.c.hash.in_(digests),
        web_session.c.expires_at > func.now(),
        or_(web_session.c.token.is_(None), behind),
    )
    async with connections.single() as connection:
        return frozenset(bytes(row.hash) for row in await connection.execute(found))
