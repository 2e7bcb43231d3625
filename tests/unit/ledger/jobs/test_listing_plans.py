"""Lists of jobs with a large array on top: what PostgreSQL plans, and how many blocks it reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, text

from fairway.ledger import JobFilter, Ledger
from fairway.ledger.jobs import store
from fairway.ledger.records.jobs import JobSort, JobSortKey
from fairway.model.job import JobState
from fairway.model.names import TeamName, UserName
from tests.tier import sized

TASKS = 10_000
OLDER = sized(ci=30_000, nightly=1_000_000)

_CLASSES = text("""
    INSERT INTO job_class (cluster, user_name, team, pool, slice, priority, native)
    SELECT 'hpc', 'user-' || u, 'team-' || u % 5, 'a100', '', 'normal', false
    FROM generate_series(1, 50) AS u
""")
# Older single jobs that ended, then an array whose first half ended too.
_JOBS = text("""
    INSERT INTO job (
        id, class, cluster, name, state, gpus, nodes, devices, submission, array_first, array_index,
        submitted_at
    )
    SELECT i, first.class + CASE WHEN i < first.task THEN i % 50 ELSE 0 END, 'hpc',
        CASE WHEN i < first.task THEN 'run-' || i / 10 ELSE 'train' END,
        CASE WHEN i < first.task + :tasks / 2 THEN 'done' ELSE 'held' END, 1, 1, 1, 1,
        CASE WHEN i >= first.task THEN first.task END, CASE WHEN i >= first.task THEN i END, now()
    FROM (SELECT CAST(:older AS bigint) + 1 AS task, min(id) AS class FROM job_class) AS first,
        generate_series(1, CAST(:older AS bigint) + :tasks) AS i
""")


@contextmanager
def statements_of(ledger: Ledger) -> Iterator[list[tuple[str, Any]]]:
    """Collect the statements that the ledger executes, with their parameters."""
    found: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        found.append((statement, parameters))

    engine = ledger._connections._engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", note)


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes_of(inner)


async def plans_of(
    ledger: Ledger, statements: Iterable[tuple[str, Any]], how: str = ""
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Each statement with the plan that PostgreSQL makes of it; `how` are more options of EXPLAIN."""
    for statement, parameters in statements:
        async with ledger._connections.single() as connection:
            found = await connection.exec_driver_sql(f"EXPLAIN ({how}FORMAT JSON) {statement}", parameters)
        (explained,) = found.scalar_one()
        yield statement, explained["Plan"]


@pytest.mark.timeout(sized(ci=120, nightly=900))
@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_large_array_on_top_is_read_once(ledger: Ledger, *, analyzed: bool) -> None:
    async with ledger._connections.transaction(600) as connection:
        await connection.execute(text("SET LOCAL statement_timeout = 0"))
        await connection.execute(_CLASSES)
        await connection.execute(_JOBS, {"older": OLDER, "tasks": TASKS})
        if analyzed:
            await connection.execute(text("ANALYZE job, job_class"))
    for which in (
        JobFilter(once_an_array=True),
        JobFilter(once_an_array=True, states=(JobState.HELD,)),
        JobFilter(once_an_array=True, team="team-1"),
        JobFilter(once_an_array=True, user="user-1", states=(JobState.HELD, JobState.DONE)),
        JobFilter(once_an_array=True, name="train"),
    ):
        with statements_of(ledger) as statements:
            page = await ledger.jobs.page(which, limit=51)
        assert sum(row.array is not None for row in page) == 1, which
        blocks = 0
        async for statement, plan in plans_of(ledger, statements, "ANALYZE, BUFFERS, "):
            blocks += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            earlier = [node for node in nodes_of(plan) if node.get("Alias") == "earlier"]
            assert {node.get("Index Name") for node in earlier} <= {"job_array_idx"}, (which, statement)
        # A few blocks for each task, at each place of a statement that asks; none for each older job.
        assert blocks < 40 * TASKS, (which, blocks)
    for key in JobSortKey:
        with statements_of(ledger) as statements:
            page = await ledger.jobs.sorted_page(JobFilter(user="user-7"), JobSort(key), limit=51)
        assert len(page) == 51, key
        blocks = 0
        async for statement, plan in plans_of(ledger, statements, "ANALYZE, BUFFERS, "):
            blocks += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            jobs = [node for node in nodes_of(plan) if node.get("Relation Name") == "job"]
            assert "Seq Scan" not in {node["Node Type"] for node in jobs}, (key, statement)
        # A few blocks for each of the jobs that are sorted, however many there are.
        assert blocks < 10 * store.MAX_SORTED, (key, blocks)
    with statements_of(ledger) as statements:
        assert await ledger.jobs.count_open_of_user(UserName("user-1"), 20_000) == TASKS / 2
        assert await ledger.jobs.count_open_of_team(TeamName("team-1"), 100_000) == TASKS / 2
    async for statement, plan in plans_of(ledger, statements):
        jobs = [node for node in nodes_of(plan) if node.get("Relation Name") == "job"]
        scans = {node["Node Type"] for node in jobs}
        assert scans <= {"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}, (statement, scans)
