"""Dispatch on a real ledger: sent, refused, cancelled; and killed at every point of it, exactly once."""

from __future__ import annotations

import asyncio
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from fairway.control.loops.dispatch import DispatchJobs, DispatchLimits
from fairway.control.metrics import JobMetrics
from fairway.engines.port import Unreachable
from fairway.ledger import LeaseLost, Ledger
from fairway.ledger.records.jobs import DesiredState, EventKind, JobRow
from fairway.model.errors import Refused, TemporaryError
from fairway.model.job import JobId, JobState
from fairway.services.fleets import Fleets, LastApplied
from tests.unit.control.job_toy import HPC, Field, applied, arrived, give_fleet, leave, parse, submit, take
from tests.waiting import eventually

QUICK = DispatchLimits(
    batch=5,
    sending_seconds=60,
    stop_seconds=30,
    record_seconds=0.005,
    retry_seconds=0.0,
    settle_seconds=0,
)


class Bench:
    """A cluster, a ledger, and dispatchers that may be killed."""

    def __init__(self, ledger: Ledger, world: Field, limits: DispatchLimits = QUICK) -> None:
        self.ledger = ledger
        self.world = world
        self.limits = limits
        self.registry = CollectorRegistry()
        self.metrics = JobMetrics(self.registry)

    def step(self) -> DispatchJobs:
        applied = LastApplied(HPC, self.ledger, Fleets(self.ledger, parse))
        return DispatchJobs(HPC, self.world.build, self.ledger, applied, self.metrics, limits=self.limits)

    async def run(self, step: DispatchJobs | None = None) -> None:
        """One step of a new tenure."""
        lease = await take(self.ledger, "dispatch")
        await (step or self.step())(lease)
        await self.ledger.leases.release(lease)

    async def until_sent(self, within: float = 300) -> None:
        """As the loop would: again and again, by a new tenure each time."""
        async with asyncio.timeout(within):
            while await self.ledger.dispatch.pending_submits(HPC, 1):
                lease = await take(self.ledger, "dispatch")
                with suppress(TemporaryError):
                    await self.step()(lease)
                await self.ledger.leases.release(lease)
                await asyncio.sleep(0.02)

    async def rows(self, numbers: list[JobId]) -> list[JobRow]:
        by_id = {row.id: row for row in await self.ledger.jobs.rows(numbers)}
        return [by_id[number] for number in numbers]

    def count(self, name: str) -> float | None:
        return self.registry.get_sample_value(name, {"cluster": "hpc"})


@pytest.fixture
async def fed(ledger: Ledger) -> Ledger:
    await give_fleet(ledger)
    return ledger


async def test_what_is_due_is_sent_and_kept(fed: Ledger) -> None:
    bench = Bench(fed, Field())
    numbers = await submit(fed, 12)
    await bench.run()
    rows = await bench.rows(numbers)
    assert [row.state for row in rows] == [JobState.WAITING] * 12
    assert {row.engine_id for row in rows} == set(bench.world.jobs)
    assert set(bench.world.live().values()) == {1}
    assert bench.count("fairway_jobs_sent_total") == 12
    await bench.run()
    assert len(bench.world.jobs) == 12


async def test_before_a_fleet_nothing_is_sent(ledger: Ledger) -> None:
    bench = Bench(ledger, Field())
    await bench.run()
    assert bench.world.built == 0


async def test_to_a_cluster_that_was_left_nothing_is_sent_until_it_is_governed_again(fed: Ledger) -> None:
    bench = Bench(fed, Field())
    await applied(fed)
    await leave(fed)
    numbers = await submit(fed, 2)
    await bench.run()
    assert [row.state for row in await bench.rows(numbers)] == [JobState.QUEUED] * 2
    assert bench.world.jobs == {}
    await applied(fed)
    await bench.run()
    assert [row.state for row in await bench.rows(numbers)] == [JobState.WAITING] * 2


async def test_a_refusal_is_the_jobs(fed: Ledger) -> None:
    world = Field(refused={"bad": Refused("NoPartition", "there is no such partition", "name another")})
    bench = Bench(fed, world)
    (bad,) = await submit(fed, name="bad")
    (good,) = await submit(fed, name="good")
    await bench.run()
    one, two = await bench.rows([bad, good])
    assert (one.state, one.code) == (JobState.REFUSED, "NoPartition")
    assert "there is no such partition" in one.reason
    assert two.state is JobState.WAITING
    assert bench.count("fairway_jobs_refused_total") == 1


async def test_an_engine_that_went_silent_is_asked_again_when_nothing_can_arrive_any_more(
    fed: Ledger, database_url: str
) -> None:
    world = Field(deaf=Unreachable("Unreachable", "no answer", "look"), deaf_after=2)
    bench = Bench(fed, world, QUICK)
    numbers = await submit(fed, 5)
    with pytest.raises(Unreachable):
        await bench.run(step := bench.step())
    await _released(fed)
    assert len(world.jobs) == 3  # the third arrived, and nobody was told
    assert [r.state for r in await bench.rows(numbers)].count(JobState.WAITING) == 2
    world.deaf = None
    await bench.run(step)  # too early to know
    assert len(world.jobs) == 3
    _pass_a_minute(database_url)
    await bench.until_sent()
    assert sorted(world.live().values()) == [1] * 5
    assert {r.engine_id for r in await bench.rows(numbers)} == set(world.jobs)


async def test_where_names_are_unique_nobody_waits(fed: Ledger) -> None:
    world = Field(unique_names=True, deaf=Unreachable("Unreachable", "no answer", "look"), deaf_after=2)
    bench = Bench(fed, world)
    numbers = await submit(fed, 5)
    with pytest.raises(Unreachable):
        await bench.run()
    await _released(fed)
    world.deaf = None
    await bench.run()
    assert {r.engine_id for r in await bench.rows(numbers)} == set(world.jobs)
    assert set(world.live().values()) == {1}


