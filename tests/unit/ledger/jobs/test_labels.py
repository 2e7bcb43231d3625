"""Projects and labels of jobs are kept by class, and a flood of values stays bounded."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from fairway.ledger import JobFilter, Ledger
from fairway.ledger.jobs.submit import JobClass, class_ids
from fairway.model.job import JobState
from fairway.model.labels import MAX_NEW_VALUES, OTHER_VALUE
from tests.unit.ledger.job_samples import Desk, new_job, run, seen

RUNNING = JobState.RUNNING


@pytest.fixture
async def desk(ledger: Ledger) -> Desk:
    return await Desk.of(ledger)


async def names(ledger: Ledger, **which: object) -> set[str]:
    return {row.name for row in await ledger.jobs.page(JobFilter(**which))}  # type: ignore[arg-type]


async def test_a_job_keeps_its_project_and_the_labels_for_cost(desk: Desk) -> None:
    new = replace(new_job("a", labels={"experiment": "e1", "note": "x"}), project="llm")
    (id_,) = await desk.submit(replace(new, labels=(("experiment", "e1"),)))
    row = await desk.row(id_)
    assert (row.project, row.labels) == ("llm", {"experiment": "e1"})
    detail = await desk.detail(id_)
    assert detail.spec is not None
    assert detail.spec.labels == {"experiment": "e1", "note": "x"}
    await desk.submit(new_job("b"))
    assert await names(desk.ledger, project="llm") == {"a"}
    assert await names(desk.ledger, labels=(("experiment", "e1"),)) == {"a"}
    assert await names(desk.ledger, labels=(("experiment", "e2"),)) == set()
    assert await names(desk.ledger, project="llm", labels=(("model", "m"),)) == set()


async def test_a_native_job_keeps_what_its_engine_told_last(desk: Desk) -> None:
    told = seen("9", "sweep", RUNNING, run(1), project="llm", labels=(("experiment", "e1"),))
    await desk.see(told)
    (row,) = await desk.ledger.jobs.page(JobFilter())
    assert (row.project, row.labels) == ("llm", {"experiment": "e1"})
    await desk.see(seen("9", "sweep", JobState.DONE, run(1, 5)))  # the records have neither
    (row,) = await desk.ledger.jobs.page(JobFilter())
    assert (row.state, row.project, row.labels) == (JobState.DONE, "llm", {"experiment": "e1"})
    await desk.see(replace(seen("9", "sweep", JobState.DONE, run(1, 5)), project="", labels=()))
    (row,) = await desk.ledger.jobs.page(JobFilter())
    assert (row.project, row.labels) == (None, {})


async def test_values_beyond_the_bound_are_other(ledger: Ledger, database_url: str) -> None:
    plain = JobClass("hpc", "ann", "research", "a100", "", "normal", native=True)

    def of(first: int, count: int) -> list[JobClass]:
        return [replace(plain, labels=(("experiment", f"e{n}"),)) for n in range(first, first + count)]

    async with ledger._connections.transaction() as connection:
        known = await class_ids(connection, of(0, MAX_NEW_VALUES - 1))
        assert len(set(known.values())) == MAX_NEW_VALUES - 1
        more = await class_ids(connection, of(MAX_NEW_VALUES, 500))
        assert len(set(more.values())) == 2  # the last that fits, and `(other)`
        again = await class_ids(connection, of(MAX_NEW_VALUES, 500))
        assert again == more
        assert await class_ids(connection, of(0, 5)) == {c: known[c] for c in of(0, 5)}
        # Each key has its own bound, and so have projects.
        beside = replace(plain, project="llm", labels=(("experiment", "e99999"), ("model", "m1")))
        (id_,) = (await class_ids(connection, [beside])).values()
    with psycopg.connect(database_url) as db:
        found = db.execute("SELECT project, labels FROM job_class WHERE id = %s", (id_,)).fetchone()
        assert found == ("llm", {"experiment": OTHER_VALUE, "model": "m1"})
        db.execute("UPDATE label_value SET added_at = added_at - interval '31 days'")
        db.commit()
    async with ledger._connections.transaction() as connection:  # the values of last month count no more
        later = await class_ids(connection, of(MAX_NEW_VALUES, 500))
    assert len(set(later.values())) == 500
