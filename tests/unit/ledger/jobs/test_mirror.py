"""What engines show becomes what the ledger shows: once, whatever comes twice, late or after a crash."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace

import psycopg
import pytest

from fairway.explain.reasons import WAITS_FOR_CAPACITY
from fairway.ledger import DesiredState, EventKind, JobFilter, LeaseLost, Ledger
from fairway.model.errors import PermanentError
from fairway.model.job import AttemptEnd, Ending, EngineId, JobId, JobState, NodeGpus, SeenJob, Tolerates
from fairway.model.names import NodeName, PoolName, UserName
from fairway.model.team import Supply
from tests.unit.ledger.job_samples import Desk, at, new_job, retries, run, seen

WAITING, HELD, RUNNING = JobState.WAITING, JobState.HELD, JobState.RUNNING
DONE, FAILED, CANCELLED = JobState.DONE, JobState.FAILED, JobState.CANCELLED


@pytest.fixture
async def desk(ledger: Ledger) -> Desk:
    return await Desk.of(ledger)


async def submitted(desk: Desk, **spec: object) -> tuple[JobId, str, str]:
    """A job that was sent: its id, its engine's id and name."""
    (id_,) = await desk.submit(new_job(**spec))  # type: ignore[arg-type]
    (name,) = await desk.send(id_)
    return id_, f"e{id_}-1", name


async def test_a_job_runs_and_ends(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk)
    assert await desk.state(id_) is WAITING
    assert (await desk.see(seen(engine_id, name, RUNNING, run(5)))).ended == ()
    row = await desk.row(id_)
    assert (row.state, row.started_at, row.attempts) == (RUNNING, at(5), 1)
    kept = await desk.see(seen(engine_id, name, DONE, run(5, 9, exit_code=0)), mark="m1")
    assert kept.ended == (id_,)
    assert kept.doubles == ()
    detail = await desk.detail(id_)
    assert (detail.row.ended_at, detail.row.exit_code) == (at(9), 0)
    assert [(a.number, a.engine_id, a.attempt) for a in detail.attempts] == [
        (1, engine_id, run(5, 9, exit_code=0))
    ]
    assert [e.kind for e in detail.events] == [EventKind.SUBMITTED, EventKind.SENT]
    assert await desk.ledger.mirror.mark("hpc") == "m1"


async def test_an_order_nobody_remembers_is_known_by_its_name(desk: Desk) -> None:
    """The server died between sending and writing so."""
    (id_,) = await desk.submit(new_job())
    await desk.begin(id_)
    order = await desk.ledger.dispatch.order_of(id_)
    assert order is not None
    await desk.see(seen("77", order.engine_name, RUNNING, run(2)))
    row = await desk.row(id_)
    assert (row.state, row.engine_id) == (RUNNING, "77")
    assert await desk.due() == []
    await desk.sent((id_, 1, "77"))  # and then it said so after all
    assert (await desk.row(id_)) == row
    assert len(await desk.ledger.jobs.page(JobFilter())) == 1


async def test_a_second_engine_job_of_one_order_is_a_double(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk)
    for _ in range(2):  # told until it is gone, written once
        kept = await desk.see(seen("78", name, WAITING), seen(engine_id, name, RUNNING, run(1)))
        assert kept.doubles == ("78",)
    assert (await desk.see(seen("78", name, CANCELLED))).doubles == ()
    detail = await desk.detail(id_)
    assert (detail.row.state, detail.row.engine_id) == (RUNNING, engine_id)
    assert [e.kind for e in detail.events].count(EventKind.DOUBLE) == 1
    assert len(await desk.ledger.jobs.page(JobFilter())) == 1


async def test_two_engine_jobs_of_one_order_in_one_batch(desk: Desk) -> None:
    (id_,) = await desk.submit(new_job())
    order = await desk.ledger.dispatch.order_of(id_)
    assert order is not None
    kept = await desk.see(
        seen("1", order.engine_name, RUNNING, run(1)), seen("2", order.engine_name, WAITING)
    )
    assert kept.doubles == ("2",)
    assert (await desk.row(id_)).engine_id == "1"
    await desk.sent((id_, 1, "3"))
    assert (await desk.see(seen("3", order.engine_name, WAITING))).doubles == ("3",)


