"""Runs that ended are queued once, whatever reports them again, and history is read without those."""

from __future__ import annotations

import psycopg
import pytest

from fairway.ledger import FLEET, Lease, Ledger
from fairway.ledger.jobs.run_times import RunsToLearn
from fairway.model.job import Ending, JobState, SeenJob
from fairway.model.names import TeamName, UserName
from fairway.simulate.run_times import FinishedRun, JobTraits, RunTimeKey
from tests.unit.ledger.job_samples import Desk, run, seen

TRAIN = JobTraits(UserName("ann"), TeamName("research"), "train", 2)


async def write(desk: Desk, *jobs: SeenJob) -> None:
    async with desk.ledger.writing(desk.mirror) as tx:
        await tx.mirror.write_jobs(jobs)


async def learning(ledger: Ledger) -> Lease:
    lease = await ledger.leases.take("run-times", FLEET, "me", 60)
    assert lease is not None
    return lease


async def store(ledger: Ledger, lease: Lease, runs: RunsToLearn, **histograms: bytes) -> None:
    async with ledger.writing(lease) as tx:
        await tx.run_times.write({RunTimeKey(int(k[1:])): v for k, v in histograms.items()}, runs)


async def test_a_run_that_ended_by_itself_is_queued_once(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    await write(desk, seen("1", "train", JobState.RUNNING, run(1)))
    assert not await ledger.run_times.queued(10)
    over = seen("1", "train", JobState.DONE, run(1, 61), time_seconds=3600)
    await write(desk, over)
    found = await ledger.run_times.queued(10)
    assert found.runs == (FinishedRun(JobTraits(TRAIN.user, TRAIN.team, "train", 2, 3600), 60.0),)
    await store(ledger, await learning(ledger), found)
    await write(desk, over, seen("1", "train", JobState.DONE, run(1, 62)))  # again, and corrected
    assert not await ledger.run_times.queued(10)


@pytest.mark.parametrize(
    ("ending", "learnt", "timed_out"),
    [
        (Ending.DONE, True, False),
        (Ending.FAILED, True, False),
        (Ending.CANCELLED, True, False),
        (Ending.TIMED_OUT, True, True),
        (Ending.PREEMPTED, False, False),
        (Ending.REQUEUED, False, False),
        (Ending.NODE_LOST, False, False),
        (Ending.LOST, False, False),
    ],
)
async def test_only_what_a_job_did_by_itself_is_learnt(
    ledger: Ledger, ending: Ending, learnt: bool, timed_out: bool
) -> None:
    desk = await Desk.of(ledger)
    await write(desk, seen("1", "train", JobState.FAILED, run(1, 31, ending)))
    found = await ledger.run_times.queued(10)
    assert found.runs == ((FinishedRun(TRAIN, 30.0, timed_out),) if learnt else ())
    history = await ledger.run_times.history(0, 10)
    assert history == RunsToLearn(())  # queued, or not to be learnt


async def test_a_later_attempt_is_learnt_and_the_preempted_one_before_is_not(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    await write(desk, seen("1", "train", JobState.RUNNING, run(1, 11, Ending.PREEMPTED), run(20)))
    await write(desk, seen("1", "train", JobState.DONE, run(1, 11, Ending.PREEMPTED), run(20, 60)))
    assert [one.seconds for one in (await ledger.run_times.queued(10)).runs] == [40.0]


async def test_services_and_jobs_without_gpus_are_not_learnt(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    await write(
        desk,
        seen("1", "serve", JobState.DONE, run(1, 61), service=True),
        seen("2", "cpu", JobState.DONE, run(1, 61), supply=None),
        seen("3", "serve", JobState.DONE, run(1, 61, replica="pod-1")),
    )
    found = await ledger.run_times.queued(10)
    assert found.runs == ()
    assert len(found.queued) == 2  # of a service there may have been very many replicas
    await store(ledger, await learning(ledger), found)
    assert not await ledger.run_times.queued(10)


async def test_history_is_read_in_parts_without_what_is_queued(ledger: Ledger, database_url: str) -> None:
    desk = await Desk.of(ledger)
    await write(desk, *(seen(str(n), f"train-{n}", JobState.DONE, run(1, 11 + n)) for n in range(5)))
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("DELETE FROM run_to_learn WHERE job NOT IN (SELECT max(job) FROM run_to_learn)")
    read: list[float] = []
    mark = await ledger.run_times.history_mark()
    lease = await learning(ledger)
    while mark is not None:
        part = await ledger.run_times.history(mark, 2)
        assert len(part.runs) <= 2
        read += [one.seconds for one in part.runs]
        async with ledger.writing(lease) as tx:
            await tx.run_times.set_history_mark(part.next_job)
        mark = await ledger.run_times.history_mark()
    assert read == [10.0, 11.0, 12.0, 13.0]
    assert [one.seconds for one in (await ledger.run_times.queued(10)).runs] == [14.0]


async def test_histograms_are_replaced_and_the_oldest_forgotten(ledger: Ledger, database_url: str) -> None:
    lease = await learning(ledger)
    await store(ledger, lease, RunsToLearn(()), k1=b"one", k2=b"two", k3=b"three")
    await store(ledger, lease, RunsToLearn(()), k2=b"again")
    keys = [RunTimeKey(n) for n in range(5)]
    assert await ledger.run_times.histograms(keys) == {1: b"one", 2: b"again", 3: b"three"}
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE run_time_histogram SET used_on = used_on - 1 WHERE key = 2")
    async with ledger.writing(lease) as tx:
        assert await tx.run_times.forget(2) == 1
    assert set(await ledger.run_times.histograms(keys)) == {1, 3}
