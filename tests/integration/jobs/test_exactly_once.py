"""Exactly once: servers are killed -9, engines restarted, the ledger cut off, and every job is there once.

Small on each engine in every run; nightly with both engines behind one ledger, 2,500 jobs to each:
    FAIRWAY_TESTS=nightly pytest tests/integration/jobs/test_exactly_once.py -n 0 --junitxml build/once.xml
FAIRWAY_ONCE_JOBS (an engine) and FAIRWAY_ONCE_KILLS choose other sizes, FAIRWAY_SCENARIOS_ON other instances:
    FAIRWAY_SCENARIOS_ON=slurm-24=my-slurm,kubernetes=my-kubernetes
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TypeVar

import pytest

from fairway.ledger import Ledger
from fairway.ledger.records.jobs import EventKind, JobFilter, JobRow
from fairway.model.errors import TemporaryError
from fairway.model.job import JobId, JobState, engine_name
from tests.integration.jobs.job_server import JobServers, Target, job_servers
from tests.integration.server_process import Home, temporary_home

Answer = TypeVar("Answer")

log = logging.getLogger("figures")  # shown by --log-cli-level=INFO

SEED = 20261115
SETTLE_SECONDS = 400
"""How long nothing may come of the last orders: to be in doubt, found or sent again, and be mirrored."""

ENGINES = [
    pytest.param("slurm-24", marks=pytest.mark.slurm),
    pytest.param("kubernetes", marks=pytest.mark.kubernetes),
]


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as made:
        yield made


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ENGINES)
async def test_each_job_is_there_once_after_a_few_kills(
    engine: str, home: Home, ledger: Ledger, database_url: str, record_property: Callable[[str, object], None]
) -> None:
    jobs, kills = _size(60, 6)
    async with job_servers([engine], home, database_url, random.Random(SEED)) as servers:
        record_property("figures", await _prove(servers, ledger, jobs, kills, engine_restarts=1))


@pytest.mark.nightly("5,000 jobs and 200 kills; CI runs 60 jobs and 6 kills an engine")
@pytest.mark.slurm
@pytest.mark.kubernetes
@pytest.mark.timeout(7200)
async def test_each_job_is_there_once_after_two_hundred_kills(
    home: Home, ledger: Ledger, database_url: str, record_property: Callable[[str, object], None]
) -> None:
    jobs, kills = _size(2500, 200)
    async with job_servers(["slurm-24", "kubernetes"], home, database_url, random.Random(SEED)) as servers:
        figures = await _prove(servers, ledger, jobs, kills, engine_restarts=3)
        log.info(figures)
        record_property("figures", figures)


def _size(jobs: int, kills: int) -> tuple[int, int]:
    return int(os.environ.get("FAIRWAY_ONCE_JOBS", jobs)), int(os.environ.get("FAIRWAY_ONCE_KILLS", kills))


async def _prove(servers: JobServers, ledger: Ledger, jobs: int, kills: int, engine_restarts: int) -> str:
    started = time.monotonic()
    async with asyncio.TaskGroup() as chaos:
        submitting = chaos.create_task(servers.submit(jobs, kills))
        for slot in range(len(servers.slots)):
            chaos.create_task(servers.keep_killing(slot, kills))
        chaos.create_task(servers.keep_cutting(max(2.0, kills / 30), kills))
        for target in servers.targets:
            chaos.create_task(servers.restart_engine(target, engine_restarts, kills))
    made = submitting.result()
    chaos_seconds = time.monotonic() - started
    mark = await _told(ledger.jobs.mark)
    everyone = [number for numbers in made.values() for number in numbers]
    unsent = sum(row.engine_id is None for row in await _rows(ledger, everyone))
    settled = await _settle(ledger, everyone)
    await asyncio.sleep(3)  # whatever would double one now had its time
    for target in servers.targets:
        numbers = made[target.engine]
        assert len(numbers) == len(set(numbers)) == jobs
        await _is_there_once(target, ledger, mark, numbers)
    # and every engine job is in the ledger, once, as ours
    rows = await _rows(ledger, everyone)
    every = await _every(ledger)
    ours = Counter((r.cluster, str(r.engine_id)) for r in every if not r.native)
    assert ours == Counter((r.cluster, str(r.engine_id)) for r in rows)
    assert not [r for r in every if r.native and f"-fw{mark}-" in r.name]
    assert await _doubles(ledger, rows) == 0
    return (
        f"{jobs} jobs to each of {', '.join(t.engine for t in servers.targets)}, {servers.kills} kills "
        f"({servers.young} of servers that began), {servers.restarts} restarts of engines, {servers.cuts} "
        f"connections cut in {chaos_seconds:.0f} s; the last {unsent} jobs were sent {settled:.0f} s later"
    )


async def _is_there_once(target: Target, ledger: Ledger, mark: str, numbers: list[JobId]) -> None:
    """The engine, asked by its own tools, has one job for each of these and no other of this ledger."""
    made = await asyncio.to_thread(target.made, mark)
    rows = await _rows(ledger, numbers)
    should_be = {(engine_name(mark, r.id, 1, r.name), str(r.engine_id)) for r in rows}
    names = Counter(name for name, _ in made)
    assert {name: n for name, n in names.items() if n != 1} == {}, "doubled"
    assert {name for name, _ in should_be} - names.keys() == set(), "lost"
    assert set(made) == should_be
    assert not {r.state for r in rows} & {JobState.QUEUED, JobState.REFUSED, JobState.LOST}


async def _settle(ledger: Ledger, numbers: list[JobId]) -> float:
    """Wait until each has an engine job, as long as there are ever more that have one; seconds it took."""
    started = moved = time.monotonic()
    known = -1
    while known < len(numbers):
        rows = await _rows(ledger, numbers)
        now = sum(r.engine_id is not None for r in rows)
        if now > known:
            known, moved = now, time.monotonic()
        if time.monotonic() - moved > SETTLE_SECONDS:
            states = Counter((r.cluster, r.state, r.engine_id is not None, r.code, r.reason) for r in rows)
            raise AssertionError(f"not every job has an engine job: {states}")
        await asyncio.sleep(0.5)
    return time.monotonic() - started


async def _rows(ledger: Ledger, numbers: list[JobId]) -> list[JobRow]:
    found: list[JobRow] = []
    for start in range(0, len(numbers), 200):
        found += await _told(partial(ledger.jobs.rows, numbers[start : start + 200]))
    return found


async def _told(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """What the ledger says once it can: it may be busy, or was cut off this moment."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        try:
            return await ask()
        except TemporaryError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(1)


async def _every(ledger: Ledger) -> list[JobRow]:
    found: list[JobRow] = []
    before = None
    while page := await _told(partial(ledger.jobs.page, JobFilter(), before=before, limit=500)):
        found += page
        before = page[-1].id
    return found


async def _doubles(ledger: Ledger, rows: list[JobRow]) -> int:
    """Second engine jobs that were found and ended: the last line of defence, and never needed."""
    count = 0
    for row in rows:
        detail = await _told(partial(ledger.jobs.one, row.id))
        assert detail is not None
        count += sum(event.kind is EventKind.DOUBLE for event in detail.events)
    return count
