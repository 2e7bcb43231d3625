"""The tables come forward: complete, once, and never backward."""

from __future__ import annotations

import asyncio
import sys

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, text

from fairway.ledger import Ledger, LedgerNewer, LedgerNotMigrated
from fairway.ledger.schema import (
    costs,  # noqa: F401  (adds its tables)
    jobs,  # noqa: F401  (adds its tables)
    notices,  # noqa: F401  (adds its tables)
    slos,  # noqa: F401  (adds its tables)
    telemetry,  # noqa: F401  (adds its tables)
)
from fairway.ledger.schema.tables import VERSION_TABLE, metadata

MIGRATE = """
import asyncio, sys
from fairway.ledger import Ledger

async def main():
    ledger = await Ledger.connect(sys.argv[1])
    print("open", flush=True)
    sys.stdin.readline()
    await ledger.migrate()
    await ledger.ready()
    await ledger.close()

asyncio.run(main())
"""


def differences(connection: Connection) -> list[object]:
    options = {"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


def checks(connection: Connection) -> dict[str, str]:
    rows = connection.execute(
        text(
            "SELECT conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE contype = 'c' AND connamespace = 'public'::regnamespace"
        )
    )
    return {row[0]: row[1] for row in rows}


def test_the_tables_are_what_the_migrations_make(migrated_url: str, empty_database_url: str) -> None:
    migrated = create_engine(migrated_url.replace("postgresql:", "postgresql+psycopg:"))
    modelled = create_engine(empty_database_url.replace("postgresql:", "postgresql+psycopg:"))
    with migrated.connect() as one, modelled.begin() as other:
        assert differences(one) == []
        metadata.create_all(other)
        assert checks(one) == checks(other)  # which Alembic does not compare
        one.execute(text("ALTER TABLE node ADD COLUMN surplus text"))
        assert len(differences(one)) == 1  # the comparison can fail
        one.rollback()
    migrated.dispose()
    modelled.dispose()


async def test_migrating_again_changes_nothing(database_url: str, ledger: Ledger) -> None:
    await ledger.migrate()
    await ledger.ready()
    with psycopg.connect(database_url) as connection:
        assert connection.execute(f"SELECT count(*) FROM {VERSION_TABLE}").fetchone() == (1,)


async def test_processes_that_migrate_at_once_all_succeed(empty_database_url: str) -> None:
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            MIGRATE,
            empty_database_url,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        for _ in range(3)
    ]
    for process in started:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"open\n"
    ends = await asyncio.gather(*(process.communicate(b"\n") for process in started))
    assert [p.returncode for p in started] == [0, 0, 0], [stderr.decode() for _, stderr in ends]


async def test_a_newer_database_is_refused(database_url: str, ledger: Ledger) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(LedgerNewer, match="step 9999") as caught:
        await ledger.migrate()
    assert "upgrade" in caught.value.hint
    await ledger.ready()  # a running server goes on during a rolling upgrade


async def test_an_empty_database_is_not_ready(empty_database_url: str) -> None:
    ledger = await Ledger.connect(empty_database_url)
    with pytest.raises(LedgerNotMigrated, match="missing or older"):
        await ledger.ready()
    with pytest.raises(LedgerNotMigrated):
        await ledger.clusters.all()
    await ledger.close()
