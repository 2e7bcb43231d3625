"""Reports against a plain sum of the rows: whatever they are asked, parts sum to the whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest

from fairway.cost.report import ReportColumn, hours
from fairway.ledger import Ledger, MonthClosed, MonthOpen, UsageFilter
from fairway.model.charge import ChargeKind, Label, Span
from fairway.model.errors import PermanentError
from fairway.model.names import TeamName
from fairway.model.price import Sharing
from fairway.services.charges import Costs
from fairway.services.reports import CostReports, ReportQuery
from fairway.services.statements import MonthStatements
from tests.unit.ledger.usage_samples import EXPERIMENT, Class, Row
from tests.unit.services.cost_history import FLEET, NOW, OCTOBER, CostBook, calendar, fill, near, with_rules

NLP = UsageFilter(teams=frozenset({"nlp"}))
RULES = [
    (Sharing.OWN_LINE, Sharing.OWN_LINE),
    (Sharing.BY_USAGE, Sharing.BY_GUARANTEE),
    (Sharing.BY_GUARANTEE, Sharing.BY_USAGE),
]


@pytest.fixture
async def book(ledger: Ledger, database_url: str) -> AsyncIterator[CostBook]:
    made = CostBook(database_url)
    yield made
    made.close()


def capacity_cost(days: int) -> Decimal:
    """October's by hand: 16 and 2 GPUs owned, 4 spot of 6 committed, and the month's overhead."""
    hours = 24 * days
    return hours * (18 * Decimal("1.37") + 6 * Decimal("0.31"))


@pytest.mark.parametrize(("idle", "overhead"), RULES)
@pytest.mark.parametrize(
    "by", [(Label.TEAM,), (Label.USER, Label.POOL), (Label.DAY, Label.TEAM), (Label.NAME,)]
)
async def test_a_month_is_all_it_cost(
    ledger: Ledger, book: CostBook, idle: Sharing, overhead: Sharing, by: tuple[Label, ...]
) -> None:
    await fill(ledger, book, OCTOBER, 31)
    fleet = with_rules(idle, overhead)
    answer = await CostReports(Costs(ledger)).cost(fleet, ReportQuery("2026-10", by), NOW)
    table = answer.table
    assert near(table.total.total, Decimal(capacity_cost(31)) + 1201)
    for column in ReportColumn:
        assert near(sum(r.amounts[column] for r in table.rows), table.total.amounts[column])
    if Sharing.OWN_LINE in (idle, overhead):
        assert {r.kind for r in table.rows if r.kind} >= {
            ChargeKind.IDLE,
            ChargeKind.DOWN,
            ChargeKind.OVERHEAD,
        }


async def test_gpu_hours_are_those_held_with_slices_by_their_part(ledger: Ledger, book: CostBook) -> None:
    rows = await fill(ledger, book, OCTOBER, 10)
    reports = CostReports(Costs(ledger))
    whole = sum(Fraction(r.seconds * r.devices) for r in rows if not r.of.slice)
    slices = sum(r.seconds * r.devices for r in rows if r.of.slice)
    wanted = (whole + Fraction(slices, 7)) / 3600  # seven of 1g.10gb are one GPU
    for answer in (
        await reports.usage(FLEET, ReportQuery("2026-10-01..2026-10-10", (Label.TEAM, Label.SLICE)), NOW),
        await reports.cost(FLEET, ReportQuery("2026-10-01..2026-10-10", (Label.USER,)), NOW),
    ):
        assert answer.table.total.gpu_hours == hours(wanted * 3600)
        assert answer.table.total.slice_seconds == slices
    by_slice = await reports.usage(FLEET, ReportQuery("2026-10", (Label.TEAM, Label.SLICE)), NOW)
    mig = {r.labels[0]: r.slice_seconds for r in by_slice.table.rows if r.labels[1] == "1g.10gb"}
    for team in ("vision", "product"):
        assert mig[team] == sum(r.seconds * r.devices for r in rows if r.of.slice and r.of.team == team)


@pytest.mark.parametrize(("idle", "overhead"), RULES)
async def test_a_team_sees_the_same_whoever_else_is_shown(
    ledger: Ledger, book: CostBook, idle: Sharing, overhead: Sharing
) -> None:
    await fill(ledger, book, OCTOBER, 20)
    fleet = with_rules(idle, overhead)
    costs = Costs(ledger)
    span = Span(calendar().day_start(OCTOBER), calendar().day_start(date(2026, 10, 21)))
    every = await costs.by_team(fleet, span, NOW)
    alone = await costs.charges(fleet, span, (Label.USER,), NLP, NOW)
    assert sum(c.amount for c in alone) == every[TeamName("nlp")]
    assert all(c.labels is not None for c in alone)
    own = await costs.charges(fleet, span, (Label.TEAM,), now=NOW)
    inside = sum(c.amount for c in own if c.labels and c.labels[0] in {"research", "nlp", "vision"})
    assert every[TeamName("research")] == inside
    alice = UsageFilter(teams=frozenset({"nlp"}), users=frozenset({"alice"}))
    bob = UsageFilter(teams=frozenset({"nlp"}), users=frozenset({"bob"}))
    nobody = UsageFilter(teams=frozenset({"nlp"}), users=frozenset({""}))
    parts = [await costs.charges(fleet, span, (Label.TEAM,), which, NOW) for which in (alice, bob, nobody)]
    assert sum(c.amount for made in parts for c in made) == every[TeamName("nlp")]


@pytest.mark.parametrize(("idle", "overhead"), RULES)
async def test_projects_and_labels_add_up_and_a_filter_shows_its_rows(
    ledger: Ledger, book: CostBook, idle: Sharing, overhead: Sharing
) -> None:
    await fill(ledger, book, OCTOBER, 5)
    fleet, reports = with_rules(idle, overhead), CostReports(Costs(ledger))
    whole = (await reports.cost(fleet, ReportQuery("2026-10", (Label.TEAM,)), NOW)).table.total
    by = (Label.PROJECT, EXPERIMENT)
    found = (await reports.cost(fleet, ReportQuery("2026-10", by), NOW)).table
    assert (found.total.total, found.total.gpu_hours) == (whole.total, whole.gpu_hours)
    shown = [row for row in found.rows if row.kind is None and row.gpu_hours]
    assert {row.labels for row in shown} == {
        ("llm", "e1"), ("llm", "e2"), ("eyes", "e1"), ("eyes", ""), ("", ""),
    }  # fmt: skip
    for row in shown:
        if all(row.labels):
            project, experiment = row.labels
            which = UsageFilter(projects=frozenset({project}), labels=(("experiment", experiment),))
            only = (await reports.cost(fleet, ReportQuery("2026-10", by, which), NOW)).table
            assert [one.labels for one in only.rows] == [row.labels]
            assert abs(only.total.total - row.total) <= Decimal("0.01")
    llm = UsageFilter(projects=frozenset({"llm"}))
    usage = (await reports.usage(fleet, ReportQuery("2026-10", (Label.USER,), llm), NOW)).table
    assert {row.labels for row in usage.rows} == {("alice",), ("bob",)}


async def test_most_rows_and_the_rest_in_one(ledger: Ledger, book: CostBook) -> None:
    await fill(ledger, book, OCTOBER, 5)
    reports = CostReports(Costs(ledger))
    whole = await reports.cost(FLEET, ReportQuery("2026-10", (Label.NAME,)), NOW)
    cut = await reports.cost(FLEET, ReportQuery("2026-10", (Label.NAME,), max_rows=3), NOW)
    assert cut.table.total == whole.table.total
    somebody = [r for r in cut.table.rows if r.kind is None]
    assert len(somebody) == 4
    assert somebody[-1].others == len([r for r in whole.table.rows if r.kind is None]) - 3
    assert near(sum(r.total for r in cut.table.rows), whole.table.total.total)


async def test_waste_is_what_was_there_less_what_was_used(ledger: Ledger, book: CostBook) -> None:
    rows = await fill(ledger, book, OCTOBER, 7)
    answer = await CostReports(Costs(ledger)).waste(FLEET, ReportQuery("2026-10", (Label.POOL,)), NOW)
    by_pool = {r.labels[0]: r for r in answer.rows}
    for pool, devices in (("a100", 16), ("mig", 14), ("spot", 4)):
        assert by_pool[pool].capacity_hours == devices * 24 * 7
        used = sum(Fraction(r.seconds * r.devices, 3600) for r in rows if r.of.pool == pool)
        assert abs(Fraction(by_pool[pool].used_hours) - used) <= Fraction(1, 100)
    assert by_pool["a100"].hours[ChargeKind.DOWN] == 24 * 7
    # Two committed GPUs were not there, all month as far as it is known.
    assert by_pool["spot"].amounts[ChargeKind.COMMITMENT] > 0
    assert near(answer.total.amount, sum(r.amount for r in answer.rows))


async def test_waste_beyond_the_limit_is_one_row(ledger: Ledger, book: CostBook) -> None:
    await fill(ledger, book, OCTOBER, 5)
    reports = CostReports(Costs(ledger))
    by = (Label.POOL, Label.DAY)
    whole = await reports.waste(FLEET, ReportQuery("2026-10", by), NOW)
    cut = await reports.waste(FLEET, ReportQuery("2026-10", by, max_rows=3), NOW)
    assert cut.total == whole.total
    *listed, rest = cut.rows
    assert (len(listed), rest.others, rest.labels) == (3, len(whole.rows) - 3, ("", ""))
    assert min(r.amount for r in listed) >= max(r.amount for r in whole.rows if r not in listed)
    assert near(sum(r.amount for r in cut.rows), whole.total.amount)
    assert near(sum(r.capacity_hours for r in cut.rows), whole.total.capacity_hours)
    assert near(sum(r.used_hours for r in cut.rows), whole.total.used_hours)
    assert not any(r.others for r in whole.rows)


async def test_days_of_a_zone_with_half_an_hour(ledger: Ledger, database_url: str) -> None:
    book = CostBook(database_url, calendar("Asia/Kolkata"))
    await fill(ledger, book, OCTOBER, 31)
    book.close()
    fleet = with_rules(Sharing.OWN_LINE, Sharing.OWN_LINE, "Asia/Kolkata")
    reports = CostReports(Costs(ledger))
    answer = await reports.cost(fleet, ReportQuery("2026-10", (Label.DAY,)), NOW)
    days = {r.labels[0] for r in answer.table.rows}
    assert (min(days), max(days), len(days)) == ("2026-10-01", "2026-10-31", 31)
    assert near(answer.table.total.total, Decimal(capacity_cost(31)) + 1201)


async def test_a_closed_month_stays_and_corrections_land_in_the_next(ledger: Ledger, book: CostBook) -> None:
    await fill(ledger, book, OCTOBER, 31)
    closing = MonthStatements(ledger, Costs(ledger))
    open_ = await closing.statement(FLEET, OCTOBER, NOW)
    assert open_.closed is None and open_.over
    assert open_.total == capacity_cost(31) + 1201
    report = await CostReports(Costs(ledger)).cost(FLEET, ReportQuery("2026-10", (Label.TEAM,)), NOW)
    for row in report.table.rows:
        if row.labels[0]:
            billed = sum(x.billed.amount for x in open_.lines if x.billed.team == row.labels[0])
            assert abs(billed - row.total) < Decimal("0.03")  # three columns, each divided among teams

    closed = await closing.close(FLEET, OCTOBER, "finance", NOW)
    assert closed.closed is not None and closed.closed.by == "finance"
    assert sorted(map(repr, closed.lines)) == sorted(map(repr, open_.lines))
    with pytest.raises(MonthClosed):
        await closing.close(FLEET, OCTOBER, "finance", NOW)

    # The engine says later that dan held eight GPUs for another hour.
    hour = calendar().day_start(date(2026, 10, 7)) + 3600 * 5
    await book.add(ledger, [Row(Class("hpc", "dan", "product", "a100"), hour, 3600, 3, job=4)])
    again = await closing.statement(FLEET, OCTOBER, NOW)
    assert again.lines == closed.lines
    november = await closing.statement(FLEET, date(2026, 11, 1), NOW)
    corrections = [x for x in november.lines if x.used_in == OCTOBER]
    amounts = {(x.billed.team, x.billed.kind): x.billed.amount for x in corrections}
    assert amounts["product", ChargeKind.USAGE] == Decimal("4.11")
    assert sum(amounts.values()) == 0  # what was idle was not, after all
    assert {x.used_in for x in (await closing.statement(FLEET, date(2026, 12, 1), NOW)).lines} <= {
        date(2026, 12, 1)
    }

    with pytest.raises(PermanentError, match="not over"):
        await closing.close(FLEET, date(2026, 11, 1), "finance", NOW)
    later = int(NOW + 40 * 86400)
    told = await closing.close(FLEET, date(2026, 11, 1), "finance", later)
    assert [x for x in told.lines if x.used_in == OCTOBER] == corrections
    december = await closing.statement(FLEET, date(2026, 12, 1), later)
    assert not [x for x in december.lines if x.used_in != date(2026, 12, 1)]  # told once, not twice


async def test_months_close_in_order(ledger: Ledger, book: CostBook) -> None:
    await fill(ledger, book, OCTOBER, 40)
    with pytest.raises(MonthOpen):
        await MonthStatements(ledger, Costs(ledger)).close(FLEET, date(2026, 11, 1), "x", NOW + 40 * 86400)


@pytest.mark.parametrize(("idle", "overhead"), RULES)
async def test_a_service_pays_for_what_its_replicas_held_whatever_else_there_is(
    ledger: Ledger, book: CostBook, idle: Sharing, overhead: Sharing
) -> None:
    await fill(ledger, book, OCTOBER, 5)
    serving = Class("hpc", "", "nlp", "a100", "", "normal", "Deployment", service=True)
    hour = calendar().day_start(OCTOBER)
    more = [
        Row(serving, hour + 3600 * n, 3600, 2, job=10_000 + n % 2, name=f"llm-{n % 2}") for n in range(20)
    ]
    await book.add(ledger, more)
    reports = CostReports(Costs(ledger))
    fleet = with_rules(idle, overhead)
    cost = (await reports.cost(fleet, ReportQuery("2026-10", (Label.SERVICE,)), NOW)).table
    whole = (await reports.cost(fleet, ReportQuery("2026-10", (Label.TEAM,)), NOW)).table
    assert cost.total.total == whole.total.total  # it is all there: services by name, the rest in one row
    hours = {row.labels[0]: row.gpu_hours for row in cost.rows if row.labels[0] and row.kind is None}
    assert hours == {"llm-0": 20, "llm-1": 20}
    kinds = (await reports.usage(fleet, ReportQuery("2026-10", (Label.KIND,)), NOW)).table
    assert {row.labels[0] for row in kinds.rows} == {"", "Deployment"}
