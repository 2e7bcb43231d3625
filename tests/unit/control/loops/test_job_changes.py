"""Changes of waiting jobs on a real ledger: made once, in the row or on the engine, killed at every point."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from fairway.engines.port import Unreachable
from fairway.ledger import JobNotChanged, Ledger
from fairway.ledger.records.jobs import DesiredState, EventKind, JobDetail, NewJob
from fairway.model.errors import Refused, TemporaryError
from fairway.model.job import EngineId, JobId, JobState
from fairway.model.job_change import JobChange
from fairway.model.names import PoolName
from tests.unit.control.job_toy import Field, give_fleet, new_job, submit, take
from tests.unit.control.loops.test_dispatch import Bench, _killed, _released
from tests.unit.ledger.job_samples import request_change

OTHER = PoolName("hpc-h100")


@pytest.fixture
async def fed(ledger: Ledger) -> Ledger:
    await give_fleet(ledger)
    return ledger


async def detail(ledger: Ledger, number: JobId) -> JobDetail:
    found = await ledger.jobs.one(number)
    assert found is not None
    return found


def kinds(found: JobDetail) -> list[EventKind]:
    return [event.kind for event in found.events]


async def sent(bench: Bench) -> tuple[JobId, EngineId]:
    (number,) = await submit(bench.ledger)
    await bench.run()
    engine_id = (await detail(bench.ledger, number)).row.engine_id
    assert engine_id is not None
    return number, engine_id


async def test_a_job_that_was_not_sent_is_sent_as_changed(fed: Ledger) -> None:
    bench = Bench(fed, Field())
    (number,) = await submit(fed)
    await request_change(fed, number, JobChange(gpus=3, nodes=2, time_seconds=600))
    before = await fed.job_changes.one(number)
    assert before is not None
    assert (before.current.spec.gpus.count, before.wanted.spec.gpus.count) == (1, 3)
    await bench.run()
    found = await detail(fed, number)
    assert found.spec is not None
    assert (found.spec.gpus.count, found.spec.nodes, found.spec.time_seconds) == (3, 2, 600)
    row = found.row
    assert (row.gpus, row.nodes, row.devices, row.time_seconds) == (3, 2, 6, 600)
    assert row.state is JobState.WAITING
    assert ("change", (row.engine_id,)) not in bench.world.told  # it never was anything else there
    assert kinds(found)[:3] == [EventKind.SUBMITTED, EventKind.CHANGE_REQUESTED, EventKind.CHANGED]
    requested = found.events[1]
    assert (requested.by, requested.text) == ("bob", "a change")


async def test_a_job_that_was_not_sent_moves_to_another_cluster(fed: Ledger) -> None:
    bench = Bench(fed, Field())
    (first,) = await submit(fed)
    (number,) = await submit(fed, after=())
    await fed.jobs.set_desired_state([number], DesiredState.HOLD, by="ada")
    await request_change(fed, number, JobChange(pool=OTHER), cluster="cloud")
    await bench.run()
    found = await detail(fed, number)
    assert (found.row.cluster, found.row.pool, found.row.state) == ("cloud", OTHER, JobState.HELD)
    assert found.placement_reason == "moved"
    await fed.jobs.set_desired_state([number], DesiredState.RUN, by="ada")
    await bench.run()
    assert [job.engine_id for job in bench.world.jobs.values()] == [(await detail(fed, first)).row.engine_id]
    (order,) = await fed.dispatch.pending_submits("cloud", 10)
    assert order.id == number


async def test_a_sent_job_is_changed_on_its_engine_first(fed: Ledger) -> None:
    bench = Bench(fed, Field())
    number, engine_id = await sent(bench)
    await request_change(fed, number, JobChange(gpus=4))
    assert (await detail(fed, number)).row.gpus == 1
    await bench.run()
    assert bench.world.jobs[engine_id].gpus == 4
    found = await detail(fed, number)
    assert (found.row.gpus, found.row.devices, found.row.engine_id) == (4, 4, engine_id)
    assert found.spec is not None
    assert found.spec.gpus.count == 4
    assert kinds(found)[-1] is EventKind.CHANGED
    assert await fed.job_changes.pending("hpc", 9) == ()


async def test_a_refusal_is_an_event_and_the_job_stays_as_it_was(fed: Ledger) -> None:
    bench = Bench(fed, Field())
    number, engine_id = await sent(bench)
    bench.world.cannot[engine_id] = Refused("Busy", "not now", "later")
    await request_change(fed, number, JobChange(gpus=4))
    await bench.run()
    found = await detail(fed, number)
    assert found.row.gpus == 1
    assert found.events[-1].kind is EventKind.REFUSED
    assert found.events[-1].text == "Busy: not now"
    assert await fed.job_changes.pending("hpc", 9) == ()


async def test_an_engine_that_is_away_is_asked_again(fed: Ledger) -> None:
    bench = Bench(fed, Field())
    number, _ = await sent(bench)
    await request_change(fed, number, JobChange(gpus=4))
    bench.world.deaf = Unreachable("Unreachable", "no answer", "look")
    with pytest.raises(Unreachable):
        await bench.run()
    await _released(fed)
    bench.world.deaf = None
    await bench.run()
    assert (await detail(fed, number)).row.gpus == 4


async def test_a_sent_job_does_not_move_to_another_cluster(fed: Ledger) -> None:
    """Which the service refuses, unless the job is sent between its check and the change."""
    bench = Bench(fed, Field())
    number, _ = await sent(bench)
    await request_change(fed, number, JobChange(pool=OTHER), cluster="cloud")
    await bench.run()
    found = await detail(fed, number)
    assert (found.row.cluster, found.row.pool) == ("hpc", "hpc-a100")
    assert found.events[-1].text.startswith("OtherCluster: ")


async def test_a_job_that_starts_first_is_not_changed(fed: Ledger) -> None:
    bench = Bench(fed, Field())
    number, engine_id = await sent(bench)
    await request_change(fed, number, JobChange(gpus=4))
    bench.world.set(replace(bench.world.jobs[engine_id], state=JobState.RUNNING))
    await bench.run()
    found = await detail(fed, number)
    assert found.row.gpus == 1
    assert found.events[-1].text.startswith("JobStarted: ")


async def test_of_a_job_that_was_cancelled_the_change_is_dropped(fed: Ledger) -> None:
    bench = Bench(fed, Field())
    (number,) = await submit(fed)
    await request_change(fed, number, JobChange(gpus=4))
    await fed.jobs.set_desired_state([number], DesiredState.CANCEL, by="ada")
    await bench.run()
    found = await detail(fed, number)
    assert (found.row.state, found.row.gpus) == (JobState.CANCELLED, 1)
    assert found.events[-1].text.startswith("JobEnded: ")
    assert await fed.job_changes.pending("hpc", 9) == ()


async def test_what_has_ended_or_was_changed_meanwhile_is_refused(fed: Ledger) -> None:
    (number,) = await submit(fed)
    stale = await fed.job_changes.one(number)
    assert stale is not None
    await request_change(fed, number, JobChange(gpus=4))
    after: NewJob = new_job(gpus=replace(stale.current.spec.gpus, count=2))
    with pytest.raises(JobNotChanged) as late:
        await fed.job_changes.request(number, stale, after, "another", "ada")
    assert late.value.code == "ChangedMeanwhile"
    await fed.jobs.set_desired_state([number], DesiredState.CANCEL, by="ada")
    with pytest.raises(JobNotChanged) as over:
        await request_change(fed, number, JobChange(gpus=2))
    assert over.value.code == "JobEnded"


async def test_a_second_change_while_the_first_is_made_is_not_lost(fed: Ledger) -> None:
    bench = Bench(fed, Field())
    number, _ = await sent(bench)
    await request_change(fed, number, JobChange(gpus=4))
    (first,) = await fed.job_changes.pending("hpc", 9)
    assert first.change is not None
    await request_change(fed, number, JobChange(time_seconds=600))
    lease = await take(fed, "dispatch")
    async with fed.writing(lease) as tx:
        await tx.job_changes.record([first.change])
    await fed.leases.release(lease)
    assert len(await fed.job_changes.pending("hpc", 9)) == 1
    await bench.run()
    row = (await detail(fed, number)).row
    assert (row.gpus, row.time_seconds) == (4, 600)


@pytest.mark.timeout(600)
async def test_killed_at_every_point_each_change_is_made_once(fed: Ledger) -> None:
    """One dispatcher after the other is killed, each a wait later than the last, until one is through."""
    world = Field(unique_names=True)
    bench = Bench(fed, world)
    sent_job, engine_id = await sent(bench)
    killed = point = through = 0
    while through < 2:
        point += 1
        (unsent,) = await submit(fed)
        await request_change(fed, unsent, JobChange(gpus=2))
        await request_change(fed, sent_job, JobChange(gpus=2 + point % 3))
        lease = await take(fed, "dispatch", f"server {point}")
        dead = await _killed(partial(bench.step(), lease), point)
        await fed.leases.release(lease)
        killed += dead
        through += not dead
        lease = await take(fed, "dispatch")
        with suppress(TemporaryError):
            await bench.step()(lease)
        await fed.leases.release(lease)
        await bench.run()
        for number, gpus in ((unsent, 2), (sent_job, 2 + point % 3)):
            found = await detail(fed, number)
            assert found.row.gpus == gpus
            assert found.row.engine_id is not None
            assert kinds(found).count(EventKind.CHANGED) == kinds(found).count(EventKind.CHANGE_REQUESTED)
        assert world.jobs[engine_id].gpus == 2 + point % 3
    assert killed > 10