async def test_nobody_elses_job_passes_for_ours(desk: Desk) -> None:
    (id_,) = await desk.submit(new_job())
    order = await desk.ledger.dispatch.order_of(id_)
    assert order is not None
    name = order.engine_name
    theirs = [
        seen("1", name, RUNNING, run(1), user=UserName("eve")),
        seen("2", name.replace("train-", "other-"), RUNNING, run(1)),
        seen("3", name[:-1] + "2", RUNNING, run(1)),  # never sent so far
        seen("4", name.replace("-fw", "-fwx"), RUNNING, run(1)),
    ]
    assert (await desk.see(*theirs)).doubles == ()
    assert await desk.due() == [id_]
    rows = await desk.ledger.jobs.page(JobFilter(native=True))
    assert {row.engine_id for row in rows} == {"1", "2", "3", "4"}


async def test_native_jobs_and_arrays(desk: Desk) -> None:
    tasks = [
        seen(f"9_{i}", "sweep", WAITING, array_id=EngineId("9"), array_index=i, gpus=1) for i in (3, 1, 2)
    ]
    await desk.see(*tasks, seen("10", "plain", DONE, run(1, 2)))
    await desk.see(seen("9_4", "sweep", RUNNING, run(4), array_id=EngineId("9"), array_index=4))
    rows = sorted(await desk.ledger.jobs.page(JobFilter(name="sweep")), key=lambda row: row.id)
    assert [row.array_index for row in rows] == [1, 2, 3, 4]
    assert {row.array for row in rows} == {rows[0].id}
    assert all(row.native for row in rows)
    (plain,) = await desk.ledger.jobs.page(JobFilter(name="plain"))
    detail = await desk.detail(plain.id)
    assert (detail.spec, detail.engine_name, len(detail.attempts)) == (None, None, 1)
    assert (await desk.ledger.dispatch.order_of(plain.id)) is None


async def test_a_native_name_that_is_used_again_is_another_job(desk: Desk) -> None:
    first = seen("ns/a", "a", DONE, run(1, 2))
    await desk.see(first)
    again = seen("ns/a", "a", RUNNING, run(11), submitted_at=at(10))
    await desk.see(again)
    await desk.see(replace(again, state=DONE, attempts=(run(11, 12),), ended_at=at(12)))
    rows = await desk.ledger.jobs.page(JobFilter(name="a"))
    assert [(row.state, row.started_at, row.attempts) for row in rows] == [
        (DONE, at(11), 1),
        (DONE, at(1), 1),
    ]


async def test_preempted_and_requeued_is_a_new_attempt(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk)
    first = run(1, 5, Ending.PREEMPTED, reason="preempted by 12")
    await desk.see(seen(engine_id, name, RUNNING, run(1)))
    await desk.see(seen(engine_id, name, WAITING, first))
    assert (await desk.row(id_)).state is WAITING
    await desk.see(seen(engine_id, name, RUNNING, first, run(20)))
    await desk.see(seen(engine_id, name, DONE, run(20, 30), earlier_attempts=1))  # it forgot the first
    detail = await desk.detail(id_)
    assert [(a.number, a.attempt) for a in detail.attempts] == [(1, first), (2, run(20, 30))]
    assert (detail.row.attempts, detail.submission) == (2, 1)


async def test_what_an_engine_forgot_uncounted_stays(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk)
    await desk.see(seen(engine_id, name, RUNNING, run(1)))
    await desk.see(seen(engine_id, name, RUNNING, run(100)))  # a new start, the old one not mentioned
    detail = await desk.detail(id_)
    assert [(a.number, a.attempt.started_at, a.attempt.ending) for a in detail.attempts] == [
        (1, at(1), Ending.LOST),
        (2, at(100), None),
    ]


