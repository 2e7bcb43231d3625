"""Held GPU time over time: by hour and by day, every second of it in exactly one kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date, datetime, timedelta
from decimal import Decimal

import pytest

from fairway.ledger import Ledger
from fairway.model.charge import Label
from fairway.model.gpu_use import HeldKind
from fairway.model.names import PoolName
from fairway.services.charges import Costs
from fairway.services.reports import CostReports, ReportQuery
from fairway.services.use_history import use_history
from tests.unit.ledger.usage_samples import Row, moment
from tests.unit.services.cost_history import FLEET, NOW, OCTOBER, CostBook, fill
from tests.unit.services.test_efficiency import measure, part

DAYS = 10


@pytest.fixture
async def book(ledger: Ledger, database_url: str) -> AsyncIterator[CostBook]:
    made = CostBook(database_url)
    yield made
    made.close()


def read_up_to(book: CostBook, at: datetime) -> None:
    book.db.execute("INSERT INTO telemetry_mark VALUES ('hpc', %s, 30)", [at])


def wanted(
    rows: list[Row], figures: dict[int, tuple[float, float, float]], *, by_day: bool, **which: str
) -> dict[int, dict[str, float]]:
    """What became of the seconds of each hour or day, summed row by row."""
    found: dict[int, dict[str, float]] = {}
    for number, row in enumerate(rows):
        if any(getattr(row.of, name) != value for name, value in which.items()):
            continue
        measured, busy, idle = figures.get(number, (0.0, 0.0, 0.0))
        held = row.seconds * row.devices
        sums = found.setdefault(row.hour // 86_400 * 86_400 if by_day else row.hour, {})
        kinds = zip(HeldKind, (busy, measured - busy - idle, idle, held - measured), strict=True)
        for kind, seconds in kinds:
            sums[kind] = sums.get(kind, 0.0) + seconds * float(part(row))
    return found


@pytest.mark.parametrize("days", [5, DAYS])
async def test_every_held_second_is_of_one_kind(ledger: Ledger, book: CostBook, days: int) -> None:
    rows = await fill(ledger, book, OCTOBER, DAYS)
    figures = measure(book, rows)
    end = moment(book.local.day_start(OCTOBER + timedelta(days=DAYS)))
    read_up_to(book, end)
    for pool, teams in ((None, None), (PoolName("mig"), None), (None, frozenset({"vision"}))):
        found = await use_history(ledger, FLEET, days, pool=pool, teams=teams)
        assert found is not None
        assert found.by_day is (days == DAYS)
        which = ({"pool": pool} if pool else {}) | ({"team": "vision"} if teams else {})
        truth = wanted(rows, figures, by_day=found.by_day, **which)
        assert len(found.spans) == (DAYS if found.by_day else days * 24)
        for held in found.spans:
            right = truth.get(held.span.start, {})
            assert sum(held.seconds.values()) == pytest.approx(sum(right.values()), abs=0.1)
            for kind in HeldKind:
                assert held.seconds.get(kind, 0.0) == pytest.approx(right.get(kind, 0.0), abs=0.1), kind
    assert truth, "there was something to compare"


async def test_the_last_hour_ends_where_metrics_are_read_to(ledger: Ledger, book: CostBook) -> None:
    assert await use_history(ledger, FLEET, 1) is None
    await fill(ledger, book, date(2026, 10, 1), 1)
    read_up_to(book, moment(book.local.day_start(OCTOBER)) + timedelta(hours=5, minutes=20))
    found = await use_history(ledger, FLEET, 1)
    assert found is not None
    last = found.spans[-1]
    assert last.span.end - last.span.start == 1200
    assert set(last.seconds) <= {HeldKind.UNMEASURED}, "what nobody measured is not idle"
    assert await use_history(ledger, FLEET, 1, pool=PoolName("spot")) is None


async def test_who_held_idle_gpus_is_as_the_report_has_it(ledger: Ledger, book: CostBook) -> None:
    measure(book, await fill(ledger, book, OCTOBER, DAYS))
    query = ReportQuery("2026-10", (Label.TEAM, Label.USER, Label.POOL))
    reports = CostReports(Costs(ledger))
    report = await reports.efficiency(FLEET, query, NOW)
    idle = [row for row in report.table.rows if row.hours.get(HeldKind.IDLE)]
    largest = sorted(idle, key=lambda row: -row.amounts[HeldKind.IDLE])[:4]
    found = await reports.idle_holders(FLEET, query, 4, NOW)
    assert [holder.labels for holder in found] == [row.labels for row in largest]
    for holder, row in zip(found, largest, strict=True):
        assert holder.idle_hours == pytest.approx(float(row.hours[HeldKind.IDLE]), abs=0.02)
        assert holder.amount == pytest.approx(float(row.amounts[HeldKind.IDLE]), abs=0.02)
        measured = sum(row.hours.values()) - row.hours.get(HeldKind.UNMEASURED, Decimal(0))
        assert holder.measured_hours == pytest.approx(float(measured), abs=0.02)
