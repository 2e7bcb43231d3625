"""The pattern of every loop, on a real ledger: leases, pace, failures, a clean end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from fairway.control import LeasedLoop, LoopMetrics, Pace
from fairway.control.metrics import MAX_CODES
from fairway.ledger import Lease, LeaseLost, Ledger
from fairway.model.errors import PermanentError, TemporaryError
from tests.unit.ledger.samples import pass_time

# A lease that no busy machine outlives: time goes by where a test says so, and waits are cut short.
QUICK = Pace(
    lease_seconds=60,
    interval_seconds=0.02,
    step_seconds=600,
    max_backoff_seconds=0.05,
    permanent_seconds=0.1,
)
TEMPORARY = TemporaryError("Unreachable", "no answer", "look")
PERMANENT = PermanentError("Refused", "bad token", "renew it")
RENEWS = QUICK.lease_seconds / 3
MAX_WAIT = 0.1


class Bench:
    """A loop under test and what it did."""

    def __init__(self, ledger: Ledger, step: Callable[[Lease], Awaitable[None]], pace: Pace = QUICK) -> None:
        self.registry = CollectorRegistry()
        self.slept: list[float] = []
        self.closed = 0
        self._loop = LeasedLoop(
            "observe",
            "hpc",
            step,
            ledger,
            holder="me",
            pace=pace,
            metrics=LoopMetrics(self.registry),
            cleanup=self._close,
            sleep=self._sleep,
            jitter=lambda: 0.5,
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(min(seconds, MAX_WAIT))

    async def _close(self) -> None:
        self.closed += 1

    async def renewed(self) -> None:
        """Return when the lease was renewed at least once from now on."""
        before = self.slept.count(RENEWS)
        await until(lambda: self.slept.count(RENEWS) >= before + 2)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._loop.run())
        try:
            yield
            assert not task.done(), "a loop never ends by itself"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"loop": "observe", "cluster": "hpc"} | labels)

    def errors(self, code: str) -> float | None:
        return self.metric("fairway_loop_errors_total", code=code)


async def until(true: Callable[[], bool], within: float = 60) -> None:
    async with asyncio.timeout(within):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_it_works_again_and_again_and_gives_the_lease_back(ledger: Ledger) -> None:
    done: list[Lease] = []

    async def step(lease: Lease) -> None:
        done.append(lease)

    bench = Bench(ledger, step)
    async with bench.running():
        await until(lambda: len(done) >= 3)
        assert await ledger.leases.take("observe", "hpc", "other", 1) is None
        assert bench.metric("fairway_loop_lease_held") == 1
        age = bench.metric("fairway_loop_last_success_age_seconds")
        assert age is not None
        assert 0 <= age < 60
        count = bench.metric("fairway_loop_duration_seconds_count")
        assert count is not None
        assert count >= 2
    assert {lease.token for lease in done} == {1}
    assert bench.closed == 1
    assert (await ledger.leases.take("observe", "hpc", "other", 1)) is not None
    assert list(bench.registry.collect()) == [] or all(not m.samples for m in bench.registry.collect())


async def test_it_waits_for_the_lease(ledger: Ledger) -> None:
    done: list[Lease] = []

    async def step(lease: Lease) -> None:
        done.append(lease)

    held = await ledger.leases.take("observe", "hpc", "other", 60)
    assert held is not None
    bench = Bench(ledger, step)
    async with bench.running():
        await until(lambda: len(bench.slept) >= 2)
        assert done == []
        assert bench.metric("fairway_loop_lease_held") == 0
        assert bench.metric("fairway_loop_last_success_age_seconds") is None  # the holder's to show
        assert set(bench.slept) == {QUICK.lease_seconds / 4}
        await ledger.leases.release(held)
        await until(lambda: bool(done))
    assert done[0].token == 2


async def test_a_slow_step_keeps_its_lease(ledger: Ledger, database_url: str) -> None:
    held_by_other: list[Lease | None] = []

    async def step(lease: Lease) -> None:
        for _ in range(4):  # longer than the lease in all, never as long between two renewals
            pass_time(database_url, 25)
            await bench.renewed()
            held_by_other.append(await ledger.leases.take("observe", "hpc", "other", 1))

    bench = Bench(ledger, step)
    async with bench.running():
        await until(lambda: len(held_by_other) >= 4)
    assert set(held_by_other) == {None}


async def test_a_stuck_step_is_ended(ledger: Ledger) -> None:
    async def step(lease: Lease) -> None:
        await asyncio.sleep(3600)

    bench = Bench(ledger, step, Pace(60, 0.02, step_seconds=0.05, max_backoff_seconds=0.05))
    async with bench.running():
        await until(lambda: (bench.errors("StepTimedOut") or 0) >= 2)


@pytest.mark.parametrize(
    ("error", "code", "waits"),
    [
        (TEMPORARY, "Unreachable", [0.015, 0.03, 0.0375, 0.0375]),
        (PERMANENT, "Refused", [0.1, 0.1, 0.1, 0.1]),
        (RuntimeError("a defect"), "Unexpected", [0.015, 0.03, 0.0375, 0.0375]),
        (TimeoutError("of its own"), "Unexpected", [0.015, 0.03, 0.0375, 0.0375]),
    ],
)
async def test_failures_set_the_pace(ledger: Ledger, error: Exception, code: str, waits: list[float]) -> None:
    rounds = 0

    async def step(lease: Lease) -> None:
        nonlocal rounds
        rounds += 1
        if rounds <= 4:
            raise error

    bench = Bench(ledger, step)
    async with bench.running():
        await until(lambda: rounds >= 6)
        assert bench.errors(code) == 4
    paced = [s for s in bench.slept if s != RENEWS]  # renewing goes on beside
    assert paced[:4] == pytest.approx(waits)
    assert paced[4] <= QUICK.interval_seconds  # back to its pace


async def test_a_lost_lease_ends_the_step_and_it_waits_again(ledger: Ledger, database_url: str) -> None:
    cancelled = asyncio.Event()
    tokens: list[int] = []

    async def step(lease: Lease) -> None:
        tokens.append(lease.token)
        try:
            await asyncio.sleep(3600 if lease.token == 1 else 0)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    bench = Bench(ledger, step)
    async with bench.running():
        await until(lambda: tokens == [1])
        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE lease SET holder = 'other', token = token + 1")
        await until(cancelled.is_set)
        await until(lambda: bench.closed == 1)
        pass_time(database_url, 61)  # the other one is gone
        await until(lambda: 3 in tokens)
    assert bench.errors("LeaseLost") is None  # losing a lease is no error


async def test_a_step_that_finds_its_lease_lost_waits_again(ledger: Ledger) -> None:
    tokens: list[int] = []

    async def step(lease: Lease) -> None:
        tokens.append(lease.token)
        if lease.token == 1:
            raise LeaseLost("LeaseLost", "gone", "nothing")

    async with Bench(ledger, step).running():
        await until(lambda: 2 in tokens)
    assert tokens.count(1) == 1


async def test_a_ledger_that_comes_back_is_used_again(ledger: Ledger, database_url: str) -> None:
    rounds = 0

    async def step(lease: Lease) -> None:
        nonlocal rounds
        async with ledger.writing(lease):
            rounds += 1

    bench = Bench(ledger, step)
    async with bench.running():
        await until(lambda: rounds >= 2)
        # Not in this thread: it may have to wait for a transaction of the loop's to end.
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            await connection.execute("ALTER TABLE lease RENAME TO away")
            await until(lambda: (bench.errors("LedgerNotMigrated") or 0) >= 1)
            await connection.execute("ALTER TABLE away RENAME TO lease")
        seen = rounds
        await until(lambda: rounds >= seen + 2)


@given(failures=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_backoff_is_bounded(failures: int, jitter: float) -> None:
    pace = Pace()
    wait = pace.backoff.seconds(failures, jitter)
    assert math.isfinite(wait)
    assert pace.interval_seconds / 2 <= wait <= pace.max_backoff_seconds


def test_codes_are_bounded() -> None:
    registry = CollectorRegistry()
    metrics = LoopMetrics(registry)
    for i in range(1000):
        metrics.failed("observe", "hpc", f"Code{i}")
    samples = [s for m in registry.collect() for s in m.samples if s.name == "fairway_loop_errors_total"]
    assert len(samples) == MAX_CODES
    assert sum(s.value for s in samples) == 1000
    metrics.forget("observe", "hpc")
    assert not [s for m in registry.collect() for s in m.samples]


async def test_a_lease_lost_while_it_is_told_to_end_does_not_keep_it_going(ledger: Ledger) -> None:
    begun = asyncio.Event()

    async def step(lease: Lease) -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            raise LeaseLost("LeaseLost", "gone", "nothing")

    async with asyncio.timeout(60):
        async with Bench(ledger, step).running():
            await begun.wait()
