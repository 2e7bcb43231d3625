"""A notice is stored once for each key, and each channel that has it is recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta

import psycopg
import pytest

from fairway.ledger import FLEET, Lease, Ledger, notices
from fairway.ledger.notices import PlannedDelivery, StoredNotice
from fairway.model.job import JobId
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind, NoticeRule, NoticeRules, QuietHours, SendWhen
from fairway.policy.notice_times import SendTime

IDLE = Notice(
    NoticeKind.IDLE,
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
        await tx.notices.add([IDLE, Notice(NoticeKind.ALERT, "other", "o", "o")])
        await tx.notices.add([])
    assert await ledger.notices.add(
        [IDLE, replace(IDLE, key="third", subject="a\nb\0", text="t" * 9000)]
    ) == ["third"]
    due = await ledger.notices.unrouted(10)
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
    assert await ledger.notices.unrouted(10) == []


def planned(notice: StoredNotice, channel: str, at: datetime, *, alone: bool = True) -> PlannedDelivery:
    return PlannedDelivery(notice.id, channel, SendTime(at, alone=alone))


async def route(ledger: Ledger, lease: Lease, *deliveries: PlannedDelivery) -> None:
    stored = await ledger.notices.unrouted(10)
    async with ledger.writing(lease) as tx:
        await tx.notices.route([one.id for one in stored], deliveries)


async def test_each_channel_has_its_own_time_and_attempts(ledger: Ledger, lease: Lease) -> None:
    await ledger.notices.add([IDLE])
    (stored,) = await ledger.notices.unrouted(10)
    now = (await ledger.notices.pending()).now
    later = planned(stored, "c/mail", now + timedelta(hours=1))
    await route(ledger, lease, planned(stored, "a/mail", now), planned(stored, "b/slack", now), later)
    assert await ledger.notices.unrouted(10) == []
    first, second = await ledger.notices.due(10)
    assert [one.channel for one in (first, second)] == ["a/mail", "b/slack"]
    assert first.notices == (stored,)
    async with ledger.writing(lease) as tx:
        await tx.notices.record(first, None, None)
        await tx.notices.record(second, "refused", 0.0)
    (again,) = await ledger.notices.due(10)
    assert (again.channel, again.attempts) == ("b/slack", 1)
    async with ledger.writing(lease) as tx:
        await tx.notices.record(again, "refused", 3600.0)
    assert not (await ledger.notices.pending()).due
    async with ledger.writing(lease) as tx:  # a message that was sent twice is recorded once
        await tx.notices.record(first, "too late", 0.0)
    assert await ledger.notices.due(10) == []


async def test_what_a_digest_contains_is_stored_before_it_is_sent(
    ledger: Ledger, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_MAX_DIGEST", 2)
    await ledger.notices.add([replace(IDLE, key=key) for key in "abc"])
    stored = await ledger.notices.unrouted(10)
    now = (await ledger.notices.pending()).now
    await route(ledger, lease, *(planned(one, "t/mail", now, alone=False) for one in stored))
    assert await ledger.notices.due(10) == []
    assert (await ledger.notices.pending()).due
    async with ledger.writing(lease) as tx:
        await tx.notices.assemble()

    async def sent() -> list[str]:
        due = await ledger.notices.due(10)
        return ["".join(one.notice.key for one in message.notices) for message in due]

    assert await sent() == ["ab", "c"]
    await ledger.notices.add([replace(IDLE, key="d")])
    (late,) = await ledger.notices.unrouted(10)
    await route(ledger, lease, planned(late, "t/mail", now, alone=False))
    async with ledger.writing(lease) as tx:
        await tx.notices.assemble()
    assert await sent() == ["ab", "c", "d"]  # a digest that may have been sent stays as it was


async def test_open_notices_are_those_without_an_end(ledger: Ledger) -> None:
    keys = ("x/1", "x/2", "x/2/end", "y/1")
    await ledger.notices.add([replace(IDLE, key=key) for key in keys])
    assert [one.notice.key for one in await ledger.notices.open("x/", "/end", 10)] == ["x/1"]


async def test_users_choose_rules(ledger: Ledger) -> None:
    store = ledger.notice_preferences
    assert await store.get("alice") == NoticeRules()
    mine = NoticeRules(
        (
            NoticeRule(NoticeKind.BUDGET, SendWhen.DAILY),
            NoticeRule(NoticeKind.JOB_END, SendWhen.NEVER),
        ),
        QuietHours(1200, 420),
        9,
    )
    await store.put("bob", NoticeRules((NoticeRule(NoticeKind.JOB_END, SendWhen.HOURLY),)))
    await store.put("alice", NoticeRules())
    await store.put("alice", mine)
    assert await store.get("alice") == mine
    assert set(await store.all()) == {"alice", "bob"}
    assert await store.want(NoticeKind.JOB_END) == {"bob"}
    assert await store.want(NoticeKind.BUDGET) == {"alice"}


async def test_old_notices_are_forgotten(ledger: Ledger, lease: Lease, database_url: str) -> None:
    await ledger.notices.add([IDLE, replace(IDLE, key="new")])
    old, new = await ledger.notices.unrouted(10)
    now = (await ledger.notices.pending()).now
    await route(ledger, lease, planned(old, "t/mail", now), planned(new, "t/mail", now))
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE notice SET created_at = now() - interval '91 days' WHERE key = 'idle/17/1'")
        async with ledger.writing(lease) as tx:
            await tx.notices.forget()
        assert db.execute("SELECT key FROM notice").fetchall() == [("new",)]
        assert db.execute("SELECT notice FROM notice_delivery").fetchall() == [(new.id,)]
