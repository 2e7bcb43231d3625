"""Manage the ledger without a server: the version of its tables, and an admin token."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fairway.ledger import Ledger, TableVersion
from fairway.model.access import Role
from fairway.model.errors import PermanentError
from fairway.model.names import NAME_PATTERN
from fairway.services.tokens import hash_secret, new_secret
from fairway.settings import Settings

Result = TypeVar("Result")


def table_version(settings: Settings) -> TableVersion:
    """Return the migration step of the tables, and the one this release needs."""
    return _with_ledger(settings, lambda ledger: ledger.table_version())


def upgrade_tables(settings: Settings) -> tuple[TableVersion, TableVersion]:
    """Upgrade the tables. Returns their version before and after."""

    async def upgrade(ledger: Ledger) -> tuple[TableVersion, TableVersion]:
        before = await ledger.table_version()
        await ledger.migrate()
        return before, await ledger.table_version()

    return _with_ledger(settings, upgrade)


def downgrade_tables(settings: Settings, to: str, *, force: bool) -> tuple[TableVersion, TableVersion]:
    """Downgrade the tables to step `to`. Returns their version before and after."""

    async def downgrade(ledger: Ledger) -> tuple[TableVersion, TableVersion]:
        before = await ledger.table_version()
        return before, await ledger.downgrade(to, force=force)

    return _with_ledger(settings, downgrade)


def make_admin(settings: Settings, name: str) -> str:
    """Create an admin token and return its secret. Access to the database is authorization enough."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise PermanentError(
            "BadTokenName", f"{name!r} cannot be a token's name", "use lower-case letters, digits and dashes"
        )

    async def make(ledger: Ledger) -> str:
        await ledger.ready()
        secret = new_secret()
        await ledger.tokens.create(name, Role.ADMIN, hash_secret(secret), "fairway ledger admin")
        return secret

    return _with_ledger(settings, make)


def _with_ledger(settings: Settings, call: Callable[[Ledger], Awaitable[Result]]) -> Result:
    url = settings.database_url
    if url is None:
        raise PermanentError(
            "NoDatabaseUrl",
            "no ledger is configured: FAIRWAY_DATABASE_URL is not set",
            "set it, or FAIRWAY_DATABASE_URL_FILE; an embedded PostgreSQL is upgraded by its own server",
        )

    async def run() -> Result:
        ledger = await Ledger.connect(url)
        try:
            return await call(ledger)
        finally:
            await ledger.close()

    return asyncio.run(run())
