"""Tokens: kept by their hash, ended for good, and never the last admin's."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from fairway.ledger import LastAdmin, Ledger, Token, TokenNameTaken
from fairway.ledger.connection import ConnectionLimits
from fairway.model.access import Role
from tests.waiting import eventually


async def admins(ledger: Ledger, *names: str, expires_at: datetime | None = None) -> None:
    for name in names:
        await ledger.tokens.create(name, Role.ADMIN, name.encode(), "test", expires_at)


async def live(ledger: Ledger) -> set[str]:
    return {token.name for token in await ledger.tokens.all() if token.revoked_at is None}


async def test_a_token_from_first_to_last(ledger: Ledger) -> None:
    assert not await ledger.tokens.any_live()
    made = await ledger.tokens.create("ci", Role.OPERATOR, b"h1", "alice")
    assert await ledger.tokens.any_live()
    assert (made.name, made.role, made.created_by, made.last_used_at) == ("ci", Role.OPERATOR, "alice", None)
    assert await ledger.tokens.by_hash(b"h1") == made
    assert await ledger.tokens.by_hash(b"h2") is None
    with pytest.raises(TokenNameTaken, match="ci"):
        await ledger.tokens.create("ci", Role.VIEWER, b"h2", "alice")

    revoked = await ledger.tokens.revoke("ci")
    assert revoked is not None
    assert revoked.revoked_at is not None
    assert await ledger.tokens.by_hash(b"h1") is None
    assert await ledger.tokens.revoke("ci") == revoked
    assert await ledger.tokens.revoke("nobody") is None
    assert not await ledger.tokens.any_live()
    assert await ledger.tokens.all() == (revoked,)


async def test_a_token_expires_by_the_databases_clock(ledger: Ledger) -> None:
    now = datetime.now(UTC)
    await ledger.tokens.create("old", Role.VIEWER, b"old", "alice", expires_at=now - timedelta(seconds=1))
    assert await ledger.tokens.by_hash(b"old") is None
    assert not await ledger.tokens.any_live()
    await ledger.tokens.create("new", Role.VIEWER, b"new", "alice", expires_at=now + timedelta(hours=1))
    assert await ledger.tokens.by_hash(b"new") is not None


async def test_a_token_is_touched_once_a_minute(ledger: Ledger, database_url: str) -> None:
    made = await ledger.tokens.create("ci", Role.VIEWER, b"h", "alice")
    await ledger.tokens.touch(made)
    (first,) = await ledger.tokens.all()
    assert first.last_used_at is not None
    await ledger.tokens.touch(made)
    assert await ledger.tokens.all() == (first,)
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE api_token SET last_used_at = last_used_at - interval '61 seconds'")
    await ledger.tokens.touch(made)
    (later,) = await ledger.tokens.all()
    assert later.last_used_at is not None
    assert later.last_used_at > first.last_used_at - timedelta(seconds=1)


async def test_the_last_admin_stays(ledger: Ledger) -> None:
    await admins(ledger, "root", "second")
    await admins(ledger, "over", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    await ledger.tokens.create("ci", Role.OPERATOR, b"ci", "test")
    assert await ledger.tokens.revoke("second") is not None
    with pytest.raises(LastAdmin, match="root"):  # those that ran out or were revoked help nobody
        await ledger.tokens.revoke("root")
    assert await ledger.tokens.revoke("second") is not None
    assert await ledger.tokens.revoke("ci") is not None
    assert await ledger.tokens.by_hash(b"root") is not None


async def test_an_admin_that_soon_ends_is_no_other_admin(ledger: Ledger) -> None:
    await admins(ledger, "boss")
    await admins(ledger, "guest", expires_at=datetime.now(UTC) + timedelta(seconds=60))
    with pytest.raises(LastAdmin, match="boss"):
        await ledger.tokens.revoke("boss")
    await admins(ledger, "month", expires_at=datetime.now(UTC) + timedelta(days=30))
    assert await ledger.tokens.revoke("boss") is not None
    assert await ledger.tokens.revoke("guest") is not None
    with pytest.raises(LastAdmin, match="month"):
        await ledger.tokens.revoke("month")


async def test_two_admins_who_revoke_each_other_at_once(database_url: str) -> None:
    """Both have to see two admins at first: a lock holds them back until both have asked."""
    patient = ConnectionLimits(lock_seconds=120, statement_seconds=120, call_seconds=120)
    ledger = await Ledger.connect(database_url, patient)
    try:
        await admins(ledger, "ada", "bob")
        with psycopg.connect(database_url) as gate, psycopg.connect(database_url, autocommit=True) as watch:
            gate.execute("SELECT FROM api_token FOR UPDATE")
            asked = [asyncio.create_task(ledger.tokens.revoke(name)) for name in ("ada", "bob")]

            def both_wait() -> bool:
                waiting = watch.execute(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
                ).fetchone()
                return waiting == (2,)

            await eventually(both_wait, within=60, what="both have asked")
            gate.rollback()
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert sorted(type(one).__name__ for one in done) == ["LastAdmin", "Token"], done
        (gone,) = [one for one in done if isinstance(one, Token)]
        assert await live(ledger) == {"ada", "bob"} - {gone.name}
    finally:
        await ledger.close()
