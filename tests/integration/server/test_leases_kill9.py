"""Two servers on one ledger: whichever is killed or frozen, the other carries on; the past cannot write."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess

import psycopg
import pytest

from fairway.ledger import Lease, LeaseLost, Ledger
from fairway.model.errors import TemporaryError
from fairway.model.names import ClusterName
from tests.integration.server.lease_server import CLUSTER, serve
from tests.integration.server.lease_writer import LATE
from tests.waiting import Deadline

LEASE_SECONDS = 2.0

# Real processes, forked from one that has everything loaded: loading takes longer than what is measured.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.integration.server.lease_server"])


@dataclass(frozen=True)
class Shown:
    """What the ledger shows of the lease and of the last write."""

    holder_pid: int
    token: int
    writer: str
    writer_token: int
    observed_at: datetime
    code: str
    late_rows: int

    @property
    def by_holder(self) -> bool:
        return self.writer == str(self.holder_pid) and self.writer_token == self.token


class Watch:
    """Looks at the ledger past Fairway, and checks at every look what must always hold."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._newest = 0

    def close(self) -> None:
        self._connection.close()

    def look(self) -> Shown | None:
        row = self._connection.execute(
            "SELECT l.holder, l.token, s.engine_version, s.token, s.observed_at, s.code,"
            " (SELECT count(*) FROM node WHERE name = 'late')"
            " FROM lease l JOIN cluster_state s USING (cluster) WHERE l.loop = 'observe'"
        ).fetchone()
        if row is None or row[4] is None:
            return None
        pid = row[0].split("/")[1] if "/" in row[0] else "0"
        shown = Shown(int(pid), *row[1:])
        assert shown.token >= shown.writer_token >= self._newest, "a token went back"
        assert shown.late_rows == 0, "an old token wrote nodes"
        assert shown.writer != "late", "an old token wrote an observation"
        assert shown.code != "Late", "an old token wrote a failure"
        self._newest = shown.writer_token
        return shown

    async def until(self, wanted: Callable[[Shown], bool], within: float) -> Shown:
        """The first look that is as wanted."""
        deadline = Deadline(within)
        while True:
            shown = self.look()
            if shown is not None and wanted(shown):
                return shown
            assert not deadline.passed, f"not within {within} s: {shown}"
            await asyncio.sleep(0.01)

    def clock(self) -> datetime:
        row = self._connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        moment: datetime = row[0]
        return moment


@pytest.fixture
def watch(database_url: str) -> Iterator[Watch]:
    watching = Watch(database_url)
    yield watching
    watching.close()


class Servers:
    """The server processes of a test; none outlives it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._processes: dict[int, BaseProcess] = {}

    async def start(self) -> None:
        ours, theirs = _FORKS.Pipe()
        process = _FORKS.Process(target=serve, args=(self._url, LEASE_SECONDS, theirs), daemon=True)
        process.start()
        assert process.pid is not None
        self._processes[process.pid] = process
        assert await asyncio.to_thread(ours.poll, 60), "did not start"
        ours.close()
        theirs.close()

    def signal(self, pid: int, number: signal.Signals) -> None:
        assert pid in self._processes  # never a process of somebody else's
        os.kill(pid, number)

    async def gone(self, pid: int) -> None:
        await asyncio.to_thread(self._processes.pop(pid).join, 30)

    async def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            await asyncio.to_thread(process.join, 30)


@asynccontextmanager
async def two_servers(url: str) -> AsyncIterator[Servers]:
    servers = Servers(url)
    try:
        await servers.start()
        await servers.start()
        yield servers
    finally:
        await servers.end()


class OldWriter:
    """Keeps every lease that was ever overtaken and tries to write with them at random moments."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._old: list[Lease] = []
        self.refused = 0

    def remember(self, lease: Lease) -> None:
        self._old.append(lease)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(random.uniform(0, 0.1))
            lease = random.choice(self._old)
            with pytest.raises(LeaseLost):
                async with self._ledger.writing(lease) as tx:
                    if random.random() < 0.5:
                        await tx.observations.write(LATE)
                    else:
                        await tx.observations.write_failure(CLUSTER, TemporaryError("Late", "late", "late"))
            assert await self._ledger.leases.renew(lease) is None
            self.refused += 1


@asynccontextmanager
async def old_writer(ledger: Ledger) -> AsyncIterator[OldWriter]:
    """Its first old lease is one that simply ran out."""
    writer = OldWriter(ledger)
    lease = await ledger.leases.take("observe", CLUSTER, "past", 0.05)
    assert lease is not None
    await asyncio.sleep(0.1)
    writer.remember(lease)
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        assert not task.done(), task.exception()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def lease_at(shown: Shown, ledger_row: tuple[str, int]) -> Lease:
    holder, token = ledger_row
    return Lease("observe", ClusterName(CLUSTER), holder, token, LEASE_SECONDS, datetime.now(UTC))


def lease_row(url: str) -> tuple[str, int]:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT holder, token FROM lease WHERE loop = 'observe'").fetchone()
    assert row is not None
    return row[0], row[1]