async def test_sending_stops_long_before_an_order_may_be_sent_again(fed: Ledger, database_url: str) -> None:
    world = Field(arrive_seconds=0.12)
    bench = Bench(fed, world, replace(QUICK, batch=50, stop_seconds=0.3))
    await submit(fed, 10)  # more than 0.3 s hold
    with pytest.raises(TemporaryError) as late:
        await bench.run()
    await _released(fed)
    assert late.value.code == "SendingTimedOut"
    assert len(world.jobs) <= 3
    await arrived()
    world.arrive_seconds = 0
    _pass_a_minute(database_url)
    await Bench(fed, world).until_sent()
    assert sorted(world.live().values()) == [1] * 10


async def test_wishes_reach_the_engine_once_and_refusals_come_back(fed: Ledger) -> None:
    world = Field()
    bench = Bench(fed, world, replace(QUICK, retry_seconds=60))
    end, hold, stubborn = await submit(fed, 3)
    step = bench.step()
    await bench.run(step)
    rows = await bench.rows([end, hold, stubborn])
    ids = [row.engine_id for row in rows]
    assert ids[2] is not None
    world.cannot[ids[2]] = Refused("Busy", "not now", "later")
    await fed.jobs.set_desired_state([end, stubborn], DesiredState.CANCEL, by="ada")
    await fed.jobs.set_desired_state([hold], DesiredState.HOLD, by="ada")
    await bench.run(step)
    await bench.run(step)  # not told again: the mirror has not seen it yet, and there was no time
    assert Counter(verb for verb, _ in world.told) == {"cancel": 1, "hold": 1}
    detail = await fed.jobs.one(stubborn)
    assert detail is not None
    assert detail.row.desired_state is DesiredState.RUN
    assert any("not now" in event.text for event in detail.events)


async def test_what_was_never_sent_is_cancelled_without_the_engine(fed: Ledger) -> None:
    world = Field()
    bench = Bench(fed, world)
    (number,) = await submit(fed)
    await fed.jobs.set_desired_state([number], DesiredState.CANCEL, by="ada")
    await bench.run()
    assert (await bench.rows([number]))[0].state is JobState.CANCELLED
    assert world.jobs == {}


async def test_a_lost_lease_ends_sending(fed: Ledger, database_url: str) -> None:
    world = Field(arrive_seconds=0.5)
    bench = Bench(fed, world, replace(QUICK, batch=50))
    numbers = await submit(fed, 20)
    old = await take(fed, "dispatch")
    task = asyncio.create_task(bench.step()(old))
    await eventually(lambda: world.jobs, within=60, what="the first one arrived", pause=0.01)
    await fed.leases.release(old)
    with pytest.raises(LeaseLost):
        await task
    await arrived()
    assert len(world.jobs) < 20
    world.arrive_seconds = 0
    _pass_a_minute(database_url)
    await bench.until_sent()
    assert sorted(world.live().values()) == [1] * 20
    assert {r.engine_id for r in await bench.rows(numbers)} == set(world.jobs)


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.timeout(900)
async def test_killed_at_every_point_each_job_is_there_exactly_once(
    fed: Ledger, database_url: str, *, unique: bool
) -> None:
    """One dispatcher after the other is killed, each a wait later than the last, until one is through."""
    world = Field(unique_names=unique, arrive_seconds=0.004)
    bench = Bench(fed, world)
    numbers: list[JobId] = []
    killed = point = through = 0
    while through < 5:
        point += 1
        numbers += await submit(fed, 3)
        lease = await take(fed, "dispatch", f"server {point}")
        dead = await _killed(partial(bench.step(), lease), point)
        await fed.leases.release(lease)
        killed += dead
        through += not dead
        if point % 3 == 0:  # the next one may send again what nobody knows of
            await arrived()
            _pass_a_minute(database_url)
    assert killed > 40
    await arrived()
    _pass_a_minute(database_url)
    await bench.until_sent()
    doubled = {name: n for name, n in world.live().items() if n != 1}
    assert doubled == {}
    rows = await bench.rows(numbers)
    assert {row.state for row in rows} == {JobState.WAITING}
    assert sorted(str(row.engine_id) for row in rows) == sorted(world.jobs)
    for row in rows[:: max(1, len(rows) // 20)]:
        detail = await fed.jobs.one(row.id)
        assert detail is not None
        assert [e.kind for e in detail.events].count(EventKind.SENT) == 1


def _pass_a_minute(database_url: str) -> None:
    """As if so much time had gone by: nothing that was under way can arrive any more."""
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE job SET sending_until = sending_until - interval '61 s'")


async def _released(ledger: Ledger) -> None:
    """The lease of a step that failed, as if its time had run out."""
    await ledger.leases.release(await take(ledger, "dispatch"))


async def _killed(start: Callable[[], Awaitable[None]], point: int) -> bool:
    """Run it up to its so-many-th wait, and no further; whether it was still at work by then."""

    @types.coroutine
    def run() -> Generator[Any, Any, None]:
        inner = start().__await__()
        awaited = next(inner, None)
        for number in range(1, 1_000_000):
            if number == point:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                try:
                    sent = yield awaited
                except BaseException as error:
                    awaited = inner.throw(error)
                else:
                    awaited = inner.send(sent)
            except StopIteration:
                return

    async def whole() -> None:
        await run()

    task = asyncio.create_task(whole())
    try:
        await task
    except asyncio.CancelledError:
        return True
    except TemporaryError:  # a query that was cut off, say
        return True
    return False
