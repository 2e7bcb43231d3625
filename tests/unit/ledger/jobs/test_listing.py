"""Lists of jobs: for any filter and page exactly what a plain look at every job gives."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from fairway.ledger import JobFilter, JobRow, Ledger
from fairway.ledger.jobs import store
from fairway.ledger.records.jobs import JobSort, JobSortKey
from fairway.model.job import OPEN_JOBS, JobId, JobState, SeenJob, format_job_id
from fairway.model.names import NodeName, PoolName, TeamName, UserName
from fairway.model.team import Supply
from fairway.model.usage import HeldDevices
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
        (which.priority, row.priority),
    )
    return (
        all(wanted is None or wanted == found for wanted, found in pairs)
        and (not which.states or row.state in which.states)
        and (which.teams is None or row.team in which.teams)
        and (not which.name_begins or row.name.startswith(which.name_begins))
        and (which.name_contains is None or which.name_contains.lower() in row.name.lower())
        and (which.user_contains is None or which.user_contains.lower() in row.user.lower())
        and (which.submitted_after is None or row.submitted_at >= which.submitted_after)
        and (which.submitted_before is None or row.submitted_at < which.submitted_before)
    )


def some_filter(chance: random.Random) -> JobFilter:
    def maybe(*values: Any) -> Any:
        return chance.choice(values) if chance.random() < 0.2 else None

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
        teams=maybe(("research", "product"), ("none",), ()),
        priority=maybe("normal", "none"),
        name_begins=maybe(("tr",), ("sw", "x"), ("none",)) or (),
        name_contains=maybe("RAI", "wee", "none"),
        user_contains=maybe("n", "OB", "none"),
        once_an_array=chance.random() < 0.3,
    )


def once(rows: list[JobRow], which: JobFilter) -> list[JobRow]:
    """Of each array and class the first task that passes."""
    first: dict[object, JobId] = {}
    for row in reversed(rows):
        first.setdefault((row.array, row.pool, row.team, row.user), row.id)
    return [r for r in rows if r.array is None or first[r.array, r.pool, r.team, r.user] == r.id]


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
    rows = await ledger.jobs.page(JobFilter(), limit=2000)
    assert [row.id for row in rows] == sorted((row.id for row in rows), reverse=True)
    return list(rows)


@pytest.mark.parametrize(("newest", "probes"), [(4000, 40_000), (8, 40_000), (8, 0)])
async def test_any_filter_gives_what_a_plain_look_gives(
    filled: Ledger, monkeypatch: pytest.MonkeyPatch, newest: int, probes: int
) -> None:
    """By each of the ways there are."""
    monkeypatch.setattr(store, "NEWEST", newest)
    monkeypatch.setattr(store, "FEW_PROBES", probes and 5)
    monkeypatch.setattr(store, "MAX_PROBES", probes)
    rows = await all_rows(filled)
    assert any(row.native and row.submitted_at < NOW - timedelta(hours=1) for row in rows)  # late ones
    chance = random.Random(2)
    hits = 0
    for _ in range(200):
        which = some_filter(chance)
        before = chance.choice([None, None, chance.choice(rows).id])
        after = chance.choice([None, None, chance.choice(rows).id])
        limit = chance.choice([1, 2, 7])
        wanted = [r for r in rows if passes(r, which)]
        wanted = once(wanted, which) if which.once_an_array else wanted
        wanted = [r for r in wanted if (before is None or r.id < before) and (after is None or r.id > after)]
        wanted = wanted[:limit] if after is None else wanted[-limit:]
        found = await filled.jobs.page(which, before=before, after=after, limit=limit)
        assert list(found) == wanted, (which, before, after, limit)
        hits += bool(wanted)
    assert hits > 30


async def test_pages_put_together_are_the_whole(filled: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "NEWEST", 8)
    rows = await all_rows(filled)
    which = JobFilter(user="ann", states=(JobState.QUEUED, JobState.DONE))
    found: list[JobRow] = []
    while part := await filled.jobs.page(which, before=found[-1].id if found else None, limit=13):
        found += part
    assert found == [row for row in rows if passes(row, which)]


@pytest.mark.parametrize(("newest", "probes"), [(4000, 40_000), (8, 0)])
async def test_a_search_finds_by_a_part_of_name_or_user_or_the_beginning_of_an_id(
    filled: Ledger, monkeypatch: pytest.MonkeyPatch, newest: int, probes: int
) -> None:
    monkeypatch.setattr(store, "NEWEST", newest)
    monkeypatch.setattr(store, "MAX_PROBES", probes)
    rows = await all_rows(filled)
    for typed in (
        "tr",
        "TR",
        "rai",
        "AIN",
        "weep",
        "x",
        "ann",
        "b",
        "000",
        "00a",
        "00a1",
        "00A1",
        "none",
        "%",
        "tr_in",
        "'",
        "\\",
    ):
        for which in (JobFilter(), JobFilter(team="research"), JobFilter(states=(JobState.RUNNING,))):
            wanted = [row for row in rows if passes(row, which) and fits(row, typed)]
            found = list(await filled.jobs.page(which, search=typed, limit=5))
            assert found == wanted[:5], (typed, which)
            if found:
                older = await filled.jobs.page(which, search=typed, before=found[-1].id, limit=5)
                assert list(older) == wanted[5:10], (typed, which)
            if len(wanted) > 5:
                back = await filled.jobs.page(which, search=typed, after=wanted[5].id, limit=3)
                assert list(back) == wanted[2:5], (typed, which)
    assert any(fits(row, "tr") for row in rows)
    assert any(fits(row, "00a") for row in rows)


def fits(row: JobRow, typed: str) -> bool:
    part = typed.lower()
    names = part in row.name.lower() or part in row.user.lower()
    return names or (len(typed) >= 3 and format_job_id(row.id).startswith(part))


async def test_names_are_searched_for_a_part_in_a_bounded_number_of_jobs(
    filled: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No index finds a substring: older jobs are searched from their own cursor on."""
    monkeypatch.setattr(store, "NEWEST", 8)
    monkeypatch.setattr(store, "SEARCHED", 30)
    rows = await all_rows(filled)
    newest = await filled.jobs.newest_id()
    assert newest == rows[0].id
    found = await filled.jobs.page(JobFilter(), search="rain", limit=100)
    assert list(found) == [row for row in rows if "rain" in row.name and row.id > newest - 30]
    floor = JobId(newest - 29)
    older = await filled.jobs.page(JobFilter(), search="rain", before=floor, limit=100)
    assert list(older) == [row for row in rows if "rain" in row.name and floor - 30 <= row.id < floor]


