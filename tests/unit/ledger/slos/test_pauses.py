"""The ledger notes when a job does not wait for GPUs, whoever changes the job and however."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from fairway.explain.pauses import PAUSE_CODES
from fairway.explain.reasons import REASONS
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import DesiredState
from fairway.model.job import JobId, JobState
from tests.unit.ledger.job_samples import Desk, after, new_job, run, seen


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def pauses(db: psycopg.Connection, job: JobId) -> list[tuple[bool, float | None]]:
    """Whether each is over, and by how much the job's waiting is shifted by then."""
    rows = db.execute(
        "SELECT job_pause.ended_at IS NOT NULL, EXTRACT(EPOCH FROM waits_from - submitted_at)::float8"
        " FROM job_pause JOIN job ON job.id = job WHERE job = %s ORDER BY job_pause.started_at",
        (job,),
    ).fetchall()
    return [(bool(over), None if shift is None else round(shift)) for over, shift in rows]


def test_the_codes_of_pauses_are_reasons_and_those_of_the_trigger(
    db: psycopg.Connection, ledger: Ledger
) -> None:
    assert REASONS.keys() >= PAUSE_CODES
    for code in REASONS:
        (paused,) = db.execute("SELECT job_is_paused('waiting', false, %s)", (code,)).fetchone() or ()
        assert paused == (code in PAUSE_CODES), code
    shown = [
        db.execute("SELECT job_is_paused(%s, %s, '')", values).fetchone()
        for values in (("held", False), ("queued", True), ("waiting", True), ("running", False))
    ]
    assert shown == [(True,), (True,), (False,), (False,)]


async def test_a_hold_of_a_user_is_a_pause_until_the_release(ledger: Ledger, db: psycopg.Connection) -> None:
    desk = await Desk.of(ledger)
    (job,) = await desk.submit(new_job())
    assert pauses(db, job) == []
    await ledger.jobs.set_desired_state([job], DesiredState.HOLD, by="ann")
    assert pauses(db, job) == [(False, None)]
    db.execute("UPDATE job_pause SET started_at = started_at - interval '1 hour'")
    await ledger.jobs.set_desired_state([job], DesiredState.RUN, by="ann")
    assert pauses(db, job) == [(True, 3600)]
    await ledger.jobs.set_desired_state([job], DesiredState.HOLD, by="ann")
    db.execute("UPDATE job_pause SET started_at = started_at - interval '30 minutes' WHERE ended_at IS NULL")
    await ledger.jobs.set_desired_state([job], DesiredState.CANCEL, by="ann")
    assert pauses(db, job) == [(True, 3600), (True, 5400)]


async def test_a_dependency_is_a_pause_from_the_submission_on(ledger: Ledger, db: psycopg.Connection) -> None:
    desk = await Desk.of(ledger)
    (first,) = await desk.submit(new_job())
    (job,) = await desk.submit(new_job(**after(first)))
    assert pauses(db, job) == [(False, None)]
    (name,) = await desk.send(first)
    await desk.see(seen(f"e{first}-1", name, JobState.DONE, run(0, 5)))
    assert await desk.due() == [job]
    assert pauses(db, job) == [(True, 0)]


async def test_a_native_job_that_was_held_is_paused_until_it_starts_by_its_engine(
    ledger: Ledger, db: psycopg.Connection
) -> None:
    """Its start is known later than it was: the pause did not last until then."""
    desk = await Desk.of(ledger)
    await desk.see(seen("7", "own", JobState.HELD))
    (job,) = [JobId(row[0]) for row in db.execute("SELECT id FROM job").fetchall()]
    assert pauses(db, job) == [(False, None)]
    await desk.see(seen("7", "own", JobState.WAITING, reason_code="AfterAnother"))
    assert pauses(db, job) == [(False, None)]
    await desk.see(seen("7", "own", JobState.RUNNING, run(60)))
    assert pauses(db, job) == [(True, 60)]


async def test_waiting_for_gpus_is_no_pause(ledger: Ledger, db: psycopg.Connection) -> None:
    desk = await Desk.of(ledger)
    for code in ("NotEnoughFree", "TeamAtCeiling", ""):
        await desk.see(seen("7", "own", JobState.WAITING, reason_code=code))
    await desk.see(seen("7", "own", JobState.RUNNING, run(60)))
    assert db.execute("SELECT count(*) FROM job_pause").fetchone() == (0,)
