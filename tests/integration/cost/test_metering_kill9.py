"""Not a second lost or doubled: the meter is killed -9, its ledger crashes, and an hour goes by without it.

Small in every run, a hundred kills nightly; FAIRWAY_METER_KILLS chooses another size.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from fairway.control.loops.meter import GRACE_SECONDS, MeterCluster
from fairway.control.metrics import UsageMetrics
from fairway.cost.calendar import Calendar
from fairway.ledger import Ledger, embedded
from fairway.services.fleets import Fleets, LastApplied
from tests.integration.cost.meter_process import FLEET, ZONE, Clock, serve
from tests.integration.server.lease_server import CLUSTER
from tests.metered import Hand, read
from tests.unit.ledger.usage.test_metering import befall
from tests.waiting import Deadline

SPEED = 600.0
"""An hour of the clock in six seconds."""
LEASE_SECONDS = 2.0
JOBS = 40
"""That something may still befall."""
AGES = (0, 10, 3000, 4 * 3600)
CALENDAR = Calendar(ZoneInfo(ZONE))
# A day before clocks go back in New York.
BEGAN = datetime(2026, 10, 31, 12, tzinfo=UTC).timestamp()

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.integration.cost.meter_process"])


class Server:
    """A PostgreSQL of this test's own, that can be made to crash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "postgres"
        self._server = embedded.start(self.folder)
        self.url = self._server.url

    def crash(self) -> None:
        """At once, whatever is under way: what was not committed is gone, what was is recovered."""
        (pid_file,) = self.folder.rglob("postmaster.pid")
        pid = int(pid_file.read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)
        deadline = time.monotonic() + 30
        while Path("/proc", str(pid)).exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def start(self) -> None:
        self._server = embedded.start(self.folder)

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="fairway-test-"))
    folder.chmod(0o711)  # as root, the server runs as somebody else and must get in
    made = Server(folder)
    yield made
    made.stop()
    shutil.rmtree(folder, ignore_errors=True)


class Meter:
    """The process that meters; at most one at a time, and none outlives the test."""

    def __init__(self, url: str, clock: Clock, faulty: bool) -> None:
        self._url, self._clock, self._faulty = url, clock, faulty
        self._process: BaseProcess | None = None
        self._begins: Connection | None = None
        self._inside: Any = None

    def start(self) -> None:
        self._begins, theirs = _FORKS.Pipe()
        self._inside = _FORKS.RawValue("i", 0)
        self._process = _FORKS.Process(
            target=serve,
            args=(self._url, self._clock, LEASE_SECONDS, theirs, self._inside, self._faulty),
            daemon=True,
        )
        self._process.start()
        theirs.close()

    def at_work(self, transactions: int) -> bool:
        """Wait until it has begun so many, or has no more to do for a while."""
        assert self._begins is not None
        for number in range(transactions):
            if not self._begins.poll(60 if number == 0 else 3):
                return number > 0
            self._begins.recv()
        return True

    def kill(self) -> bool:
        """Whether it was in the middle of a transaction."""
        process, self._process = self._process, None
        if process is None:
            return False
        process.kill()
        process.join(30)
        return bool(self._inside.value)


class Writer:
    """What a mirror does all the while: attempts begin, change, end, vanish, change hands."""

    def __init__(self, url: str, clock: Clock, dice: random.Random) -> None:
        self._url, self._clock, self._dice = url, clock, dice
        self.changes = 0
        self.gaps = 0

    async def run(self) -> None:
        while True:
            try:
                with psycopg.connect(self._url, autocommit=True) as db:
                    await self._write(db)
            except psycopg.OperationalError:  # the server is away
                self.gaps += 1
                await asyncio.sleep(0.2)

    async def _write(self, db: psycopg.Connection[Any]) -> None:
        hand = Hand(db)
        classes = [
            hand.class_("a"),
            hand.class_("b"),
            hand.class_("a", "mig", "1g.10gb"),
            hand.class_(pool=""),
        ]
        jobs: deque[int] = deque(maxlen=JOBS)  # older ones are left alone: nobody makes up for what is lost
        while True:
            with db.transaction():
                jobs += [hand.job(self._dice.choice(classes)) for _ in range(2)]
                for _ in range(5):
                    befall(hand, self._dice, self._dice.choice(jobs), classes, int(self._clock()), AGES)
            self.changes += 5
            await asyncio.sleep(self._dice.uniform(0.05, 0.2))  # the meter keeps up, and has to correct