def value_of(row: JobRow, key: JobSortKey, now: datetime) -> Any:
    """What a row is sorted by; None comes last."""
    match key:
        case JobSortKey.SUBMITTED:
            return row.id
        case JobSortKey.NAME:
            return row.name.lower()
        case JobSortKey.STATE:
            return list(JobState).index(row.state)
        case JobSortKey.GPUS:
            return row.devices
        case JobSortKey.ENDED:
            return row.ended_at
        case JobSortKey.TIME if row.state in OPEN_JOBS:
            running = row.state is JobState.RUNNING and row.started_at is not None
            return now - (row.started_at if running and row.started_at else row.submitted_at)
        case JobSortKey.TIME:
            return row.ended_at - row.started_at if row.ended_at and row.started_at else None
        case _:
            return getattr(row, key.value) or None


@pytest.mark.parametrize("key", JobSortKey)
@pytest.mark.parametrize("descending", [True, False])
async def test_a_list_is_sorted_by_any_column(filled: Ledger, key: JobSortKey, *, descending: bool) -> None:
    rows = await all_rows(filled)
    for which, search in (
        (JobFilter(), ""),
        (JobFilter(states=(JobState.RUNNING, JobState.DONE)), ""),
        (JobFilter(team="research", once_an_array=True), ""),
        (JobFilter(user="ann"), "rai"),
    ):
        matching = [row for row in rows if passes(row, which) and (not search or fits(row, search))]
        matching = once(matching, which) if which.once_an_array else matching
        valued = [row for row in matching if value_of(row, key, NOW) is not None]
        valued.sort(key=lambda row: value_of(row, key, NOW), reverse=descending)  # newest first among equals
        wanted = valued + [row for row in matching if value_of(row, key, NOW) is None]
        found: list[JobRow] = []
        while part := await filled.jobs.sorted_page(
            which, JobSort(key, descending), search=search, offset=len(found), limit=70
        ):
            found += part
        assert [row.id for row in found] == [row.id for row in wanted], which


