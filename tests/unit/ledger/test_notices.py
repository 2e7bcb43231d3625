"""A notice is stored once for each key, and each channel that has it is recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from fairway.ledger import FLEET, Lease, Ledger
from fairway.ledger.notices import Delivery
from fairway.model.job import JobId
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice

IDLE = Notice(
    "idle/17/1",
    "job 17 is idle",
    "It has not used its GPUs for 2 h.",
    TeamName("research"),
    UserName("alice"),
    JobId(17),
    operators=True,
)


@pytest.fixture
async def lease(ledger: Ledger) -> AsyncIterator[Lease]:
    taken = await ledger.leases.take("notify", FLEET, "test", 60)
    assert taken is not None
    yield taken


async def test_the_same_event_twice_is_one_notice(ledger: Ledger, lease: Lease) -> None:
    async with ledger.writing(lease) as tx:
        await tx.notices.add([IDLE])
        await tx.notices.add([IDLE, Notice("other", "o", "o")])
        await tx.notices.add([])
    assert await ledger.notices.add([IDLE, Notice("third", "a\nb\0", "t" * 9000)]) == ["third"]
    due = await ledger.notices.due(10)
    assert [d.notice.key for d in due] == ["idle/17/1", "other", "third"]
    assert due[0].notice == IDLE
    assert due[2].notice.subject == "a b"
    assert len(due[2].notice.text) == 8000
    assert await ledger.notices.known(["other", "fourth"]) == {"other"}


async def test_a_notice_of_a_transaction_that_failed_is_not_stored(ledger: Ledger, lease: Lease) -> None:
    with pytest.raises(RuntimeError):
        async with ledger.writing(lease) as tx:
            await tx.notices.add([IDLE])
            raise RuntimeError
    assert await ledger.notices.due(10) == []


async def test_attempts_are_counted_until_nothing_is_due(ledger: Ledger, lease: Lease) -> None:
    await ledger.notices.add([IDLE])
    (due,) = await ledger.notices.due(10)
    async with ledger.writing(lease) as tx:
        await tx.notices.record([Delivery(due.id, "/mail"), Delivery(due.id, "/slack", "refused")], {})
    (again,) = await ledger.notices.due(10)
    assert (again.tried, again.delivered) == ({"/mail": 1, "/slack": 1}, frozenset({"/mail"}))
    async with ledger.writing(lease) as tx:
        await tx.notices.record([Delivery(due.id, "/slack")], {due.id: 3600.0})
    assert await ledger.notices.due(10) == []
    async with ledger.writing(lease) as tx:
        await tx.notices.record([], {due.id: 0.0})
    (last,) = await ledger.notices.due(10)
    assert (last.tried, last.delivered) == ({"/mail": 1, "/slack": 2}, frozenset({"/mail", "/slack"}))
    async with ledger.writing(lease) as tx:
        await tx.notices.record([], {due.id: None})
    assert await ledger.notices.due(10) == []


async def test_old_notices_are_forgotten(ledger: Ledger, lease: Lease, database_url: str) -> None:
    await ledger.notices.add([IDLE, Notice("new", "n", "n")])
    due = await ledger.notices.due(10)
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE notice SET created_at = now() - interval '91 days' WHERE key = 'idle/17/1'")
        async with ledger.writing(lease) as tx:
            await tx.notices.record([Delivery(d.id, "/mail") for d in due], {})
            await tx.notices.forget()
        assert db.execute("SELECT key FROM notice").fetchall() == [("new",)]
        assert db.execute("SELECT notice FROM notice_delivery").fetchall() == [(due[1].id,)]
