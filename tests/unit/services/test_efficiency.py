"""Reports of what became of held GPU time, against plain sums of the rows."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from fairway.advise.right_size import name_pattern
from fairway.cost.calendar import Window
from fairway.cost.efficiency import EfficiencyRow
from fairway.cost.rounding import MILLIONTH, rounded
from fairway.ledger import Ledger, UsageFilter
from fairway.model.charge import ChargeKind, Label
from fairway.model.fleet import SiteEnergy
from fairway.model.gpu_use import HeldKind, MetricCode
from fairway.services.charges import Costs
from fairway.services.reports import CostReports, ReportQuery
from tests.unit.ledger.usage_samples import Row, moment
from tests.unit.services.cost_history import CLOUD, FLEET, HPC, NOW, OCTOBER, CostBook, fill, near

WATTS = 200.0
MEASURED = ("engine", "engine_seconds", "sm", "sm_seconds", "power", "power_seconds", "idle", "memory_peak")


@pytest.fixture
async def book(ledger: Ledger, database_url: str) -> AsyncIterator[CostBook]:
    made = CostBook(database_url)
    yield made
    made.close()


def measure(book: CostBook, rows: list[Row], seed: int = 3) -> dict[int, tuple[float, float, float]]:
    """Write what GPUs did in the rows' hours. Returns measured, busy and idle device-seconds of each row."""
    dice = random.Random(seed)
    found: dict[int, tuple[float, float, float]] = {}
    with book.db.transaction(), book.db.cursor() as cursor:
        for number, row in enumerate(rows):
            if row.of.user == "bob":
                continue  # his node has no exporter
            held = row.seconds * row.devices
            measured = held * dice.choice((0.5, 1.0, 1.0))
            idle = measured * dice.choice((0.0, 0.25, 1.0))
            busy = (measured - idle) * dice.random()
            found[number] = (measured, busy, idle)
            values = (busy, measured, busy / 2, measured, WATTS * measured, measured, idle, 20480.0)
            keys = {
                "use_hour (hour, class": (moment(row.hour), book.number(row.of)),
                "use_day (day, class": (book.local.day_of(row.hour), book.number(row.of)),
                "job_use (job, hour": (row.job, moment(row.hour)),
            }
            for key, value in keys.items():
                table, _, names = key.partition(" (")
                sums = ", ".join(f"{n} = {table}.{n} + excluded.{n}" for n in MEASURED[:-1])
                cursor.execute(
                    f"INSERT INTO {key}, {', '.join(MEASURED)}) VALUES (%s, %s, {', '.join(['%s'] * 8)})"
                    f" ON CONFLICT ({names}) DO UPDATE SET {sums}",
                    (*value, *values),
                )
    return found


LABELS: list[tuple[tuple[Label, ...], Callable[[Row], tuple[str, ...]]]] = [
    ((Label.TEAM,), lambda r: (r.of.team,)),
    ((Label.USER, Label.POOL), lambda r: (r.of.user, r.of.pool)),
    ((Label.CLUSTER, Label.SLICE), lambda r: (r.of.cluster, r.of.slice)),
    ((Label.DAY,), lambda r: (moment(r.hour).date().isoformat(),)),
    ((Label.NAME,), lambda r: (name_pattern(r.name),)),
    ((Label.PRIORITY, Label.NAME), lambda r: (r.of.priority, name_pattern(r.name))),
]


def part(row: Row) -> Fraction:
    return Fraction(1, 7) if row.of.slice else Fraction(1)


@pytest.mark.parametrize(("by", "labels"), LABELS)
async def test_held_time_by_what_the_gpus_did(
    ledger: Ledger, book: CostBook, by: tuple[Label, ...], labels: Callable[[Row], tuple[str, ...]]
) -> None:
    rows = await fill(ledger, book, OCTOBER, 10)
    figures = measure(book, rows)
    found = await CostReports(Costs(ledger)).efficiency(FLEET, ReportQuery("2026-10", by), NOW)
    wanted: dict[tuple[str, ...], dict[str, float]] = {}
    for number, row in enumerate(rows):
        sums = wanted.setdefault(labels(row), dict.fromkeys(("held", *HeldKind), 0.0))
        measured, busy, idle = figures.get(number, (0.0, 0.0, 0.0))
        held = row.seconds * row.devices
        sums["held"] += held * part(row) / 3600
        for kind, value in zip(HeldKind, (busy, measured - busy - idle, idle, held - measured), strict=True):
            sums[kind] += value * float(part(row)) / 3600
    assert {line.labels for line in found.table.rows} == set(wanted)
    for line in found.table.rows:
        assert float(line.held_hours) == pytest.approx(wanted[line.labels]["held"], abs=0.02)
        for kind in HeldKind:
            assert float(line.hours.get(kind, 0)) == pytest.approx(wanted[line.labels][kind], abs=0.02), kind
        check_sums(line)
    check_sums(found.table.total)
    usage = await CostReports(Costs(ledger)).usage(FLEET, ReportQuery("2026-10", by), NOW)
    assert near(found.table.total.held_hours, usage.table.total.gpu_hours)
    assert near(found.table.total.amount, await usage_cost(ledger, found.window))


