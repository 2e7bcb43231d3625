"""Lists of jobs: for any filter and page exactly what a plain look at every job gives."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from fairway.ledger import JobFilter, JobRow, Ledger, job_pages
from fairway.model.job import JobId, JobState, SeenJob
from fairway.model.names import PoolName, TeamName, UserName
from fairway.model.team import Supply
from tests.unit.ledger.job_samples import Desk, new_job, run, seen

NOW = datetime.now(UTC)


def passes(row: JobRow, which: JobFilter) -> bool:
    pairs = (
        (which.cluster, row.cluster),
        (which.team, row.team),
        (which.user, row.user),
        (which.pool, row.pool),
        (which.name, row.name),
        (which.array, row.array),
        (which.native, row.native),
    )
    return (
        all(wanted is None or wanted == found for wanted, found in pairs)
        and (not which.states or row.state in which.states)
        and (which.submitted_after is None or row.submitted_at >= which.submitted_after)
        and (which.submitted_before is None or row.submitted_at < which.submitted_before)
    )


def some_filter(chance: random.Random) -> JobFilter:
    def maybe(*values: Any) -> Any:
        return chance.choice(values) if chance.random() < 0.35 else None

    ages = [NOW - timedelta(minutes=m) for m in (-1, 3, 30, 200, 5000)]
    states = tuple(chance.sample(list(JobState), chance.randint(1, 3))) if chance.random() < 0.5 else ()
    return JobFilter(
        cluster=maybe("hpc", "cloud", "none"),
        team=maybe("research", "product", "none"),
        user=maybe("ann", "bob", "eve", "none"),
        states=states,
        pool=maybe("hpc-a100", "rare", "none"),
        name=maybe("train", "sweep", "none"),
        array=maybe(JobId(1), JobId(5)) if chance.random() < 0.2 else None,
        native=maybe(True, False),
        submitted_after=maybe(*ages),
        submitted_before=maybe(*ages),
    )


def some_seen(chance: random.Random, number: int) -> SeenJob:
    state = chance.choice([JobState.WAITING, JobState.RUNNING, JobState.DONE, JobState.FAILED])
    ago = timedelta(minutes=chance.choice([0, 0, 0, 0, 5, 60, 3000]))
    return replace(
        seen(str(number), chance.choice(["train", "sweep", "x"]), state, run(1)),
        user=UserName(chance.choice(["ann", "bob"])),
        team=chance.choice([None, TeamName("research")]),
        supply=chance.choice([None, Supply(PoolName("hpc-a100")), Supply(PoolName("rare"))]),
        submitted_at=NOW - ago,
    )


@pytest.fixture
async def filled(ledger: Ledger) -> Ledger:
    chance = random.Random(1)
    desk = await Desk.of(ledger)
    await desk.submit(
        new_job(array=tuple(range(20))), new_job("sweep", cluster="cloud", pool="rare", user="eve")
    )
    number = 0
    for _ in range(6):
        await desk.submit(*(new_job(chance.choice(["train", "x"]), team="product") for _ in range(20)))
        batch = [some_seen(chance, number + i) for i in range(40)]
        number += 40
        await desk.see(*batch)
    # As if the last hours had gone by while they came: ids and minutes as the clock of ids knows them.
    async with ledger._connections.transaction() as connection:
        await connection.execute(text("DELETE FROM job_clock"))
        await connection.execute(
            text("UPDATE job SET submitted_at = submitted_at - make_interval(mins => (400 - id)::int)")
        )
        await connection.execute(
            text(
                "INSERT INTO job_clock SELECT date_trunc('minute', min(submitted_at)), id FROM job"
                " WHERE NOT late GROUP BY id ON CONFLICT DO NOTHING"
            )
        )
    return ledger


async def all_rows(ledger: Ledger) -> list[JobRow]:
    rows = await ledger.jobs(JobFilter(), limit=2000)
    assert [row.id for row in rows] == sorted((row.id for row in rows), reverse=True)
    return list(rows)


@pytest.mark.parametrize(("newest", "probes"), [(4000, 40_000), (8, 40_000), (8, 0)])
async def test_any_filter_gives_what_a_plain_look_gives(
    filled: Ledger, monkeypatch: pytest.MonkeyPatch, newest: int, probes: int
) -> None:
    """By each of the ways there are."""
    monkeypatch.setattr(job_pages, "NEWEST", newest)
    monkeypatch.setattr(job_pages, "FEW_PROBES", probes and 5)
    monkeypatch.setattr(job_pages, "MOST_PROBES", probes)
    rows = await all_rows(filled)
    assert any(row.native and row.submitted_at < NOW - timedelta(hours=1) for row in rows)  # late ones
    chance = random.Random(2)
    hits = 0
    for _ in range(150):
        which = some_filter(chance)
        before = chance.choice([None, None, chance.choice(rows).id])
        limit = chance.choice([1, 2, 7])
        wanted = [r for r in rows if passes(r, which) and (before is None or r.id < before)][:limit]
        assert list(await filled.jobs(which, before=before, limit=limit)) == wanted, (which, before, limit)
        hits += bool(wanted)
    assert hits > 30


async def test_pages_put_together_are_the_whole(filled: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_pages, "NEWEST", 8)
    rows = await all_rows(filled)
    which = JobFilter(user="ann", states=(JobState.QUEUED, JobState.DONE))
    found: list[JobRow] = []
    while part := await filled.jobs(which, before=found[-1].id if found else None, limit=13):
        found += part
    assert found == [row for row in rows if passes(row, which)]