async def test_a_pod_that_is_gone_is_remembered(desk: Desk) -> None:
    """What is left of it began earlier, by however much, and tells no node: what was seen of it stays."""
    id_, engine_id, name = await submitted(desk)
    await desk.see(seen(engine_id, name, JobState.RUNNING, run(30)))
    left = replace(run(2, 90, Ending.TIMED_OUT), nodes=())
    await desk.see(seen(engine_id, name, JobState.TIMED_OUT, left))
    detail = await desk.detail(id_)
    assert detail.row.state is JobState.TIMED_OUT
    (only,) = detail.attempts
    assert only.attempt == run(30, 90, Ending.TIMED_OUT)


async def test_a_start_that_the_engine_forgot_stays(desk: Desk) -> None:
    """A container that restarted does not tell when it ran first, only when its pod came to the node."""
    id_, engine_id, name = await submitted(desk)
    await desk.see(seen(engine_id, name, RUNNING, run(60)))
    await desk.see(seen(engine_id, name, RUNNING, run(2), reason="CrashLoopBackOff"))
    detail = await desk.detail(id_)
    assert (detail.row.reason, [a.attempt for a in detail.attempts]) == ("CrashLoopBackOff", [run(60)])


async def test_attempts_that_were_never_seen_are_counted(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk)
    await desk.see(seen(engine_id, name, RUNNING, run(50), earlier_attempts=0))
    await desk.see(seen(engine_id, name, RUNNING, run(50), earlier_attempts=2))  # as its records tell
    detail = await desk.detail(id_)
    assert [a.number for a in detail.attempts] == [3]
    assert detail.row.attempts == 3


async def test_a_failed_job_comes_back(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk, **retries(2))
    kept = await desk.see(seen(engine_id, name, FAILED, run(1, 3, Ending.FAILED, exit_code=7)))
    assert kept.ended == ()
    row = await desk.row(id_)
    assert (row.state, row.code, row.engine_id, row.attempts) == (JobState.QUEUED, "Retry", None, 1)
    assert "exit code 7" in row.reason
    (order,) = await desk.ledger.dispatch.pending_submits("hpc", 9)
    assert (order.submission, order.attempts) == (2, 1)
    assert order.engine_name == name[:-1] + "2"
    await desk.see(seen(engine_id, name, FAILED, run(1, 3, Ending.FAILED, exit_code=7)))  # told again
    await desk.send(id_)
    await desk.see(seen(f"e{id_}-2", order.engine_name, DONE, run(10, 12)))
    detail = await desk.detail(id_)
    assert detail.row.state is DONE
    assert [(a.number, a.engine_id) for a in detail.attempts] == [(1, engine_id), (2, f"e{id_}-2")]
    kinds = [EventKind.SUBMITTED, EventKind.SENT, EventKind.RETRY, EventKind.SENT]
    assert sorted(e.kind for e in detail.events) == sorted(kinds)


async def test_retries_run_out(desk: Desk) -> None:
    id_, _, name = await submitted(desk, **retries(1))
    await desk.see(seen(f"e{id_}-1", name, FAILED, run(1, 2, Ending.FAILED)))
    (name,) = await desk.send(id_)
    kept = await desk.see(seen(f"e{id_}-2", name, FAILED, run(3, 4, Ending.FAILED)))
    assert kept.ended == (id_,)
    assert await desk.state(id_) is FAILED


async def test_back_off_is_waited_for(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk, **retries(3, first_seconds=600))
    await desk.see(seen(engine_id, name, FAILED, run(1, 2, Ending.FAILED)))
    assert await desk.state(id_) is JobState.QUEUED
    assert await desk.due() == []
    assert await desk.ledger.jobs.set_desired_state([id_], DesiredState.CANCEL, by="ann") == (id_,)
    assert await desk.state(id_) is CANCELLED