async def usage_cost(ledger: Ledger, window: Window) -> Decimal:
    """Return the exact charges of usage, to six digits."""
    made = await Costs(ledger).charges(FLEET, window.span, (Label.TEAM,), now=NOW)
    return rounded(sum((c.amount for c in made if c.kind is ChargeKind.USAGE), Fraction(0)), MILLIONTH)


def check_sums(row: EfficiencyRow) -> None:
    assert sum(row.hours.values()) == row.held_hours
    assert sum(row.amounts.values()) == row.amount
    assert all(value >= 0 for value in (*row.hours.values(), *row.amounts.values()))


async def test_what_is_not_measured_has_no_means(ledger: Ledger, book: CostBook) -> None:
    rows = await fill(ledger, book, OCTOBER, 5)
    measure(book, rows)
    found = await CostReports(Costs(ledger)).efficiency(FLEET, ReportQuery("2026-10", (Label.USER,)), NOW)
    by_user = {row.labels[0]: row for row in found.table.rows}
    assert set(by_user["bob"].hours) == {HeldKind.UNMEASURED}
    assert by_user["bob"].use.ratio(MetricCode.ENGINE) is None
    assert by_user["bob"].kwh == 0
    assert by_user["alice"].use.ratio(MetricCode.SM) == pytest.approx(
        (by_user["alice"].use.ratio(MetricCode.ENGINE) or 0) / 2
    )
    assert by_user["alice"].use.ratio(MetricCode.POWER) == pytest.approx(WATTS)
    assert by_user["alice"].use.peak_memory_mib == 20480


async def test_a_team_sees_what_is_its_own(ledger: Ledger, book: CostBook) -> None:
    rows = await fill(ledger, book, OCTOBER, 6)
    measure(book, rows)
    reports = CostReports(Costs(ledger))
    for by in ((Label.USER,), (Label.NAME,)):
        every = await reports.efficiency(FLEET, ReportQuery("2026-10", (Label.TEAM, *by)), NOW)
        own = await reports.efficiency(
            FLEET, ReportQuery("2026-10", by, UsageFilter(teams=frozenset({"nlp"}))), NOW
        )
        wanted = {row.labels[1:]: row.use.measured for row in every.table.rows if row.labels[0] == "nlp"}
        assert {row.labels: row.use.measured for row in own.table.rows} == pytest.approx(wanted)


async def test_energy_and_carbon_dioxide(ledger: Ledger, book: CostBook) -> None:
    rows = await fill(ledger, book, OCTOBER, 6)
    figures = measure(book, rows)
    sites = {HPC: SiteEnergy(Decimal(400), Decimal("1.25")), CLOUD: SiteEnergy()}
    fleet = replace(FLEET, clusters=tuple(replace(c, energy=sites[c.name]) for c in FLEET.clusters))
    found = await CostReports(Costs(ledger)).efficiency(fleet, ReportQuery("2026-10", (Label.CLUSTER,)), NOW)
    for row in found.table.rows:
        of = [
            (r, figures[n][0]) for n, r in enumerate(rows) if n in figures and r.of.cluster == row.labels[0]
        ]
        kwh = sum(measured * WATTS for _, measured in of) / 3.6e6
        pue, grams = (1.25, 400) if row.labels[0] == HPC else (1, 0)
        assert float(row.kwh) == pytest.approx(kwh * pue, abs=0.01)
        assert float(row.co2_kg) == pytest.approx(kwh * pue * grams / 1000, abs=0.01)


@pytest.mark.parametrize("by", [(Label.POOL,), (Label.POOL, Label.DAY), (Label.CLUSTER,), (Label.SLICE,)])
async def test_waste_adds_up_to_what_it_was(ledger: Ledger, book: CostBook, by: tuple[Label, ...]) -> None:
    rows = await fill(ledger, book, OCTOBER, 10)
    reports = CostReports(Costs(ledger))
    query = ReportQuery("2026-10-01..2026-10-10", by)
    before = await reports.waste(FLEET, query, NOW)
    measure(book, rows)
    after = await reports.waste(FLEET, query, NOW)
    # Nothing of what the report said before changes; used hours are the sum of what became of them.
    nothing = {"used_hours": Decimal(0), "held_hours": {}, "held_amounts": {}}
    same = [[replace(r, **nothing) for r in x.rows] for x in (before, after)]  # type: ignore[arg-type]
    assert same[0] == same[1]
    assert all(near(a.used_hours, b.used_hours) for a, b in zip(before.rows, after.rows, strict=True))
    held = await usage_cost(ledger, before.window)
    for found in (before, after):
        for row in (*found.rows, found.total):
            assert sum(row.held_hours.values()) == row.used_hours
        assert near(sum(found.total.held_amounts.values(), Decimal(0)), held)
    assert {k for k, hours in before.total.held_hours.items() if hours} == {HeldKind.UNMEASURED}
    assert all(after.total.held_hours.values())
    assert all(after.total.held_amounts.values())
    coarse, daily = await reports.waste_by_day(FLEET, query, NOW)
    assert coarse.total == after.total
    # Rows are rounded so that they sum: by other rows a column may differ by a hundredth for each of them.
    for kind, hours in after.total.held_hours.items():
        assert abs(daily.total.held_hours[kind] - hours) <= len(daily.rows) * Decimal("0.01")
