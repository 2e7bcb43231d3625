"""What jobs report is added once, to the day and class of each report, whoever else reports meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import date, timedelta

import pytest

from fairway.ledger import Ledger, TooManyUnits, UnitSum, UsageFilter
from fairway.ledger.usage import units as units_of_jobs
from fairway.model.charge import Dimension, JobLabel, Label
from fairway.model.cost_unit import MAX_TOTAL, MAX_UNITS
from fairway.model.job import JobId
from tests.unit.ledger.usage_samples import EXPERIMENT, Book, Class

DAY = date(2026, 10, 5)
EVERYBODY = UsageFilter()
ALL_DAYS = (date(2026, 1, 1), date(2026, 12, 31))


@pytest.fixture
async def book(ledger: Ledger, database_url: str) -> AsyncIterator[Book]:
    made = Book(database_url)
    made.job(1, Class())
    yield made
    made.close()


async def sums(
    ledger: Ledger, by: Sequence[Dimension] = (), which: UsageFilter = EVERYBODY, unit: str = "steps"
) -> dict[tuple[str, ...], int]:
    return {row.labels: row.units for row in await ledger.units.sums(unit, ALL_DAYS, by, which)}


async def report(ledger: Ledger, steps: int, job: int = 1, day: date = DAY) -> int:
    return (await ledger.units.report(JobId(job), {"steps": steps}, day)).added.get("steps", 0)


async def test_totals_count_once_and_a_restart_adds_nothing(ledger: Ledger, book: Book) -> None:
    assert [await report(ledger, n) for n in (100, 100, 250, 0, 180, 250, 251)] == [100, 0, 150, 0, 0, 0, 1]
    assert await ledger.units.of_job(JobId(1)) == {"steps": 251}
    assert await sums(ledger) == {(): 251}


async def test_what_is_new_counts_for_its_own_day(ledger: Ledger, book: Book) -> None:
    await report(ledger, 100)
    await report(ledger, 130, day=DAY + timedelta(days=1))
    assert await sums(ledger, (Label.DAY,)) == {("2026-10-05",): 100, ("2026-10-06",): 30}
    rows = await ledger.units.sums("steps", (DAY, DAY), (), EVERYBODY)
    assert rows == (UnitSum((), 100),)
    assert await ledger.units.sums("tokens", ALL_DAYS, (), EVERYBODY) == ()


async def test_reports_of_one_job_at_once_add_up_to_the_highest(ledger: Ledger, book: Book) -> None:
    dice = random.Random(7)
    told = [{"steps": dice.randrange(1000), "tokens": dice.randrange(10**6)} for _ in range(40)]
    found = await asyncio.gather(*(ledger.units.report(JobId(1), each, DAY) for each in told))
    for unit in ("steps", "tokens"):
        highest = max(each[unit] for each in told)
        assert sum(each.added.get(unit, 0) for each in found) == highest
        assert await sums(ledger, unit=unit) == {(): highest}


async def test_jobs_of_one_class_report_at_once(ledger: Ledger, book: Book) -> None:
    for job in range(1, 21):
        book.job(job, Class())
    both = [{"steps": 5, "tokens": 7}, {"tokens": 9, "steps": 6}]
    await asyncio.gather(*(ledger.units.report(JobId(n), each, DAY) for n in range(1, 21) for each in both))
    assert (await sums(ledger), await sums(ledger, unit="tokens")) == ({(): 120}, {(): 180})


async def test_sums_are_those_of_the_classes_by_any_group_and_filter(ledger: Ledger, book: Book) -> None:
    classes = [
        Class("hpc", "ann", "nlp", "a100", project="llm", experiment="e1"),
        Class("hpc", "bob", "nlp", "a100", priority="low", project="llm", experiment="e2"),
        Class("hpc", "ann", "vision", "mig", "1g.10gb", experiment="e1"),
        Class("cloud", "eve", "", "spot"),
        Class("cloud", "eve", "", ""),  # in no pool: it counts nevertheless
    ]
    told = {}
    for n, of in enumerate(classes, 2):
        book.job(n, of)
        told[of] = 10 ** (n - 1)
        await report(ledger, told[of], job=n)
    assert await sums(ledger) == {(): sum(told.values())}
    for label, field in (
        (Label.TEAM, "team"), (Label.USER, "user"), (Label.PROJECT, "project"), (Label.POOL, "pool"),
        (Label.PRIORITY, "priority"), (Label.CLUSTER, "cluster"), (Label.SLICE, "slice"),
        (Label.KIND, "kind"), (EXPERIMENT, "experiment"),
    ):  # fmt: skip
        wanted: dict[tuple[str, ...], int] = {}
        for of, steps in told.items():
            key = (getattr(of, field),)
            wanted[key] = wanted.get(key, 0) + steps
        assert await sums(ledger, (label,)) == wanted
    by = (Label.USER, JobLabel("label:experiment"))
    nlp = UsageFilter(teams=frozenset({"nlp"}))
    assert await sums(ledger, by, nlp) == {("ann", "e1"): 10, ("bob", "e2"): 100}
    assert await sums(ledger, (), UsageFilter(pools=frozenset({"a100"}))) == {(): 110}
    assert await sums(ledger, (), replace(nlp, labels=(("experiment", "e2"),))) == {(): 100}
    assert await sums(ledger, (), UsageFilter(projects=frozenset({"other"}))) == {}


async def test_what_was_added_stays_with_the_class_that_the_job_had(ledger: Ledger, book: Book) -> None:
    await report(ledger, 100)
    later = Class(pool="spot")
    book.db.execute("UPDATE job SET class = %s WHERE id = 1", (book.number(later),))
    await report(ledger, 150)
    assert await sums(ledger, (Label.POOL,)) == {("a100",): 100, ("spot",): 50}


async def test_a_job_has_few_units(ledger: Ledger, book: Book) -> None:
    many = {f"u{n}": 1 for n in range(MAX_UNITS)}
    await ledger.units.report(JobId(1), many, DAY)
    with pytest.raises(TooManyUnits, match="at most 4 units") as caught:
        await ledger.units.report(JobId(1), {"u0": 2, "one-more": 5}, DAY)
    assert (caught.value.code, "u1, u2, u3" in caught.value.hint) == ("TooManyUnits", True)
    assert await ledger.units.of_job(JobId(1)) == many  # nothing of it was stored
    assert await ledger.units.names() == ("u0", "u1", "u2", "u3")


async def test_a_fleet_has_few_new_units_a_month(
    ledger: Ledger, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units_of_jobs, "MAX_NEW_UNITS", 2)
    book.job(2, Class())
    await ledger.units.report(JobId(1), {"steps": 1, "tokens": 1}, DAY)
    with pytest.raises(TooManyUnits) as caught:
        await ledger.units.report(JobId(2), {"steps": 3, "samples": 1}, DAY)
    assert (caught.value.code, "steps, tokens" in caught.value.hint) == ("TooManyUnitNames", True)
    assert await report(ledger, 3, job=2) == 3
    book.db.execute("UPDATE unit_name SET added_at = added_at - interval '31 days'")
    await ledger.units.report(JobId(2), {"samples": 1}, DAY)


async def test_sums_do_not_overflow(ledger: Ledger, book: Book) -> None:
    await report(ledger, MAX_TOTAL)
    book.db.execute("UPDATE unit_day SET units = units * 100000")
    book.job(2, Class())
    await report(ledger, MAX_TOTAL, job=2)
    assert await sums(ledger) == {(): MAX_TOTAL * 100_001}