@pytest.mark.parametrize(
    ("spec", "state", "ending", "back"),
    [
        (retries(1), FAILED, Ending.NODE_LOST, True),
        (retries(1), CANCELLED, Ending.PREEMPTED, True),
        (retries(1), JobState.TIMED_OUT, Ending.TIMED_OUT, True),
        (retries(1), CANCELLED, Ending.CANCELLED, False),
        ({}, FAILED, Ending.NODE_LOST, False),
        ({}, CANCELLED, Ending.PREEMPTED, False),
        ({"tolerates": frozenset({Tolerates.PREEMPTION})}, CANCELLED, Ending.PREEMPTED, True),
        ({}, FAILED, Ending.FAILED, False),
    ],
)
async def test_who_comes_back(
    desk: Desk, spec: dict[str, object], state: JobState, ending: Ending, back: bool
) -> None:
    id_, engine_id, name = await submitted(desk, **spec)
    await desk.see(seen(engine_id, name, state, run(1, 2, ending)))
    assert (await desk.due() == [id_]) is back


async def test_what_people_ended_does_not_come_back(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk, **retries(5))
    await desk.ledger.jobs.set_desired_state([id_], DesiredState.CANCEL, by="bob")
    kept = await desk.see(seen(engine_id, name, FAILED, run(1, 2, Ending.FAILED, signal=15)))
    assert kept.ended == (id_,)
    assert [(e.kind, e.by) for e in (await desk.detail(id_)).events][-1] == (EventKind.CANCELLED, "bob")


async def test_an_old_engine_job_that_is_started_again_is_a_double(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk, **retries(1))
    failed = run(1, 2, Ending.FAILED)
    await desk.see(seen(engine_id, name, RUNNING, run(1)))
    await desk.see(seen(engine_id, name, FAILED, failed))
    assert (await desk.see(seen(engine_id, name, RUNNING, run(1)))).doubles == ()  # only an old sighting
    assert (await desk.see(seen(engine_id, name, WAITING, failed))).doubles == (engine_id,)  # requeued
    assert (await desk.see(seen(engine_id, name, RUNNING, failed, run(9)))).doubles == (engine_id,)
    assert await desk.due() == [id_]


async def test_hold_and_release_through_the_engine(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk)
    await desk.see(seen(engine_id, name, WAITING))
    await desk.ledger.jobs.set_desired_state([id_], DesiredState.HOLD, by="ann")
    assert [t.desired_state for t in await desk.ledger.dispatch.pending_actions("hpc", 9)] == [
        DesiredState.HOLD
    ]
    await desk.see(seen(engine_id, name, WAITING, reason="old news"))
    assert [t.desired_state for t in await desk.ledger.dispatch.pending_actions("hpc", 9)] == [
        DesiredState.HOLD
    ]
    await desk.see(seen(engine_id, name, HELD))
    assert await desk.ledger.dispatch.pending_actions("hpc", 9) == ()
    await desk.ledger.jobs.set_desired_state([id_], DesiredState.RUN, by="ann")
    assert [t.desired_state for t in await desk.ledger.dispatch.pending_actions("hpc", 9)] == [
        DesiredState.RUN
    ]
    await desk.see(seen(engine_id, name, WAITING))
    assert await desk.ledger.dispatch.pending_actions("hpc", 9) == ()
    row = await desk.row(id_)
    assert (row.state, row.desired_state) == (WAITING, DesiredState.RUN)


async def test_who_holds_by_the_engines_own_tool_is_not_overruled(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk)
    await desk.see(seen(engine_id, name, HELD, reason="JobHeldUser"))
    assert await desk.ledger.dispatch.pending_actions("hpc", 9) == ()
    assert (await desk.row(id_)).desired_state is DesiredState.HOLD
    await desk.see(seen(engine_id, name, RUNNING, run(1)))
    assert (await desk.row(id_)).desired_state is DesiredState.RUN


async def test_the_code_of_a_reason_is_kept_as_long_as_the_job_waits(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk, **retries(1))
    waits = seen(engine_id, name, WAITING, reason="Resources")
    await desk.see(waits)
    assert (await desk.row(id_)).reason_code == ""
    await desk.see(replace(waits, reason_code="NotEnoughFree"))  # a code alone is a change
    assert (await desk.row(id_)).reason_code == "NotEnoughFree"
    assert (await desk.ledger.capacity.waiting("hpc", WAITS_FOR_CAPACITY)) == {
        Supply(PoolName("hpc-a100")): 2
    }
    assert (await desk.ledger.capacity.waiting("hpc", ["TeamAtCeiling"])) == {}
    await desk.see(seen(engine_id, name, HELD, reason="JobHeldUser", reason_code="Held"))
    assert (await desk.row(id_)).reason_code == "Held"
    await desk.see(seen(engine_id, name, RUNNING, run(1)))
    assert (await desk.row(id_)).reason_code == ""


