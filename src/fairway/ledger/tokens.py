"""API tokens: kept by their hash, never by their secret."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy import Row, and_, func, insert, or_, select, text, update
from sqlalchemy.exc import IntegrityError

from fairway.ledger.connection import Connections
from fairway.ledger.errors import LastAdmin, TokenNameTaken
from fairway.ledger.records import Token
from fairway.ledger.tables import NONE, api_token
from fairway.model.access import Role
from fairway.model.names import UserName

FIELDS = (
    api_token.c.id,
    api_token.c.name,
    api_token.c.role,
    api_token.c.created_at,
    api_token.c.created_by,
    api_token.c.expires_at,
    api_token.c.revoked_at,
    api_token.c.last_used_at,
    api_token.c.user_name,
)

LIVE = and_(
    api_token.c.revoked_at.is_(None),
    or_(api_token.c.expires_at.is_(None), api_token.c.expires_at > func.now()),
)

# Locked, in one order: of two who each end another's, the second waits here and then counts what is left.
_ADMINS = (
    select(api_token.c.name)
    .where(api_token.c.role == Role.ADMIN.value, LIVE)
    .order_by(api_token.c.id)
    .with_for_update()
)


async def create(
    connections: Connections,
    name: str,
    role: Role,
    digest: bytes,
    *,
    by: str,
    expires_at: datetime | None,
    user: UserName | None,
) -> Token:
    values = {
        "name": name,
        "role": role.value,
        "hash": digest,
        "created_by": by,
        "expires_at": expires_at,
        "user_name": user or NONE,
    }
    async with connections.single() as connection:
        try:
            row = (await connection.execute(insert(api_token).values(values).returning(*FIELDS))).one()
        except IntegrityError as error:
            taken = error.orig
            if isinstance(taken, psycopg.Error) and taken.diag.constraint_name == "api_token_name_key":
                raise _name_taken(name) from error
            raise
    return as_token(row)


async def by_hash(connections: Connections, digest: bytes) -> Token | None:
    async with connections.single() as connection:
        row = (await connection.execute(select(*FIELDS).where(api_token.c.hash == digest, LIVE))).first()
    return None if row is None else as_token(row)


async def every(connections: Connections) -> tuple[Token, ...]:
    async with connections.single() as connection:
        rows = (await connection.execute(select(*FIELDS).order_by(api_token.c.name))).all()
    return tuple(as_token(row) for row in rows)


async def revoke(connections: Connections, name: str) -> Token | None:
    ended = (
        update(api_token)
        .where(api_token.c.name == name)
        .values(revoked_at=func.coalesce(api_token.c.revoked_at, func.now()))
        .returning(*FIELDS)
    )
    async with connections.transaction() as connection:
        if set((await connection.execute(_ADMINS)).scalars()) == {name}:
            raise _last_admin(name)
        row = (await connection.execute(ended)).first()
    return None if row is None else as_token(row)


async def touch(connections: Connections, token: Token) -> None:
    stale = or_(
        api_token.c.last_used_at.is_(None),
        api_token.c.last_used_at < func.now() - text("interval '1 minute'"),
    )
    used = update(api_token).where(api_token.c.id == token.id, stale).values(last_used_at=func.now())
    async with connections.single() as connection:
        await connection.execute(used)


async def any_live(connections: Connections) -> bool:
    async with connections.single() as connection:
        return (await connection.execute(select(select(api_token.c.id).where(LIVE).exists()))).scalar_one()


def as_token(row: Row[*tuple[Any, ...]]) -> Token:
    """A row of FIELDS."""
    fields = {**row._mapping, "role": Role(row.role)}
    return Token(user=UserName(fields.pop("user_name") or row.name), **fields)


def _last_admin(name: str) -> LastAdmin:
    return LastAdmin(
        "LastAdmin",
        f"{name} is the last token with the role admin",
        "make another one first:  fairway token create NAME --role admin",
    )


def _name_taken(name: str) -> TokenNameTaken:
    return TokenNameTaken(
        "TokenNameTaken",
        f"there is, or was, a token called {name}; names are not used twice, so that logs stay clear",
        f"choose another name, e.g.  fairway token create {name}-2",
    )
