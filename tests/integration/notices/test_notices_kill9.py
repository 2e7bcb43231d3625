"""Each event arrives once by its key: the notify loop is killed -9 while receivers fail in every way.

A few kills in every run, a hundred nightly; FAIRWAY_NOTICE_KILLS chooses another number.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import random
import re
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import psycopg
import pytest

from fairway.ledger import Ledger
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind, NoticeRule, NoticeRules, SendWhen
from tests.integration.notices.notify_process import MEMBER, TEAM, Site, serve
from tests.integration.notices.receivers import Inbox, mail_server, webhooks
from tests.waiting import Deadline

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.integration.notices.notify_process"])

KINDS = (NoticeKind.BUDGET, NoticeKind.HEALTH, NoticeKind.JOB_END, NoticeKind.ANOMALY)
EXPECTED = {
    NoticeKind.BUDGET: {"/team", "/slack", "team@example.org", "alice@example.org"},
    NoticeKind.ANOMALY: {"/team", "/slack", "team@example.org"},
    NoticeKind.HEALTH: {"/team", "/slack", "team@example.org", "/operators"},
    NoticeKind.JOB_END: {"alice@example.org"},
}


def event(number: int) -> Notice:
    kind = KINDS[number % len(KINDS)]
    return Notice(
        kind,
        f"{kind}/{number}",
        f"event {number:06}",
        f"What happened in event {number:06}.",
        TEAM,
        MEMBER if kind is NoticeKind.JOB_END else None,
        operators=kind is NoticeKind.HEALTH,
    )


@dataclass
class Events:
    """Events that are stored all the while, each of them twice, as two servers would."""

    ledger: Ledger
    dice: random.Random
    count: int = 0

    async def run(self) -> None:
        while True:
            new = [event(self.count + n) for n in range(self.dice.randrange(1, 3))]
            await asyncio.gather(self.ledger.notices.add(new), self.ledger.notices.add(new))
            self.count += len(new)
            await asyncio.sleep(self.dice.uniform(0.2, 0.8))


async def pass_hours(url: str, dice: random.Random) -> None:
    """Let the times of digests come, every now and then."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        while True:
            await db.execute("UPDATE notice_delivery SET due_at = now() WHERE due_at > now()")
            await asyncio.sleep(dice.uniform(0.2, 0.6))


@dataclass
class Outcome:
    """What arrived, compared with what was to arrive."""

    faults: list[str]
    events: int
    messages: int
    repeated: Counter[str]
    summary: str


def compare(inbox: Inbox, events: int) -> tuple[list[str], int, Counter[str]]:
    """Find events that did not arrive by a channel, and those that arrived by two keys."""
    arrived: Counter[tuple[str, str]] = Counter()
    faults: list[str] = []
    repeated: Counter[str] = Counter()
    messages = inbox.by_key()
    for (channel, key), bodies in messages.items():
        repeated[channel] += len(bodies) - 1
        if any(body != bodies[0] for body in bodies):
            faults.append(f"{channel} {key}: two contents by one key")
        arrived.update((channel, number) for number in re.findall(r"in event (\d{6})", str(bodies[0])))
    for number in range(events):
        for channel in EXPECTED[event(number).kind]:
            times = arrived.pop((channel, f"{number:06}"), 0)
            if times != 1:
                faults.append(f"event {number} arrived {times} times by {channel}")
    faults += [f"{channel} has event {number}, which is not for it" for channel, number in arrived]
    return faults, len(messages), repeated


async def torment(url: str, folder: Path, kills: int, planted: str | None = None) -> Outcome:
    dice = random.Random(kills)
    inbox = Inbox(random.Random(kills + 1))
    ledger = await Ledger.connect(url)
    await ledger.revisions.add("fleet", "digest", "test")
    chosen = (NoticeRule(NoticeKind.JOB_END), NoticeRule(NoticeKind.BUDGET, SendWhen.HOURLY))
    await ledger.notice_preferences.put(MEMBER, NoticeRules(chosen))
    slack = folder / "slack"
    in_flight = 0
    process: BaseProcess | None = None
    async with AsyncExitStack() as stack:
        hooks_url = stack.enter_context(webhooks(inbox))
        smtp_url = await stack.enter_async_context(mail_server(inbox))
        slack.write_text(f"{hooks_url}/slack")
        site = Site(url, hooks_url, smtp_url, str(slack), planted)
        events = Events(ledger, dice)
        tasks = [asyncio.create_task(events.run()), asyncio.create_task(pass_hours(url, dice))]
        try:
            for _ in range(kills):
                process = _FORKS.Process(target=serve, args=(site,), daemon=True)
                process.start()
                wanted = len(inbox.accepted) + dice.randrange(1, 12)
                deadline = Deadline(60)
                while len(inbox.accepted) < wanted:
                    assert not deadline.passed, "nothing arrives"
                    await asyncio.sleep(0.005)
                await asyncio.sleep(dice.uniform(0, 0.05))
                in_flight += inbox.busy > 0
                process.kill()
                process.join(30)
                assert not any(task.done() for task in tasks)
            tasks[0].cancel()
            await asyncio.gather(tasks[0], return_exceptions=True)
            stored = len(await ledger.notices.known([event(n).key for n in range(events.count + 3)]))
            process = _FORKS.Process(target=serve, args=(site,), daemon=True)
            process.start()
            deadline = Deadline(120)
            while (await ledger.notices.pending()).unrouted or await undelivered(url):
                assert not deadline.passed, "not everything was delivered"
                await asyncio.sleep(0.1)
        finally:
            if process is not None:
                process.kill()
                process.join(30)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await ledger.close()
    faults, messages, repeated = compare(inbox, stored)
    deliveries = sum(len(EXPECTED[event(n).kind]) for n in range(stored))
    summary = (
        f"{kills} kills ({in_flight} while a receiver answered), {stored} events, {deliveries} deliveries in"
        f" {messages} messages; receivers failed {dict(inbox.failed)}; accepted again with the same key:"
        f" {dict(repeated)}"
    )
    return Outcome(faults, stored, messages, repeated, summary)


async def undelivered(url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        row = await (
            await db.execute("SELECT count(*) FROM notice_delivery WHERE delivered_at IS NULL")
        ).fetchone()
    assert row is not None
    return bool(row[0])


@pytest.mark.timeout(300)
async def test_each_event_arrives_once_by_its_key_under_a_few_kills(
    database_url: str, tmp_path: Path
) -> None:
    kills = int(os.environ.get("FAIRWAY_NOTICE_KILLS", "7"))
    outcome = await torment(database_url, tmp_path, kills)
    logging.getLogger(__name__).info(outcome.summary)
    assert outcome.faults == [], outcome.summary
    assert outcome.events > kills


@pytest.mark.nightly("a hundred kills; CI runs seven")
@pytest.mark.timeout(1800)
async def test_each_event_arrives_once_by_its_key_under_a_hundred_kills(
    database_url: str, tmp_path: Path
) -> None:
    outcome = await torment(database_url, tmp_path, 100)
    logging.getLogger(__name__).info(outcome.summary)
    assert outcome.faults == [], outcome.summary


@pytest.mark.parametrize("planted", ["recorded-first", "changing-key"])
@pytest.mark.timeout(300)
async def test_a_loop_that_loses_or_doubles_is_found(database_url: str, tmp_path: Path, planted: str) -> None:
    outcome = await torment(database_url, tmp_path, 3, planted)
    assert outcome.faults != [], outcome.summary