async def test_what_fairway_says_of_a_job_has_no_code_of_its_engine(desk: Desk, database_url: str) -> None:
    back, first_id, first = await submitted(desk, **retries(1))
    lost, second_id, second = await submitted(desk)
    never = (await desk.submit(new_job()))[0]
    (sent,) = await desk.submit(new_job())
    waits = {"reason": "Resources", "reason_code": "NotEnoughFree"}
    await desk.see(seen(first_id, first, WAITING, **waits), seen(second_id, second, WAITING, **waits))
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE job SET reason_code = 'NotEnoughFree' WHERE id = ANY(%s)", ([never, sent],)
        )
    await desk.see(seen(first_id, first, FAILED, run(1, 2, Ending.FAILED), **waits))
    async with desk.ledger.writing(desk.mirror) as tx:
        await tx.mirror.mark_lost([EngineId(second_id)])
    await desk.begin(never)
    async with desk.ledger.writing(desk.dispatch) as tx:
        await tx.dispatch.record_refused(
            [(never, 1, PermanentError("NoSuchPartition", "there is no gpu9", "fix it"))]
        )
    await desk.send(sent)
    rows = await desk.ledger.jobs.rows([back, lost, never, sent])
    found = {row.id: (row.code, row.reason_code) for row in rows}
    assert found == {back: ("Retry", ""), lost: ("Lost", ""), never: ("NoSuchPartition", ""), sent: ("", "")}


async def test_a_wish_an_engine_refuses_is_dropped(desk: Desk) -> None:
    id_, *_ = await submitted(desk)
    await desk.ledger.jobs.set_desired_state([id_], DesiredState.CANCEL, by="ann")
    async with desk.ledger.writing(desk.dispatch) as tx:
        await tx.dispatch.record_request_refused(
            [(id_, PermanentError("NotYours", "it is not yours", "ask"))]
        )
    assert await desk.ledger.dispatch.pending_actions("hpc", 9) == ()
    detail = await desk.detail(id_)
    assert detail.row.desired_state is DesiredState.RUN
    assert detail.events[-1].text == "NotYours: it is not yours"


async def test_a_refusal_is_told(desk: Desk) -> None:
    (id_,) = await desk.submit(new_job())
    await desk.begin(id_)
    async with desk.ledger.writing(desk.dispatch) as tx:
        await tx.dispatch.record_refused(
            [(id_, 1, PermanentError("NoSuchPartition", "there is no gpu9", "fix it"))]
        )
        await tx.dispatch.record_refused([(id_, 2, PermanentError("Other", "of another submission", "-"))])
    row = await desk.row(id_)
    assert (row.state, row.code, row.reason) == (JobState.REFUSED, "NoSuchPartition", "there is no gpu9")
    order = await desk.ledger.dispatch.order_of(id_)
    assert order is not None
    await desk.see(seen("5", order.engine_name, RUNNING, run(1)))  # it was made after all
    assert await desk.state(id_) is RUNNING


async def test_lost_and_found(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk, **retries(3))
    await desk.see(seen(engine_id, name, RUNNING, run(1)))
    async with desk.ledger.writing(desk.mirror) as tx:
        await tx.mirror.mark_lost([EngineId(engine_id), EngineId("unknown")])
    detail = await desk.detail(id_)
    assert detail.row.state is JobState.LOST
    assert detail.attempts[0].attempt.ending is Ending.LOST
    assert await desk.due() == []  # it may run for all anybody knows
    await desk.see(seen(engine_id, name, RUNNING, run(1)))
    detail = await desk.detail(id_)
    assert (detail.row.state, detail.attempts[0].attempt.ending) == (RUNNING, None)


