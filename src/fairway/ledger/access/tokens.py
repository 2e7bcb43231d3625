"""Store API tokens, by their hash and never by their secret."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
from sqlalchemy import and_, func, insert, or_, select, text, update
from sqlalchemy.exc import IntegrityError

from fairway.ledger.connection import LedgerStore
from fairway.ledger.errors import LastAdmin, TokenNameTaken
from fairway.ledger.records.fleet import Token
from fairway.ledger.schema.tables import NONE, api_token
from fairway.ledger.sql_values import AnyRow
from fairway.model.access import Role
from fairway.model.names import UserName

_ONE_DAY: Final = timedelta(days=1)

FIELDS = tuple(column for column in api_token.c if column.name != "hash")

LIVE = and_(
    api_token.c.revoked_at.is_(None),
    or_(api_token.c.expires_at.is_(None), api_token.c.expires_at > func.now()),
)

# Locked in id order: if two admins revoke each other's token, the second waits here and then counts the rest.
_ADMINS = (
    select(api_token.c.name, api_token.c.expires_at)
    .where(api_token.c.role == Role.ADMIN.value, LIVE)
    .order_by(api_token.c.id)
    .with_for_update()
)


class TokenStore(LedgerStore):
    """Reads and writes API tokens."""

    async def create(
        self,
        name: str,
        role: Role,
        digest: bytes,
        by: str,
        expires_at: datetime | None = None,
        *,
        user: UserName | None = None,
    ) -> Token:
        """Store a token by its hash; `user` defaults to the token's name. Raises TokenNameTaken."""
        values = {
            "name": name,
            "role": role.value,
            "hash": digest,
            "created_by": by,
            "expires_at": expires_at,
            "user_name": user or NONE,
        }
        async with self._connections.single() as connection:
            try:
                row = (await connection.execute(insert(api_token).values(values).returning(*FIELDS))).one()
            except IntegrityError as error:
                cause = error.orig
                if isinstance(cause, psycopg.Error) and cause.diag.constraint_name == "api_token_name_key":
                    raise TokenNameTaken(
                        "TokenNameTaken",
                        f"a token with this name exists or existed: {name};"
                        " names are not reused, so that logs are unambiguous",
                        f"choose another name, e.g.  fairway token create {name}-2",
                    ) from error
                raise
        return as_token(row)

    async def by_hash(self, digest: bytes) -> Token | None:
        """Look up a live token by its hash. Returns None if it is unknown, revoked or expired."""
        row = await self._fetch_first(select(*FIELDS).where(api_token.c.hash == digest, LIVE))
        return None if row is None else as_token(row)

    async def all(self) -> tuple[Token, ...]:
        """Return every token ever made, by name, including revoked and expired ones."""
        return tuple(map(as_token, await self._fetch(select(*FIELDS).order_by(api_token.c.name))))

    async def revoke(self, name: str) -> Token | None:
        """Revoke a token. Returns None if there is none of that name; raises LastAdmin.

        Revoking it again keeps the first time.
        """
        revoke = (
            update(api_token)
            .where(api_token.c.name == name)
            .values(revoked_at=func.coalesce(api_token.c.revoked_at, func.now()))
            .returning(*FIELDS)
        )
        async with self._connections.transaction() as connection:
            admins = {row.name: row.expires_at for row in await connection.execute(_ADMINS)}
            if name in admins and not _another_lives_on(admins, name):
                raise LastAdmin(
                    "LastAdmin",
                    f"{name} is the last valid token with the role admin",
                    "create another one first:  fairway token create NAME --role admin",
                )
            row = (await connection.execute(revoke)).first()
        return None if row is None else as_token(row)

    async def touch(self, token: Token) -> None:
        """Record that a token was used; writes at most once a minute."""
        stale = or_(
            api_token.c.last_used_at.is_(None),
            api_token.c.last_used_at < func.now() - text("interval '1 minute'"),
        )
        touch = update(api_token).where(api_token.c.id == token.id, stale).values(last_used_at=func.now())
        async with self._connections.single() as connection:
            await connection.execute(touch)

    async def any_live(self) -> bool:
        """Return whether any live token exists."""
        return await self._fetch_first(select(api_token.c.id).where(LIVE).limit(1)) is not None


def _another_lives_on(admins: Mapping[str, datetime | None], name: str) -> bool:
    """Return whether another admin token outlives this one, or is good for another day at least."""
    ends = admins[name]
    soon = datetime.now(UTC) + _ONE_DAY
    enough = soon if ends is None else min(ends, soon)
    return any(end is None or end >= enough for other, end in admins.items() if other != name)


def as_token(row: AnyRow) -> Token:
    """Convert a row of FIELDS to a Token."""
    fields = {**row._mapping, "role": Role(row.role)}
    return Token(user=UserName(fields.pop("user_name") or row.name), **fields)
