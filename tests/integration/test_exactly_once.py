"""Exactly once: servers are killed -9, engines restarted, the ledger cut off, and every job is there once.

Small in every run, as large as the issue asks as a slow test:
    pytest tests/integration/test_exactly_once.py -m slow --junitxml build/once.xml   (keeps the figures)
FAIRWAY_ONCE_JOBS and FAIRWAY_ONCE_KILLS choose other sizes.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from fairway.ledger import Ledger
from fairway.ledger.job_records import EventKind, JobFilter, JobRow
from fairway.model.job import JobId, JobState, engine_name
from tests.integration.job_server import JobServers, job_servers, until
from tests.integration.server_process import Home, temporary_home

SEED = 20261115
SETTLE_SECONDS = 120
"""How long the last order may stay in doubt, be found or sent again, and be mirrored."""

ENGINES = [
    pytest.param("slurm-24", marks=pytest.mark.slurm),
    pytest.param("kubernetes", marks=pytest.mark.kubernetes),
]


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as made:
        yield made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ENGINES)
async def test_each_job_is_there_once_after_a_few_kills(
    engine: str, home: Home, ledger: Ledger, database_url: str, record_property: Callable[[str, object], None]
) -> None:
    jobs, kills = _size(60, 6)
    async with job_servers(engine, home, database_url, random.Random(SEED)) as servers:
        record_property("figures", await _prove(servers, ledger, jobs, kills, engine_restarts=1))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("engine", ENGINES)
async def test_each_job_is_there_once_after_two_hundred_kills(
    engine: str, home: Home, ledger: Ledger, database_url: str, record_property: Callable[[str, object], None]
) -> None:
    jobs, kills = _size(5000, 200)
    async with job_servers(engine, home, database_url, random.Random(SEED)) as servers:
        record_property("figures", await _prove(servers, ledger, jobs, kills, engine_restarts=3))


def _size(jobs: int, kills: int) -> tuple[int, int]:
    return int(os.environ.get("FAIRWAY_ONCE_JOBS", jobs)), int(os.environ.get("FAIRWAY_ONCE_KILLS", kills))


async def _prove(servers: JobServers, ledger: Ledger, jobs: int, kills: int, engine_restarts: int) -> str:
    started = time.monotonic()
    batches = max(1, jobs // 20)
    span = 2.2 * kills  # about what two slots take to be killed so often
    submitting = asyncio.create_task(servers.submit(jobs, span / batches / 2))
    cutting = asyncio.create_task(servers.keep_cutting(max(2.0, span / 30)))
    async with asyncio.TaskGroup() as chaos:
        for slot in range(len(servers.slots)):
            chaos.create_task(servers.keep_killing(slot, kills))
        chaos.create_task(servers.restart_engine(engine_restarts, span / (engine_restarts + 1)))
    cutting.cancel()
    numbers = await submitting
    chaos_seconds = time.monotonic() - started
    assert len(numbers) == len(set(numbers)) == jobs

    async def all_known() -> bool:
        rows = await _rows(ledger, numbers)
        return len(rows) == jobs and all(r.engine_id is not None for r in rows)

    try:
        settled = await until(all_known, SETTLE_SECONDS + jobs / 20, "every job has an engine job")
    except AssertionError as error:
        rows = await _rows(ledger, numbers)
        error.add_note(str(Counter((r.state, r.engine_id is not None, r.code, r.reason) for r in rows)))
        raise
    await asyncio.sleep(3)  # whatever would double one now had its time
    mark = await ledger.ledger_mark()
    made = await asyncio.to_thread(servers.engine_jobs, mark)
    rows = await _rows(ledger, numbers)
    should_be = {(engine_name(mark, r.id, 1, r.name), str(r.engine_id)) for r in rows}
    names = Counter(name for name, _ in made)
    assert {name: n for name, n in names.items() if n != 1} == {}, "doubled"
    assert {name for name, _ in should_be} - names.keys() == set(), "lost"
    assert set(made) == should_be
    assert not {r.state for r in rows} & {JobState.QUEUED, JobState.REFUSED, JobState.LOST}
    # and every engine job is in the ledger, once, as ours
    every = await _every(ledger)
    ours = Counter(str(r.engine_id) for r in every if not r.native)
    assert ours == Counter(str(r.engine_id) for r in rows)
    assert not [r for r in every if r.native and f"-fw{mark}-" in r.name]
    doubles = await _doubles(ledger, rows)
    assert doubles == 0
    return (
        f"{jobs} jobs, {servers.kills} kills, {servers.restarts} restarts of the engine, "
        f"{servers.cuts} connections cut in {chaos_seconds:.0f} s; settled {settled:.1f} s later"
    )


async def _rows(ledger: Ledger, numbers: list[JobId]) -> list[JobRow]:
    found: list[JobRow] = []
    for start in range(0, len(numbers), 1000):
        found += await ledger.job_rows(numbers[start : start + 1000])
    return found


async def _every(ledger: Ledger) -> list[JobRow]:
    found: list[JobRow] = []
    before = None
    while page := await ledger.jobs(JobFilter(), before=before, limit=2000):
        found += page
        before = page[-1].id
    return found


async def _doubles(ledger: Ledger, rows: list[JobRow]) -> int:
    """Second engine jobs that were found and ended: the last line of defence, and never needed."""
    count = 0
    for row in rows:
        detail = await ledger.job(row.id)
        assert detail is not None
        count += sum(event.kind is EventKind.DOUBLE for event in detail.events)
    return count