@contextmanager
def looking(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as db:
        yield db


def whole(url: str) -> list[str]:
    """At every moment rows and sums are exactly what is noted as metered."""
    with looking(url) as db:
        books = read(db, 0)
    return replace(books, truth=books.metered, queued=0).faults(CALENDAR)


async def settle(url: str, clock: Clock) -> tuple[list[str], Counter[str], int]:
    """Meter the rest, by a clock that stands still: what is wrong then, what was there, and rows."""
    now = clock()
    ledger = await Ledger.connect(url)
    try:
        applied = LastApplied(CLUSTER, ledger, Fleets(ledger, lambda revision: FLEET))
        meter = MeterCluster(CLUSTER, ledger, applied, UsageMetrics(CollectorRegistry()), clock=lambda: now)
        deadline = Deadline(30)
        while (lease := await ledger.leases.take("meter", CLUSTER, "settling", 30)) is None:
            assert not deadline.passed
            await asyncio.sleep(0.1)
        await meter(lease)
    finally:
        await ledger.close()
    with looking(url) as db:
        books = read(db, CALENDAR.hour_start(int(now) - GRACE_SECONDS))
        rows = db.execute(
            "SELECT count(*), count(*) FILTER (WHERE devices < 0), sum(devices::bigint * seconds),"
            " (SELECT sum(device_seconds) FROM usage_hour), (SELECT sum(device_seconds) FROM usage_day)"
            " FROM usage"
        ).fetchone()
    assert rows is not None
    truth = sum(h.devices * (h.end - h.start) for h in books.truth.values())
    told = Counter(rows=rows[0], taken_back=rows[1], attempts=len(books.truth), device_seconds=truth)
    if not books.faults(CALENDAR):
        assert rows[2] == rows[3] == rows[4] == truth
    return books.faults(CALENDAR), told, len(books.hours)


async def torment(
    server: Server, kills: int, *, crashes: int = 1, faulty: bool = False
) -> tuple[list[str], str]:
    dice = random.Random(kills)
    clock = Clock(BEGAN, time.time(), SPEED)
    ledger = await Ledger.connect(server.url)
    await ledger.migrate()
    await ledger.revisions.add("fleet", "digest", "test")
    await ledger.close()
    writer, meter = Writer(server.url, clock, dice), Meter(server.url, clock, faulty)
    writing = asyncio.create_task(writer.run())
    inside = 0
    crash_at = {kills * (n + 1) // (crashes + 1) for n in range(crashes)}
    try:
        for number in range(kills):
            meter.start()
            assert await asyncio.to_thread(meter.at_work, dice.randrange(1, 12)), "did not begin"
            await asyncio.sleep(dice.uniform(0, 0.5 if faulty else 0.08))
            if number in crash_at:
                await asyncio.to_thread(server.crash)
            inside += meter.kill()
            if number in crash_at:
                await asyncio.to_thread(server.start)
            assert not writing.done(), writing.exception()
            assert await asyncio.to_thread(whole, server.url) == []
        # An hour and more without Fairway: jobs begin, run and end.
        await asyncio.sleep(1.2 * 3600 / SPEED)
    finally:
        meter.kill()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    with looking(server.url) as db:
        by_killed = db.execute("SELECT count(*) FROM usage").fetchone()
    faults, told, hours = await settle(server.url, clock)
    return faults, (
        f"{kills} kills ({inside} within a transaction), {crashes} crashes of PostgreSQL,"
        f" {writer.changes} changes; {by_killed} rows by those killed;"
        f" {dict(told)} in {hours} hours and classes; {(clock() - BEGAN) / 3600:.0f} hours went by"
    )


@pytest.mark.timeout(300)
async def test_a_few_kills_lose_and_double_nothing(server: Server) -> None:
    faults, told = await torment(server, int(os.environ.get("FAIRWAY_METER_KILLS", "8")))
    logging.getLogger(__name__).info(told)
    assert faults == [], told


@pytest.mark.nightly("a hundred kills; CI runs eight")
@pytest.mark.timeout(1800)
async def test_a_hundred_kills_lose_and_double_nothing(server: Server) -> None:
    faults, told = await torment(server, 100, crashes=3)
    logging.getLogger(__name__).info(told)
    assert faults == [], told


@pytest.mark.timeout(300)
async def test_a_meter_that_commits_in_two_is_found(server: Server) -> None:
    """The planted fault: what is killed in between is lost, and the comparison sees it."""
    faults, told = await torment(server, 8, crashes=0, faulty=True)
    assert faults != [], told
