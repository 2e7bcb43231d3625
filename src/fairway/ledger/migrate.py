"""Migrate the tables up or down: in one transaction, under a lock, so that many servers may do so at once.

A migration declares in `LOSES` which data its downgrade discards, "" if none; one without `downgrade` cannot
be undone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections, not_migrated
from fairway.ledger.errors import DowngradeRefused, LedgerNewer
from fairway.ledger.schema.tables import VERSION_TABLE

FOLDER: Final = Path(__file__).parent / "migrations"

LOCK: Final = 0x6661_6972_7761_79
"""The advisory lock of this database that a migrating server holds ("fairway" in ASCII)."""

TIMEOUT_SECONDS: Final = 600
"""A migration of a large ledger may take minutes; servers that wait for it wait as long."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The migration that the tables are at, and the newest that this code has."""

    current: str | None
    """None: there are no Fairway tables yet."""
    newest: str


async def migrate(connections: Connections) -> None:
    """Run every pending migration. Raises LedgerNewer if the database is at one this code does not know."""
    async with _migration(connections) as connection:
        await connection.run_sync(_upgrade)


async def downgrade(connections: Connections, to: str, *, force: bool = False) -> TableVersion:
    """Undo every migration after `to`, newest first. Raises DowngradeRefused if one must not be undone."""
    async with _migration(connections) as connection:
        await connection.run_sync(_downgrade, to, force)
        return TableVersion(to, _steps()[0])


async def version(connections: Connections) -> TableVersion:
    """Read the version of the tables; `current` is None for an empty database."""
    async with connections.single() as connection:
        table = await connection.execute(text("SELECT to_regclass(:name)"), {"name": VERSION_TABLE})
        if table.scalar() is None:
            return TableVersion(None, _steps()[0])
        row = (await connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}"))).first()  # noqa: S608
        return TableVersion(row[0] if row else None, _steps()[0])


@asynccontextmanager
async def _migration(connections: Connections) -> AsyncIterator[AsyncConnection]:
    async with connections.transaction(seconds=2 * TIMEOUT_SECONDS) as connection:
        for timeout in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
            await connection.execute(text(f"SET LOCAL {timeout} = '{TIMEOUT_SECONDS}s'"))
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        yield connection


async def check_version(connection: AsyncConnection) -> None:
    """Raise LedgerNotMigrated if the tables are older than this code.

    Newer tables are accepted: during a rolling upgrade the old servers go on until they are replaced.
    """
    row = (await connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}"))).first()  # noqa: S608
    steps = _steps()
    if row is None or (row[0] in steps and row[0] != steps[0]):
        raise not_migrated()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return config


@cache
def _steps() -> tuple[str, ...]:
    """Return every migration this code knows, newest first."""
    return tuple(step.revision for step in ScriptDirectory.from_config(_config()).walk_revisions())


def _upgrade(connection: Connection) -> None:
    _current_step(connection)
    command.upgrade(_config_on(connection), "head")


def _downgrade(connection: Connection, to: str, force: bool) -> None:
    current, steps = _current_step(connection), _steps()
    if current is None:
        raise not_migrated()
    if to not in steps:
        raise DowngradeRefused(
            "UnknownStep",
            f"there is no step {to}; this Fairway knows {steps[-1]} to {steps[0]}",
            "see where the ledger is:  fairway ledger version",
        )
    if steps.index(to) < steps.index(current):
        raise DowngradeRefused(
            "NotBackward",
            f"the ledger is at step {current}, which is before {to}",
            "upgrade it with:  fairway ledger upgrade",
        )
    scripts = ScriptDirectory.from_config(_config())
    for step in steps[steps.index(current) : steps.index(to)]:
        _check_downgrade(scripts.get_revision(step), force)
    command.downgrade(_config_on(connection), to)


def _check_downgrade(step: Script, force: bool) -> None:
    if not hasattr(step.module, "downgrade"):
        raise DowngradeRefused(
            "DowngradeImpossible",
            f"step {step.revision} cannot be undone: {_first_line(step)}",
            "restore the backup that was made before that step into a database of its own",
        )
    # A migration that does not declare it is assumed to lose data.
    loses = getattr(step.module, "LOSES", f"whatever it brought ({_first_line(step)})")
    if loses and not force:
        raise DowngradeRefused(
            "DowngradeLoses",
            f"undoing step {step.revision} loses {loses}",
            "make a backup, then confirm with:  --force",
        )


def _first_line(step: Script) -> str:
    return step.doc.partition("\n")[0].rstrip(".")


def _current_step(connection: Connection) -> str | None:
    options = {"version_table": VERSION_TABLE}
    current = MigrationContext.configure(connection, opts=options).get_current_revision()
    if current is not None and current not in _steps():
        raise LedgerNewer(
            "LedgerNewer",
            f"a newer Fairway upgraded the ledger to step {current}; this one knows steps up to "
            f"{_steps()[0]}",
            "upgrade this server:  pip install --upgrade fairway",
        )
    return current


def _config_on(connection: Connection) -> Config:
    config = _config()
    config.attributes["connection"] = connection
    return config
