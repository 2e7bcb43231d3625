"""Some forecasts are kept until their jobs have started, and what came out calibrates later ones."""

from __future__ import annotations

from collections.abc import Sequence

from fairway.ledger import Ledger
from fairway.ledger.jobs.forecasts import MAX_OPEN_CHECKS
from fairway.ledger.records.jobs import DesiredState
from fairway.model.job import JobId, JobState
from fairway.simulate.calibration import SAMPLES, PastForecast
from fairway.simulate.starts import StartForecast
from tests.unit.control.job_toy import take
from tests.unit.ledger.job_samples import Desk, at, run, seen


def said(job: JobId, seconds: float = 0.0, wait: float = 20.0) -> StartForecast:
    """A forecast of `seconds` after the test began that a job starts after 20 s, at most 30 s."""
    begin = at(seconds).timestamp()
    return StartForecast(job, begin + wait / 2, begin + wait, begin + 1.5 * wait, 1.0)


async def check(ledger: Ledger, forecasts: Sequence[StartForecast], seconds: float = 0.0) -> None:
    async with ledger.writing(await take(ledger, "starts")) as tx:
        await tx.job_forecasts.check(forecasts, at(seconds))


async def ids(ledger: Ledger, *names: str) -> list[JobId]:
    found = {job.name: job.id for job in (await ledger.snapshots.read("hpc", {}, 86_400)).waiting}
    return [found[name] for name in names]


def past(one: StartForecast, started: float, seconds: float = 0.0) -> PastForecast:
    assert one.earliest is not None and one.latest is not None
    return PastForecast(at(seconds).timestamp(), one.earliest, one.latest, at(started).timestamp())


async def test_a_forecast_comes_out_when_its_job_has_started(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    waiting = [seen(str(n), f"j{n}", JobState.WAITING) for n in (1, 2, 3)]
    await desk.see(*waiting)
    first, second, third = await ids(ledger, "j1", "j2", "j3")
    unknown = StartForecast(third, at(5).timestamp(), None, None, 0.4)
    await check(ledger, [said(first), said(second, wait=600.0), unknown])
    assert [p.latest for p in await ledger.job_forecasts.past("hpc")] == [said(first).latest], (
        "the second may still start within its range, and the third has none"
    )
    await desk.see(
        seen("1", "j1", JobState.RUNNING, run(25)),
        seen("2", "j2", JobState.RUNNING, run(30)),
        complete=False,
    )
    await check(ledger, [], 40)
    assert await ledger.job_forecasts.past("hpc") == (past(said(first), 25),)
    assert await ledger.job_forecasts.past("cloud") == ()


async def test_a_job_that_waits_beyond_its_range_counts_as_late(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    await desk.see(seen("1", "j1", JobState.WAITING))
    (job,) = await ids(ledger, "j1")
    await check(ledger, [said(job)])
    (found,) = await ledger.job_forecasts.past("hpc")
    assert found.started > found.latest


async def test_a_start_before_the_forecast_is_another_one(ledger: Ledger) -> None:
    """It was preempted, and waits again."""
    desk = await Desk.of(ledger)
    await desk.see(seen("1", "j1", JobState.WAITING, run(-100, -50)))
    (job,) = await ids(ledger, "j1")
    await check(ledger, [said(job)])
    await desk.see(seen("1", "j1", JobState.RUNNING, run(-100, -50), run(28)))
    await check(ledger, [], 40)
    assert await ledger.job_forecasts.past("hpc") == (past(said(job), 28),)


async def test_what_was_cancelled_or_on_hold_meanwhile_tells_nothing(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    waiting = [seen(str(n), f"j{n}", JobState.WAITING) for n in (1, 2)]
    await desk.see(*waiting)
    first, second = await ids(ledger, "j1", "j2")
    await check(ledger, [said(first, -60), said(second, -60)], -60)
    await ledger.jobs.set_desired_state([second], DesiredState.HOLD, by="ann")
    await desk.see(
        seen("1", "j1", JobState.CANCELLED), seen("2", "j2", JobState.RUNNING, run(10)), complete=False
    )
    await check(ledger, [], 20)
    assert await ledger.job_forecasts.past("hpc") == ()


async def test_only_so_many_jobs_are_waited_for_and_the_newest_read(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    names = [f"j{n}" for n in range(MAX_OPEN_CHECKS)]
    await desk.see(*(seen(str(n), name, JobState.WAITING) for n, name in enumerate(names)))
    first, *others = await ids(ledger, *names)
    await check(ledger, [said(job, -90) for job in others], -90)
    await check(ledger, [said(first, -80)], -80)
    await check(ledger, [said(first, -70)], -70)
    found = await ledger.job_forecasts.past("hpc")
    assert len(found) == SAMPLES
    assert {one.at for one in found} == {at(-80).timestamp(), at(-90).timestamp()}, "there was no room at -70"
