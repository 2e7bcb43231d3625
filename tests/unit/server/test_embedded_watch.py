"""An embedded PostgreSQL that ends is restarted, a few times; the ledger says so meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.ledger import Ledger, LedgerUnreachable
from fairway.ledger.connection import ConnectionLimits, Connections
from fairway.server.embedded import MAX_RESTARTS, WINDOW_SECONDS, EmbeddedWatch


class Postgres:
    """One that ends when the test says so."""

    def __init__(self) -> None:
        self.running = True
        self.broken = False
        self.restarts = 0
        self.log_file = Path("log.txt")

    def is_running(self) -> bool:
        return self.running

    def restart(self) -> None:
        self.restarts += 1
        if self.broken:
            raise LedgerUnreachable("EmbeddedFailed", "it did not start", "check its log")
        self.running = True


class Watched:
    """The watch over a PostgreSQL, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.postgres = Postgres()
        self.ledger = Ledger(Connections("postgresql://x@/x", ConnectionLimits()))
        self.watch = EmbeddedWatch(self.postgres, self.ledger, lambda: self.now)

    async def end(self) -> None:
        self.postgres.running = False
        await self.watch.check()

    @property
    def code(self) -> str | None:
        return None if self.ledger.outage is None else self.ledger.outage.code


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_one_that_ended_is_restarted(watched: Watched) -> None:
    await watched.watch.check()
    assert watched.postgres.restarts == 0
    await watched.end()
    assert (watched.postgres.restarts, watched.postgres.running, watched.code) == (1, True, None)


async def test_one_that_does_not_start_is_tried_again_and_the_ledger_is_not_ready(watched: Watched) -> None:
    watched.postgres.broken = True
    await watched.end()
    with pytest.raises(LedgerUnreachable) as said:
        await watched.ledger.ready()
    assert said.value.code == "EmbeddedRestarting"
    assert "restart 1 of 5" in said.value.message
    watched.postgres.broken = False
    await watched.watch.check()
    assert (watched.postgres.restarts, watched.code) == (2, None)


async def test_one_that_ends_again_and_again_is_left_alone(watched: Watched) -> None:
    for _ in range(MAX_RESTARTS + 3):
        await watched.end()
    assert (watched.postgres.restarts, watched.code) == (MAX_RESTARTS, "EmbeddedEndsAgain")
    watched.postgres.running = True  # an administrator started it
    await watched.watch.check()
    assert watched.code is None


async def test_restarts_of_long_ago_do_not_count(watched: Watched) -> None:
    for _ in range(2 * MAX_RESTARTS):
        await watched.end()
        watched.now += WINDOW_SECONDS / 2
    assert (watched.postgres.restarts, watched.postgres.running) == (2 * MAX_RESTARTS, True)