async def test_a_lost_job_ended_when_it_was_last_seen(desk: Desk, database_url: str) -> None:
    """Whatever else the mirror wrote since it knew that a job is missing."""
    id_, engine_id, name = await submitted(desk)
    waiting, second_id, _ = await submitted(desk)
    await desk.see(seen(engine_id, name, RUNNING, run(1)), mark="m1")
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE mirror_mark SET at = %s", (at(40),))
    await desk.see(seen("native", "x", WAITING), mark="m2", complete=False)
    async with desk.ledger.writing(desk.mirror) as tx:
        await tx.mirror.mark_lost([EngineId(engine_id), EngineId(second_id)])
    detail = await desk.detail(id_)
    assert (detail.row.state, detail.row.ended_at) == (JobState.LOST, at(40))
    assert [a.attempt for a in detail.attempts] == [run(1, 40, Ending.LOST)]
    never = await desk.row(waiting)
    assert (never.state, never.started_at) == (JobState.LOST, None)
    assert never.ended_at is not None
    assert await desk.ledger.mirror.mark("hpc") == "m2"


async def test_an_attempt_that_the_engine_forgot_ended_when_it_was_last_seen(
    desk: Desk, database_url: str
) -> None:
    id_, engine_id, name = await submitted(desk)
    await desk.see(seen(engine_id, name, RUNNING, run(1)), mark="m1")
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE mirror_mark SET at = %s", (at(30),))
    await desk.see(seen(engine_id, name, WAITING, earlier_attempts=1), mark="m2")
    (attempt,) = (await desk.detail(id_)).attempts
    assert attempt.attempt == run(1, 30, Ending.LOST)


async def test_an_attempt_whose_node_went_while_nobody_looked_is_closed_as_the_engine_says(
    desk: Desk,
) -> None:
    id_, engine_id, name = await submitted(desk)
    await desk.see(seen(engine_id, name, RUNNING, run(1)), mark="m1")
    end = AttemptEnd(at(20), Ending.NODE_LOST, "no replacement for unhealthy node(s): n1")
    await desk.see(seen(engine_id, name, WAITING, earlier_attempts=1, earlier_end=end))
    await desk.see(seen(engine_id, name, RUNNING, run(90), earlier_attempts=1))  # and it says so no more
    assert [a.attempt for a in (await desk.detail(id_)).attempts] == [
        run(1, 20, Ending.NODE_LOST, reason=end.reason),
        run(90),
    ]


async def test_what_is_over_stays_so(desk: Desk) -> None:
    id_, engine_id, name = await submitted(desk)
    done = seen(engine_id, name, DONE, run(1, 3))
    await desk.see(done)
    for old in (seen(engine_id, name, RUNNING, run(1)), seen(engine_id, name, WAITING)):
        assert (await desk.see(old)).ended == ()
        assert await desk.state(id_) is DONE
    requeued = seen(engine_id, name, WAITING, run(1, 3), submitted_at=at(9))  # by hand, after its end
    await desk.see(requeued)
    assert await desk.state(id_) is WAITING


async def test_open_engine_ids(desk: Desk) -> None:
    _, engine_id, name = await submitted(desk)
    await desk.see(seen("native", "x", WAITING))
    assert await desk.ledger.dispatch.open_engine_ids("hpc") == {"native"}
    assert await desk.ledger.dispatch.open_engine_ids("hpc", 0) == {"native", engine_id}
    await desk.see(seen(engine_id, name, DONE, run(1, 2)), seen("native", "x", CANCELLED))
    assert await desk.ledger.dispatch.open_engine_ids("hpc", 0) == frozenset()


async def test_what_did_not_change_is_not_touched(desk: Desk, database_url: str) -> None:
    shown = [seen(f"n{i}", f"job{i}", RUNNING, run(i)) for i in range(50)]
    _, engine_id, name = await submitted(desk)
    shown.append(seen(engine_id, name, RUNNING, run(1)))
    await desk.see(*shown)
    with psycopg.connect(database_url, autocommit=True) as db:
        wanted = "SELECT 'job', id, xmin::text, ctid::text, xmax::text FROM job ORDER BY id"
        before = db.execute(wanted).fetchall()
        counts = "SELECT count(*), max(xmin::text::int) FROM attempt"
        attempts = db.execute(counts).fetchall()
        await desk.see(*shown)
        assert db.execute(wanted).fetchall() == before
        assert db.execute(counts).fetchall() == attempts
        await desk.see(replace(shown[3], reason="other"))
        changed = [a for a, b in zip(before, db.execute(wanted).fetchall(), strict=True) if a != b]
    assert len(changed) == 1


