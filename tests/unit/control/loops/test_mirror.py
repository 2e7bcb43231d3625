"""The mirror on a real ledger: what engines tell is kept once, whatever fails in between."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from fairway.control.loops import mirror
from fairway.control.loops.mirror import MirrorJobs
from fairway.control.metrics import JobMetrics
from fairway.engines.port import Unreachable
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobFilter, JobRow
from fairway.model.condition import ConditionType
from fairway.model.errors import Refused
from fairway.model.job import EngineId, JobId, JobState, format_job_id
from fairway.services.convert.jobs import job
from fairway.services.fleets import Fleets, LastApplied
from tests.unit.control.job_toy import HPC, Field, ToyRuns, give_fleet, parse, submit, take
from tests.unit.control.loops.test_dispatch import Bench as Dispatching


class Bench:
    """A cluster, a ledger, and the mirror between them, on a clock of its own."""

    def __init__(self, ledger: Ledger, world: Field) -> None:
        self.ledger = ledger
        self.world = world
        self.now = 0.0
        self.registry = CollectorRegistry()
        self.mirror = self.new()

    def new(self) -> MirrorJobs:
        applied = LastApplied(HPC, self.ledger, Fleets(self.ledger, parse))
        metrics = JobMetrics(CollectorRegistry(), lambda: self.now)
        return MirrorJobs(HPC, self.world.build, self.ledger, applied, metrics, clock=lambda: self.now)

    async def look(self) -> None:
        lease = await take(self.ledger, "mirror")
        try:
            await self.mirror(lease)
        finally:
            await self.ledger.leases.release(lease)

    async def restart(self) -> None:
        await self.mirror.close()
        self.mirror = self.new()

    async def rows(self) -> dict[EngineId | None, JobRow]:
        return {row.engine_id: row for row in await self.ledger.jobs.page(JobFilter())}

    async def send(self, count: int = 1) -> list[JobId]:
        numbers = await submit(self.ledger, count)
        await Dispatching(self.ledger, self.world).run()
        return numbers


@pytest.fixture
async def bench(ledger: Ledger) -> Bench:
    await give_fleet(ledger)
    return Bench(ledger, Field())


async def test_native_jobs_are_seen_and_followed(bench: Bench) -> None:
    one, two = bench.world.put("by-hand"), bench.world.put("other", JobState.RUNNING)
    await bench.look()
    rows = await bench.rows()
    assert {id_: (row.native, row.name, row.state) for id_, row in rows.items()} == {
        one: (True, "by-hand", JobState.WAITING),
        two: (True, "other", JobState.RUNNING),
    }
    bench.world.end(one)
    await bench.look()
    after = await bench.rows()
    assert after[one].state is JobState.DONE
    assert after[one].id == rows[one].id
    assert after[one].attempts == 1
    assert bench.world.marks == [None, "2"]


async def test_our_own_jobs_end_as_the_engine_says(bench: Bench) -> None:
    numbers = await bench.send(3)
    await bench.look()
    for id_ in list(bench.world.jobs):
        bench.world.end(id_)
    await bench.look()
    assert [r.state for r in await bench.ledger.jobs.rows(numbers)] == [JobState.DONE] * 3


async def test_what_the_ledger_did_not_take_is_kept_the_next_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.look()
    one = bench.world.put("by-hand")
    keep = MirrorJobs._store

    async def fails(*arguments: object, **options: object) -> None:
        raise Unreachable("LedgerUnreachable", "cut", "wait")

    monkeypatch.setattr(MirrorJobs, "_store", fails)
    with pytest.raises(Unreachable):
        await bench.look()
    monkeypatch.setattr(MirrorJobs, "_store", keep)
    looks = len(bench.world.marks)
    await bench.look()
    assert len(bench.world.marks) == looks  # not asked again
    assert one in await bench.rows()


async def test_a_large_batch_is_kept_in_pieces(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "CHUNK", 4)
    ids = {bench.world.put(f"job-{i}") for i in range(11)}
    await bench.look()
    assert set(await bench.rows()) == ids
    assert await bench.ledger.mirror.mark(HPC) == "11"


async def test_a_restart_goes_on_from_the_mark(bench: Bench) -> None:
    bench.world.put("by-hand")
    await bench.look()
    bench.world.put("meanwhile")
    await bench.restart()
    await bench.look()
    assert bench.world.marks == [None, "1"]
    assert len(await bench.rows()) == 2


async def test_while_the_engine_is_away_the_same_one_waits_and_a_refusal_takes_a_new_one(
    bench: Bench,
) -> None:
    await bench.look()
    for error, built in (
        (Unreachable("Unreachable", "no answer", "look"), 1),
        (Refused("Refused", "bad token", "make another"), 2),
    ):
        bench.world.deaf = error
        with pytest.raises(type(error)):
            await bench.look()
        bench.world.deaf = None
        await bench.look()
        assert bench.world.built == built


async def test_what_left_the_queue_while_nobody_looked_is_looked_up(bench: Bench) -> None:
    one = bench.world.put("by-hand", JobState.RUNNING)
    await bench.look()
    await bench.restart()
    bench.world.end(one)
    bench.world.hidden.add(one)
    await bench.look()
    assert (await bench.rows())[one].state is JobState.DONE


async def test_a_look_for_what_is_missing_that_failed_is_made_up_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bench.world.put("by-hand", JobState.RUNNING)
    await bench.look()
    await bench.restart()
    bench.world.end(one)
    bench.world.hidden.add(one)
    look_up = ToyRuns.look_up

    async def fails(*arguments: object) -> None:
        raise Unreachable("Unreachable", "no answer", "look")

    monkeypatch.setattr(ToyRuns, "look_up", fails)
    with pytest.raises(Unreachable):
        await bench.look()
    monkeypatch.setattr(ToyRuns, "look_up", look_up)
    await bench.look()
    assert (await bench.rows())[one].state is JobState.DONE


async def test_what_nothing_tells_of_is_lost_only_after_a_second_look(bench: Bench) -> None:
    one = bench.world.put("by-hand", JobState.RUNNING)
    two = bench.world.put("late", JobState.RUNNING)
    await bench.look()
    await bench.restart()
    bench.world.hidden |= {one, two}
    bench.world.forgotten |= {one, two}
    await bench.look()
    bench.now = 29
    await bench.look()
    assert (await bench.rows())[one].state is JobState.RUNNING
    bench.world.forgotten.discard(two)
    bench.world.end(two)  # its record came late
    bench.now = 31
    await bench.look()
    rows = await bench.rows()
    assert (rows[one].state, rows[two].state) == (JobState.LOST, JobState.DONE)


async def test_what_vanished_while_nobody_looked_ended_when_it_was_last_seen(
    bench: Bench, database_url: str
) -> None:
    """Not when it was missed, nor when a server that started again missed it a second time."""
    one = bench.world.put("by-hand", JobState.RUNNING)
    await bench.look()
    last_seen = (await bench.rows())[one].submitted_at + timedelta(seconds=20)
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE mirror_mark SET at = %s", (last_seen,))
    bench.world.hidden.add(one)
    bench.world.forgotten.add(one)
    for _ in range(2):
        await bench.restart()
        await bench.look()
    bench.now = 31
    bench.world.put("other")
    await bench.look()
    row = (await bench.rows())[one]
    assert (row.state, row.ended_at) == (JobState.LOST, last_seen.replace(microsecond=0))


async def test_what_was_sent_just_now_is_not_missing(bench: Bench) -> None:
    (number,) = await bench.send()
    bench.world.hidden |= set(bench.world.jobs)
    bench.world.forgotten |= set(bench.world.jobs)
    await bench.look()
    bench.now = 100
    await bench.look()
    (row,) = await bench.ledger.jobs.rows([number])
    assert row.state is JobState.WAITING


async def test_a_job_that_vanished_just_after_it_was_sent_is_lost(bench: Bench, database_url: str) -> None:
    """Too young to be missed when the engine listed its jobs, it was never looked for again."""
    (number,) = await bench.send()
    bench.world.hidden |= set(bench.world.jobs)
    bench.world.forgotten |= set(bench.world.jobs)
    await bench.look()
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE job SET sent_at = sent_at - interval '20 seconds'")
    bench.now = 16
    await bench.look()
    assert (await bench.ledger.jobs.rows([number]))[0].state is JobState.WAITING
    bench.now = 47
    await bench.look()
    assert (await bench.ledger.jobs.rows([number]))[0].state is JobState.LOST


async def test_what_is_missing_is_missed_after_a_restart_without_a_list(bench: Bench) -> None:
    """A virtual cluster outlives its mirror, and then reports changes only."""
    one, two = (bench.world.put(name, JobState.RUNNING) for name in ("gone", "there"))
    await bench.look()
    await bench.restart()
    bench.world.hidden.add(one)
    bench.world.forgotten.add(one)
    bench.world.keeps_engine = True
    await bench.look()
    assert bench.world.snapshots == [True, False]
    bench.now = 31
    await bench.look()
    rows = await bench.rows()
    assert (rows[one].state, rows[two].state) == (JobState.LOST, JobState.RUNNING)


async def test_a_second_job_of_one_order_is_ended(bench: Bench) -> None:
    (number,) = await bench.send()
    (first,) = bench.world.jobs
    await bench.look()
    second = bench.world.put(bench.world.jobs[first].name)
    bench.world.deaf = None
    await bench.look()
    assert bench.world.told == [("cancel", (second,))]
    await bench.look()
    (row,) = await bench.ledger.jobs.rows([number])
    assert (row.engine_id, row.state) == (first, JobState.WAITING)
    assert [j.state for j in bench.world.jobs.values()] == [JobState.WAITING, JobState.CANCELLED]


async def test_a_job_whose_sender_died_is_found_by_the_mirror(bench: Bench) -> None:
    """Long before its order may be sent again."""
    (number,) = await submit(bench.ledger)
    (due,) = await bench.ledger.dispatch.pending_submits(HPC, 10)
    lease = await take(bench.ledger, "dispatch")
    async with bench.ledger.writing(lease) as tx:
        await tx.dispatch.begin([number], 30)
    one = bench.world.put(due.engine_name)
    await bench.look()
    (row,) = await bench.ledger.jobs.rows([number])
    assert (row.engine_id, row.state, row.native) == (one, JobState.WAITING, False)
    assert await bench.ledger.dispatch.pending_submits(HPC, 10) == ()


async def test_jobs_that_cannot_be_followed_are_a_condition_of_the_cluster(bench: Bench) -> None:
    bench.world.deaf = Refused("ToolMissing", "squeue cannot be run: not in PATH", "install slurm-client")
    with pytest.raises(Refused):
        await bench.look()
    (stored,) = await bench.ledger.conditions.all()
    assert stored.condition.type is ConditionType.JOBS_NOT_FOLLOWED
    assert stored.condition.code == "ToolMissing"
    bench.world.deaf = None
    await bench.look()
    assert await bench.ledger.conditions.all() == ()


async def test_one_missed_answer_is_no_condition_and_two_are(bench: Bench) -> None:
    bench.world.deaf = Unreachable("ControllerUnreachable", "squeue: socket timed out", "scontrol ping")
    with pytest.raises(Unreachable):
        await bench.look()
    assert await bench.ledger.conditions.all() == ()
    with pytest.raises(Unreachable):
        await bench.look()
    assert len(await bench.ledger.conditions.all()) == 1
    await bench.restart()
    bench.world.deaf = None
    await bench.look()
    assert await bench.ledger.conditions.all() == ()


async def test_reasons_name_other_jobs_by_fairways_id(bench: Bench) -> None:
    first, second = bench.world.put("big"), bench.world.put("small")
    await bench.look()
    other = (await bench.rows())[first]
    text = "The free GPUs are reserved for {job}, which is ahead"
    waits = replace(bench.world.jobs[second], reason=text, reason_job=first, reason_code="ReservedForAnother")
    bench.world.set(waits)
    await bench.look()
    row = (await bench.rows())[second]
    assert row.reason == f"The free GPUs are reserved for big ({format_job_id(other.id)}), which is ahead"
    assert job(row).code == "ReservedForAnother", "in lists, too"
