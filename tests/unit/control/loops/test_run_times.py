"""The run-time loop on a real ledger: every run is learnt once, and predictions follow."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from fairway.control.loops.run_times import LearnRunTimes
from fairway.ledger import FLEET, Lease, LeaseLost, Ledger
from fairway.model.job import JobState
from fairway.model.names import TeamName, UserName
from fairway.services.run_times import predictor
from fairway.simulate.run_times import JobTraits
from tests.unit.ledger.job_samples import Desk, run, seen

TRAIN = JobTraits(UserName("ann"), TeamName("research"), "train-99", 2)


async def take(ledger: Ledger, holder: str = "me") -> Lease:
    lease = await ledger.leases.take("run-times", FLEET, holder, 60)
    assert lease is not None
    return lease


async def ran(desk: Desk, first: int, count: int, seconds: float) -> None:
    async with desk.ledger.writing(desk.mirror) as tx:
        await tx.mirror.write_jobs(
            [seen(str(n), f"train-{n}", JobState.DONE, run(-seconds, 0)) for n in range(first, first + count)]
        )


async def samples(ledger: Ledger) -> int:
    return (await predictor(ledger, [TRAIN])).predict(TRAIN).samples


async def test_what_ended_is_learnt_once_in_parts(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    step = LearnRunTimes(ledger, batch=4)
    lease = await take(ledger)
    assert await samples(ledger) == 0
    await ran(desk, 0, 10, 7200)
    for _ in range(2):
        await step(lease)
    assert await samples(ledger) == 10
    await ran(desk, 10, 1, 7200)
    await step(lease)
    forecast = (await predictor(ledger, [TRAIN])).predict(TRAIN)
    assert (forecast.samples, forecast.source) == (11, "jobs of ann named train-* of this size")
    assert forecast.quantile(0.5) == pytest.approx(7200, rel=0.2)


async def test_history_from_before_is_learnt_first_and_once(ledger: Ledger, database_url: str) -> None:
    desk = await Desk.of(ledger)
    await ran(desk, 0, 7, 3600)
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("DELETE FROM run_to_learn")  # as if an older release had recorded them
    await ran(desk, 7, 3, 3600)
    lease = await take(ledger)
    for _ in range(2):
        await LearnRunTimes(ledger, history_batch=3)(lease)
    assert await samples(ledger) == 10


async def test_a_server_that_lost_its_lease_learns_nothing(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    lease = await take(ledger)
    step = LearnRunTimes(ledger)
    await step(lease)
    await ran(desk, 0, 3, 60)
    await ledger.leases.release(lease)
    other = await take(ledger, "other")
    with pytest.raises(LeaseLost):
        await step(lease)
    assert await samples(ledger) == 0
    await LearnRunTimes(ledger)(other)
    assert await samples(ledger) == 3


async def test_a_step_ends_in_time_and_the_next_one_goes_on(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    await ran(desk, 0, 6, 60)
    lease = await take(ledger)
    times = iter(range(0, 10_000, 15))
    step = LearnRunTimes(ledger, batch=1, history_batch=100, clock=lambda: float(next(times)))
    found = []
    for _ in range(8):
        await step(lease)
        found.append(await samples(ledger))
    assert found == [0, 1, 2, 3, 4, 5, 6, 6]


async def test_other_users_have_what_is_known_of_their_team(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    await ran(desk, 0, 5, 600)
    await LearnRunTimes(ledger)(await take(ledger))
    bob = replace(TRAIN, user=UserName("bob"))
    forecast = (await predictor(ledger, [bob])).predict(bob)
    assert (forecast.samples, forecast.source) == (5, "jobs of team research named train-*")


async def test_history_waits_for_a_while_after_the_start(ledger: Ledger, database_url: str) -> None:
    desk = await Desk.of(ledger)
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE run_time_mark SET next_job = 0")
    await ran(desk, 0, 5, 600)
    at = 100.0
    step = LearnRunTimes(ledger, history_after_seconds=30, clock=lambda: at)
    lease = await take(ledger)
    at = 129.0
    await step(lease)
    assert await samples(ledger) == 0
    at = 130.0
    await step(lease)
    assert await samples(ledger) == 5