async def test_only_the_holder_of_the_lease_writes(desk: Desk, database_url: str) -> None:
    other = await Ledger.connect(database_url)
    assert await other.leases.take("mirror", "hpc", "b", 60) is None
    await desk.ledger.leases.release(desk.mirror)
    new = await other.leases.take("mirror", "hpc", "b", 60)
    assert new is not None
    with pytest.raises(LeaseLost):
        await desk.see(seen("1", "a", RUNNING, run(1)), mark="m")
    assert await other.jobs.page(JobFilter()) == ()
    assert await other.mirror.mark("hpc") is None
    await other.close()


async def test_a_lease_of_one_cluster_moves_no_job_of_another(desk: Desk) -> None:
    (id_,) = await desk.submit(new_job(cluster="cloud"))
    assert await desk.begin(id_) == frozenset()
    await desk.sent((id_, 1, "e1"))
    assert await desk.state(id_) is JobState.QUEUED


async def test_both_loops_at_once(desk: Desk) -> None:
    """The dispatch loop says what it sent while the mirror already sees it."""
    ids = await desk.submit(*(new_job(f"j{i}") for i in range(200)))
    await desk.begin(*ids)
    orders = await desk.ledger.dispatch.pending_submits("hpc", 1000)
    shown = [seen(f"e{o.id}", o.engine_name, RUNNING, run(1)) for o in orders]
    for start in range(0, 200, 40):
        part = slice(start, start + 40)
        kept, _ = await asyncio.gather(
            desk.see(*reversed(shown[part])),
            desk.sent(*((o.id, 1, f"e{o.id}") for o in orders[part])),
        )
        assert kept.doubles == ()
    rows = await desk.ledger.jobs.rows(ids)
    assert {row.engine_id for row in rows} == {f"e{id_}" for id_ in ids}
    assert await desk.due() == []


HISTORY = [
    (WAITING, ()),
    (RUNNING, (run(10),)),
    (WAITING, (run(10, 20, Ending.PREEMPTED),)),
    (RUNNING, (run(10, 20, Ending.PREEMPTED), run(40))),
    (DONE, (run(10, 20, Ending.PREEMPTED), run(40, 60))),
]


@pytest.mark.parametrize("native", [False, True])
async def test_any_order_and_any_repetition_of_sightings_ends_the_same(desk: Desk, native: bool) -> None:
    """Once the end was seen, nothing older undoes it, and every attempt is there once."""
    orders = [*itertools.permutations(range(len(HISTORY)))]
    random.Random(5).shuffle(orders)
    jobs = await desk.submit(*(new_job(f"j{i}") for i in range(40)))
    names = await desk.send(*jobs)
    chosen = [[*order, *random.Random(i).choices(range(5), k=3)] for i, order in enumerate(orders[:40])]
    for turn in range(8):
        batch: list[SeenJob] = []
        for id_, name, order in zip(jobs, names, chosen, strict=True):
            state, attempts = HISTORY[order[turn]]
            engine_id, shown = (f"n{id_}", f"native{id_}") if native else (f"e{id_}-1", name)
            batch.append(seen(engine_id, shown, state, *attempts))
        await desk.see(*batch)
    rows = await desk.ledger.jobs.page(JobFilter(native=native))
    assert len(rows) == 40
    for row in rows:
        attempts = tuple(a.attempt for a in (await desk.detail(row.id)).attempts)
        assert (row.state, row.attempts, attempts) == (DONE, 2, HISTORY[-1][1])


