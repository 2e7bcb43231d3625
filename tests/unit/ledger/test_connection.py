"""What a failing or read-only PostgreSQL is called, and what messages and logs show of the ledger's URL."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

import httpx2
import psycopg
import pytest
from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from fairway.ledger import Ledger, LedgerRefused, LedgerUnreachable
from fairway.ledger.connection import ConnectionLimits, Connections
from fairway.model.access import Role
from fairway.model.errors import FairwayError
from tests.unit.api.conftest import app, bearer, http, memory

__all__ = ["app", "http", "memory"]


async def make_read_only(ledger: Ledger) -> None:
    """Let every connection from now on be as one to a standby, and the open ones too."""
    async with ledger._connections.single() as connection:
        name = (await connection.execute(text("SELECT current_database()"))).scalar_one()
        await connection.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    await ledger._connections._engine.dispose()


async def test_a_read_only_ledger_is_not_ready_and_still_read(
    app: FastAPI, http: httpx2.AsyncClient, ledger: Ledger
) -> None:
    admin = await bearer(ledger, Role.ADMIN)
    assert (await http.get("/readyz")).status_code == 200
    await make_read_only(ledger)
    with pytest.raises(LedgerUnreachable, match="read-only"):
        await ledger.ready()
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["code"]) == (503, "LedgerUnreachable")
    # The token's use cannot be noted, which is no reason to refuse a read.
    assert (await http.get("/v1/tokens", headers=admin)).status_code == 200
    made = await http.post("/v1/tokens", headers=admin, json={"name": "new", "role": "viewer"})
    assert (made.status_code, made.json()["code"]) == (503, "LedgerUnreachable")


@pytest.mark.parametrize("state", ["58030", "58P01", "25006"])
async def test_a_failing_disk_is_a_ledger_that_does_not_answer(ledger: Ledger, state: str) -> None:
    raise_ = text(f"DO $$ BEGIN RAISE 'could not read block' USING ERRCODE = '{state}'; END $$")
    with pytest.raises(LedgerUnreachable, match="could not read block"):
        async with ledger._connections.single() as connection:
            await connection.execute(raise_)


@pytest.mark.parametrize("cancelled", [True, False])
async def test_who_is_stopped_in_the_check_of_a_connection_learns_that(
    ledger: Ledger, cancelled: bool
) -> None:
    """SQLAlchemy then sets the connection's mode back, which fails: "can't change 'autocommit' now"."""
    connections = Connections(ledger._connections.url, ConnectionLimits(connections=1))
    async with connections.transaction() as connection:
        backend = (await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one()
    os.kill(backend, signal.SIGSTOP)
    try:
        waits = asyncio.create_task(_take(connections, 60 if cancelled else 0.2))
        await asyncio.sleep(0.4)
        waits.cancel()  # the driver asks PostgreSQL to end the query, and is stopped in that, too
        if not cancelled:
            waits.uncancel()
        await asyncio.sleep(0.4)
        if cancelled:
            waits.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else LedgerUnreachable):
            await waits
    finally:
        os.kill(backend, signal.SIGCONT)
        with suppress(FairwayError):
            await connections.close()


async def test_an_error_in_the_cleanup_of_a_cancelled_task_stays_that_error(ledger: Ledger) -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            async with ledger._connections.single() as connection:
                await connection.execute(text("SELECT 1 / 0"))

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(DBAPIError, match="division by zero"):
        await task


async def _take(connections: Connections, seconds: float) -> None:
    async with connections.transaction(seconds):
        pass


async def test_errors_of_statements_have_no_parameters(ledger: Ledger) -> None:
    with pytest.raises(DBAPIError) as caught:
        async with ledger._connections.single() as connection:
            await connection.execute(
                text("SELECT 1 / CAST(:secret AS int) * 0, :other"), {"secret": 0, "other": "hunter2"}
            )
    assert "hunter2" not in str(caught.value)
    assert isinstance(caught.value.orig, psycopg.Error)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@127.0.0.1:1/db",
        "postgresql://u@127.0.0.1:1/db?password=hunter2",
        "postgresql://u@127.0.0.1:1/db?sslpassword=hunter2&connect_timeout=1",
    ],
)
async def test_messages_show_no_password(url: str) -> None:
    connections = Connections(url, ConnectionLimits())
    with pytest.raises(LedgerUnreachable) as caught:
        async with connections.single() as connection:
            await connection.execute(text("SELECT 1"))
    shown = f"{caught.value.message} {caught.value.hint}"
    assert "hunter2" not in shown
    assert "127.0.0.1" in shown


def test_a_bad_port_is_a_bad_url() -> None:
    with pytest.raises(LedgerRefused) as caught:
        Connections("postgresql://u:hunter2@h:port/db", ConnectionLimits())
    assert caught.value.code == "LedgerUrlInvalid"
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r}"


async def test_a_statement_is_planned_for_its_values_however_often_it_runs(ledger: Ledger) -> None:
    """A generic plan does not know whether a name begins one job or a million."""
    query = text("SELECT id FROM job WHERE name >= :first AND name < :last")
    async with ledger._connections.single() as connection:
        for _ in range(20):
            await connection.execute(query, {"first": "a", "last": "b"})
        plans = await connection.execute(
            text("SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement ~ 'name >='")
        )
        ((generic, custom),) = plans.all()
    assert generic == 0 and custom > 5
