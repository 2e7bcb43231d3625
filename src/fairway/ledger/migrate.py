"""Brings the tables forward: in one transaction, under a lock, so that many servers may start at once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections, not_migrated
from fairway.ledger.errors import LedgerNewer
from fairway.ledger.tables import VERSION_TABLE

FOLDER: Final = Path(__file__).parent / "migrations"

LOCK: Final = 0x6661_6972_7761_79
"""Of this database: whoever migrates holds it ("fairway" in ASCII)."""

PATIENCE_SECONDS: Final = 600
"""A migration of a large ledger may take minutes; those who wait for it wait as long."""


async def migrate(connections: Connections) -> None:
    """Run every step the database has not seen; raises LedgerNewer if it has seen an unknown one."""
    async with connections.transaction(seconds=2 * PATIENCE_SECONDS) as connection:
        await connection.execute(
            text(
                "SELECT set_config('lock_timeout', :patience, true),"
                " set_config('statement_timeout', :patience, true),"
                " set_config('idle_in_transaction_session_timeout', :patience, true)"
            ),
            {"patience": f"{PATIENCE_SECONDS}s"},
        )
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        await connection.run_sync(_upgrade)


async def check_version(connection: AsyncConnection) -> None:
    """Raise LedgerNotMigrated if the tables are older than this code.

    Newer ones are let pass: during a rolling upgrade the old servers go on until they are replaced.
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
    """Every step this code knows, newest first."""
    return tuple(step.revision for step in ScriptDirectory.from_config(_config()).walk_revisions())


def _upgrade(connection: Connection) -> None:
    current = MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE}
    ).get_current_revision()
    if current is not None and current not in _steps():
        raise LedgerNewer(
            "LedgerNewer",
            f"a newer Fairway brought the ledger to step {current}; this one knows steps up to {_steps()[0]}",
            "upgrade this server:  pip install --upgrade fairway",
        )
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