@dataclass(frozen=True)
class Figures:
    """What so many kills showed."""

    kills: int
    least_seconds: float
    mean_seconds: float
    most_seconds: float
    refused_writes: int


async def kill_rounds(url: str, ledger: Ledger, watch: Watch, rounds: int) -> Figures:
    """Kill the holder so many times at random moments; the other must carry on each time."""
    took: list[float] = []
    await ledger.revisions.add("fleet", "digest", "test")
    async with old_writer(ledger) as past, two_servers(url) as servers:
        for _ in range(rounds):
            holder = await watch.until(lambda s: s.by_holder, within=10)
            await asyncio.sleep(random.uniform(0, LEASE_SECONDS))
            holder = watch.look() or holder
            row = lease_row(url)
            servers.signal(holder.holder_pid, signal.SIGKILL)
            killed, at = time.monotonic(), watch.clock()
            after = await watch.until(
                lambda s, dead=holder, at=at: (  # type: ignore[misc]
                    s.holder_pid != dead.holder_pid and s.by_holder and s.observed_at > at
                ),
                within=2 * LEASE_SECONDS,
            )
            took.append(time.monotonic() - killed)
            assert after.token == holder.token + 1
            past.remember(lease_at(holder, row))
            await servers.gone(holder.holder_pid)
            await servers.start()
    assert past.refused > 10 * rounds
    return Figures(rounds, min(took), sum(took) / rounds, max(took), past.refused)


async def test_the_other_carries_on(database_url: str, ledger: Ledger, watch: Watch) -> None:
    logging.getLogger(__name__).info("%s", await kill_rounds(database_url, ledger, watch, 5))


@pytest.mark.nightly("twenty kills; CI runs five")
@pytest.mark.timeout(300)
async def test_the_other_carries_on_twenty_times(database_url: str, ledger: Ledger, watch: Watch) -> None:
    logging.getLogger(__name__).info("%s", await kill_rounds(database_url, ledger, watch, 20))


async def test_a_frozen_server_comes_back_to_nothing(database_url: str, ledger: Ledger, watch: Watch) -> None:
    await ledger.revisions.add("fleet", "digest", "test")
    async with two_servers(database_url) as servers:
        for _ in range(3):
            await watch.until(lambda s: s.by_holder, within=10)
            await asyncio.sleep(random.uniform(0, LEASE_SECONDS))
            holder = watch.look()
            assert holder is not None
            servers.signal(holder.holder_pid, signal.SIGSTOP)
            at = watch.clock()
            new = await watch.until(
                lambda s, old=holder, at=at: (  # type: ignore[misc]
                    s.holder_pid != old.holder_pid and s.by_holder and s.observed_at > at
                ),
                within=2 * LEASE_SECONDS,
            )
            servers.signal(holder.holder_pid, signal.SIGCONT)
            awake = time.monotonic()
            while time.monotonic() < awake + LEASE_SECONDS:  # whatever it had under way comes to nothing
                shown = watch.look()
                assert shown is not None
                assert (shown.holder_pid, shown.token, shown.writer) == (
                    new.holder_pid,
                    new.token,
                    new.writer,
                )
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("moment", ["before", "inside"])
async def test_a_write_frozen_past_its_lease_is_refused(
    database_url: str, ledger: Ledger, watch: Watch, moment: str
) -> None:
    frozen = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.server.lease_writer",
        database_url,
        str(LEASE_SECONDS),
        moment,
        stdout=PIPE,
    )
    try:
        assert frozen.stdout is not None
        assert await frozen.stdout.readline() == b"frozen\n"
        since = time.monotonic()
        taken = None
        while taken is None:  # nobody waits for a row that a frozen writer holds locked, and not for ever
            taken = await ledger.leases.take("observe", CLUSTER, "other", 60)
            assert time.monotonic() < since + 2 * LEASE_SECONDS
            await asyncio.sleep(0.02)
        assert taken.token == 2
        os.kill(frozen.pid, signal.SIGCONT)
        said = (await frozen.stdout.readline()).decode().strip()
        assert said in (
            {"LeaseLost"} if moment == "before" else {"LeaseLost", "LedgerBusy", "LedgerUnreachable"}
        )
        assert await ledger.clusters.all() == ()
        assert await ledger.clusters.nodes() == ()
        assert await ledger.leases.renew(taken) is not None
    finally:
        if frozen.returncode is None:
            frozen.kill()
        await frozen.wait()


async def test_a_server_that_ends_gives_its_lease_back(
    database_url: str, ledger: Ledger, watch: Watch
) -> None:
    await ledger.revisions.add("fleet", "digest", "test")
    async with two_servers(database_url) as servers:
        holder = await watch.until(lambda s: s.by_holder, within=10)
        servers.signal(holder.holder_pid, signal.SIGTERM)
        ended = time.monotonic()
        await servers.gone(holder.holder_pid)
        await watch.until(lambda s: s.by_holder and s.holder_pid != holder.holder_pid, within=LEASE_SECONDS)
        assert time.monotonic() - ended < LEASE_SECONDS  # sooner than by waiting for it to run out