async def test_a_large_batch_is_quick(desk: Desk) -> None:
    shown = [seen(f"n{i}", f"job{i}", RUNNING, run(i % 50)) for i in range(2000)]
    clock = asyncio.get_running_loop().time
    started = clock()
    await desk.see(*shown)
    assert clock() - started < 5  # half a second on a quiet machine
    over = [replace(s, state=DONE, attempts=(run(0, 60),), ended_at=at(60)) for s in shown]
    started = clock()
    await desk.see(*over)
    assert clock() - started < 5


GPUS = "SELECT attempt, node, holders, gpus, ended_at FROM attempt_gpu WHERE job = %s ORDER BY 1, 2"


def gpus_of(database_url: str, id_: JobId) -> list[tuple[object, ...]]:
    with psycopg.connect(database_url) as connection:
        return connection.execute(GPUS, [id_]).fetchall()


async def test_where_exporters_show_an_attempt(desk: Desk, database_url: str) -> None:
    id_, engine_id, name = await submitted(desk)
    await desk.see(seen(engine_id, name, RUNNING, run(5)))
    assert gpus_of(database_url, id_) == [(1, "n1", [engine_id], [], None)]
    located = NodeGpus(NodeName("n1"), ("13", "12_1"), (2, 3))
    await desk.see(seen(engine_id, name, RUNNING, run(5, gpus=(located,))))
    assert gpus_of(database_url, id_) == [(1, "n1", ["13", "12_1"], [2, 3], None)]
    # A server that starts does not know it at first.
    unknown = replace(located, indices=())
    await desk.see(seen(engine_id, name, RUNNING, run(5, gpus=(unknown,))))
    assert gpus_of(database_url, id_) == [(1, "n1", ["13", "12_1"], [2, 3], None)]
    second = NodeGpus(NodeName("n1"), ("13",), (7,))
    first = run(5, 9, Ending.REQUEUED, gpus=(unknown,))
    await desk.see(seen(engine_id, name, RUNNING, first, run(20, gpus=(second,))))
    assert gpus_of(database_url, id_) == [
        (1, "n1", ["13", "12_1"], [2, 3], at(9)),
        (2, "n1", ["13"], [7], None),
    ]
    await desk.see(seen(engine_id, name, DONE, first, run(20, 30, gpus=(second,))))
    assert [row[4] for row in gpus_of(database_url, id_)] == [at(9), at(30)]


async def test_an_attempt_that_is_lost_leaves_its_gpus_until_it_is_found(
    desk: Desk, database_url: str
) -> None:
    id_, engine_id, name = await submitted(desk)
    await desk.see(seen(engine_id, name, RUNNING, run(5)), mark="m")
    async with desk.ledger.writing(desk.mirror) as tx:
        await tx.mirror.mark_lost([EngineId(engine_id)])
    assert gpus_of(database_url, id_)[0][4] is not None
    await desk.see(seen(engine_id, name, RUNNING, run(5)))
    assert gpus_of(database_url, id_)[0][4] is None


async def test_where_exporters_showed_old_attempts_is_forgotten(desk: Desk, database_url: str) -> None:
    id_, engine_id, name = await submitted(desk)
    await desk.see(seen(engine_id, name, RUNNING, run(5)))
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE attempt_gpu SET ended_at = now() - interval '32 days'")
    other, engine_id, name = await submitted(desk)
    await desk.see(seen(engine_id, name, RUNNING, run(5)))
    assert gpus_of(database_url, id_) == []
    assert len(gpus_of(database_url, other)) == 1


async def test_a_job_that_restarts_within_seconds_of_its_start_runs_again(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    ended = run(1, 2, Ending.PREEMPTED)
    await desk.see(seen("7", "quick", JobState.RUNNING, run(1)))
    await desk.see(seen("7", "quick", JobState.WAITING, ended))
    await desk.see(seen("7", "quick", JobState.RUNNING, run(1)))  # an old answer that came late
    (row,) = await ledger.jobs.page(JobFilter(name="quick"))
    assert (row.state, row.attempts) == (JobState.WAITING, 1)
    await desk.see(seen("7", "quick", JobState.RUNNING, ended, run(4)))
    (row,) = await ledger.jobs.page(JobFilter(name="quick"))
    assert (row.state, row.attempts) == (JobState.RUNNING, 2)