async def test_a_bounded_number_of_jobs_is_sorted(filled: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_SORTED", 10)
    rows = await all_rows(filled)
    by_name = await filled.jobs.sorted_page(JobFilter(), JobSort(JobSortKey.NAME, descending=False))
    assert {row.id for row in by_name} == {row.id for row in rows[:10]}
    oldest = await filled.jobs.sorted_page(JobFilter(), JobSort(JobSortKey.SUBMITTED, descending=False))
    assert [row.id for row in oldest] == [row.id for row in rows[::-1][:10]]


@pytest.mark.parametrize("most", [1, 2, 5, 30])
async def test_long_pages_of_a_class_are_the_newest_of_it(
    filled: Ledger, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Also where the newest ids are tasks of few arrays, so that more have to be read."""
    monkeypatch.setattr(store, "MAX_SORTED", most)
    monkeypatch.setattr(store, "FEW_PROBES", 0)
    monkeypatch.setattr(store, "NEWEST", 0)
    rows = await all_rows(filled)
    for which in (
        JobFilter(team="research", once_an_array=True),
        JobFilter(user="ann", once_an_array=True, states=(JobState.DONE, JobState.RUNNING)),
        JobFilter(team="product", submitted_after=NOW - timedelta(minutes=200)),
    ):
        matching = [row for row in rows if passes(row, which)]
        wanted = once(matching, which) if which.once_an_array else matching
        for descending in (True, False):
            found = await filled.jobs.sorted_page(which, JobSort(JobSortKey.SUBMITTED, descending))
            newest = wanted[:most] if descending else wanted[::-1][:most]
            assert {row.id for row in found} == {row.id for row in newest}, which


async def test_open_jobs_are_counted_by_state_with_every_filter(filled: Ledger) -> None:
    rows = await all_rows(filled)
    for which, search in (
        (JobFilter(), ""),
        (JobFilter(team="product", states=(JobState.DONE,)), ""),
        (JobFilter(user="ann", submitted_after=NOW - timedelta(minutes=200)), "rain"),
        (JobFilter(once_an_array=True), "00a"),
    ):
        plain = replace(which, states=(), once_an_array=False)
        open_rows = [r for r in rows if r.state in OPEN_JOBS and passes(r, plain)]
        wanted = Counter(r.state for r in open_rows if not search or fits(r, search))
        assert await filled.jobs.count_open(which, search) == wanted, (which, search)


async def test_jobs_are_listed_by_the_node_they_run_on(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    there, elsewhere = run(1), replace(run(1), nodes=(NodeName("n2"), NodeName("n3")))
    await desk.see(
        seen("1", "here", JobState.RUNNING, there),
        seen("2", "elsewhere", JobState.RUNNING, elsewhere),
        seen("3", "moved", JobState.RUNNING, run(1, 2), elsewhere),
        seen("4", "ended", JobState.DONE, run(1, 2)),
        seen("5", "waiting", JobState.WAITING),
    )
    for more in ({}, {"states": (JobState.RUNNING,)}, {"user": "ann"}, {"name_begins": ("h", "m")}):
        found = await ledger.jobs.page(JobFilter(node="n1", **more))
        assert [row.name for row in found] == ["here"], more
    assert {row.name for row in await ledger.jobs.page(JobFilter(node="n3"))} == {"elsewhere", "moved"}
    assert await ledger.jobs.page(JobFilter(node="n4")) == ()


async def test_tasks_of_arrays_are_counted_and_what_jobs_held_is_summed(ledger: Ledger) -> None:
    desk = await Desk.of(ledger)
    tasks = await desk.submit(new_job(array=(0, 1, 2)))
    counts = await ledger.jobs.array_counts([tasks[0], JobId(999)])
    assert counts == {tasks[0]: {JobState.QUEUED: 3}}
    assert await ledger.jobs.array_counts([]) == {}
    now = datetime.now(UTC)
    assert await ledger.jobs.held([tasks[0]], now) == {}
    assert await ledger.jobs.held([], now) == {}
    await desk.see(seen("7", "mine", JobState.DONE, run(1, 5)))
    (row,) = await ledger.jobs.page(JobFilter(name="mine"))
    (attempt,) = (await ledger.jobs.one(row.id)).attempts  # type: ignore[union-attr]
    ended = attempt.attempt.ended_at
    assert ended is not None
    start, end = int(attempt.attempt.started_at.timestamp()), int(ended.timestamp())
    held = HeldDevices(attempt.attempt.devices, start, end, running=False)
    assert await ledger.jobs.held([row.id], now) == {row.id: [held]}
    assert held.devices > 0 and end > start
