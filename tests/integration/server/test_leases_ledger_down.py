"""The ledger goes away under a running loop: every call ends in time, and work goes on when it is back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fairway.control import Runner
from fairway.ledger import Ledger, LedgerUnreachable, embedded
from fairway.ledger.connection import ConnectionLimits
from fairway.model.observation import Observation
from fairway.services.fleets import Fleets
from tests.integration.server.lease_server import FLEET, Counting, settings


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="fairway-test-"))
    made.chmod(0o711)
    yield made / "postgres"
    shutil.rmtree(made, ignore_errors=True)


async def until(true: Callable[[], bool], within: float = 30) -> None:
    async with asyncio.timeout(within):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Looks(Counting):
    """Counts the looks of all engines of a test."""

    count = 0

    async def observe(self) -> Observation:
        Looks.count += 1
        return await super().observe()


async def test_a_restart_of_postgresql_is_survived(folder: Path) -> None:
    server = await asyncio.to_thread(embedded.start, folder)
    ledger = await Ledger.connect(server.url)
    await ledger.migrate()
    await ledger.revisions.add("fleet", "digest", "test")
    fleets = Fleets(ledger, lambda revision: FLEET)
    runner = Runner(ledger, Looks, settings(1), CollectorRegistry(), fleets)
    task = asyncio.create_task(runner.run())
    try:
        await until(lambda: Looks.count >= 3)
        await asyncio.to_thread(server.stop)
        with pytest.raises(LedgerUnreachable) as caught:
            await ledger.ready()
        assert "pg_isready" in caught.value.hint
        await asyncio.sleep(1.5)  # past the lease
        server = await asyncio.to_thread(embedded.start, folder)
        before = (await ledger.clusters.all())[0].observed_at
        assert before is not None
        async with asyncio.timeout(30):
            while (await ledger.clusters.all())[0].observed_at == before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await ledger.close()
        await asyncio.to_thread(server.stop)


async def test_a_frozen_postgresql_is_not_waited_for(folder: Path) -> None:
    server = await asyncio.to_thread(embedded.start, folder)
    ledger = await Ledger.connect(server.url, ConnectionLimits(call_seconds=1))
    await ledger.migrate()
    pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    processes = [pid, *children_of(pid)]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    started = time.monotonic()
    try:
        with pytest.raises(LedgerUnreachable, match="no answer within 1 s"):
            await ledger.clusters.all()
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
    # The driver asks the server to cancel, and gives it five seconds twice.
    assert time.monotonic() - started < 1 + 12
    assert await ledger.clusters.all() == ()
    await ledger.close()
    await asyncio.to_thread(server.stop)
