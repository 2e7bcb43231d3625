"""Cost of a unit: rows have what jobs reported, by any group, and costs divided by it are right by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest

from fairway.cost.report import ReportRow
from fairway.cost.unit_cost import cost_per
from fairway.ledger import Ledger, Token, UsageFilter
from fairway.model.access import Role
from fairway.model.charge import Dimension, JobLabel, Label
from fairway.model.cost_unit import CostUnit
from fairway.model.job import JobId
from fairway.model.names import TeamName, UserName
from fairway.model.price import Sharing
from fairway.services.charges import Costs
from fairway.services.cost_queries import CostQueries, CostRequest
from fairway.services.errors import RequestError
from fairway.services.fleets import Fleets
from fairway.services.reports import CostReports, ReportQuery
from tests.unit.ledger.usage_samples import EXPERIMENT, Class, Row
from tests.unit.services.cost_history import (
    CLASSES,
    FLEET,
    NOW,
    OCTOBER,
    CostBook,
    calendar,
    fill,
    with_rules,
)
from tests.unit.services.test_fleet_history import applied, at, team, teams

STEPS = CostUnit("steps")
OWN_LINES = with_rules(Sharing.OWN_LINE, Sharing.OWN_LINE)


@pytest.fixture
async def book(ledger: Ledger, database_url: str) -> AsyncIterator[CostBook]:
    made = CostBook(database_url)
    yield made
    made.close()


def day(number: int) -> date:
    return OCTOBER + timedelta(days=number - 1)


async def count(ledger: Ledger, job: int, total: int, on: date, unit: str = "steps") -> None:
    await ledger.units.report(JobId(job), {unit: total}, on)


def by_labels(rows: Sequence[ReportRow]) -> dict[tuple[str, ...], int]:
    return {row.labels: row.work.count for row in rows if row.kind is None and row.work.count}


GROUPS: list[tuple[Dimension, ...]] = [
    (Label.TEAM,), (Label.USER, Label.PROJECT), (EXPERIMENT,), (Label.POOL, Label.SLICE), (Label.DAY,),
    (Label.CLUSTER, Label.PRIORITY, Label.DAY), (),
]  # fmt: skip
FIELDS = {
    Label.TEAM: "team", Label.USER: "user", Label.PROJECT: "project", EXPERIMENT: "experiment",
    Label.POOL: "pool", Label.SLICE: "slice", Label.CLUSTER: "cluster", Label.PRIORITY: "priority",
}  # fmt: skip


@pytest.mark.parametrize("rule", list(Sharing))
async def test_rows_have_what_jobs_reported_by_any_group(
    ledger: Ledger, book: CostBook, rule: Sharing
) -> None:
    await fill(ledger, book, OCTOBER, 6)
    told: list[tuple[Class, date, int]] = []
    for n, of in enumerate(CLASSES, 1):  # job n is of the n-th class
        for on, steps in ((day(2), 1000 * n), (day(5), 7 * n)):
            told.append((of, on, steps))
            await count(ledger, n, sum(more for each, _, more in told if each == of), on)
    reports = CostReports(Costs(ledger))
    fleet = with_rules(rule, rule)
    for by in GROUPS:
        query = ReportQuery("2026-10", by, per=STEPS)
        found = (await reports.cost(fleet, query, NOW)).table
        wanted: dict[tuple[str, ...], int] = {}
        for of, on, steps in told:
            labels = tuple(on.isoformat() if x is Label.DAY else getattr(of, FIELDS[x]) for x in by)
            wanted[labels] = wanted.get(labels, 0) + steps
        assert by_labels(found.rows) == wanted
        assert sum(row.work.count for row in found.rows) == sum(steps for _, _, steps in told)
        assert found.total.work.count == sum(steps for _, _, steps in told)
        plain = (await reports.cost(fleet, replace(query, per=None), NOW)).table
        assert [replace(row, work=plain.total.work) for row in found.rows] == list(plain.rows)
        few = (await reports.cost(fleet, replace(query, max_rows=1), NOW)).table
        assert sum(row.work.count for row in few.rows) == found.total.work.count
        by_day, daily = await reports.cost_by_day(fleet, query, None, NOW)
        assert by_labels(by_day.table.rows) == wanted
        assert daily.table.total.work == found.total.work
    one_day = await reports.cost(fleet, ReportQuery("2026-10-05", (), per=STEPS), NOW)
    assert one_day.table.total.work.count == 7 * sum(range(1, 9))
    nlp = UsageFilter(teams=frozenset({"nlp"}), labels=(("experiment", "e1"),))
    filtered = await reports.cost(fleet, ReportQuery("2026-10", (), nlp, per=STEPS), NOW)
    assert filtered.table.total.work.count == 1007 * (1 + 7)


async def test_a_unit_costs_what_it_should_by_hand(ledger: Ledger, book: CostBook) -> None:
    """8 GPUs for 10 hours at 1.37 are 109.60; 80,000 steps, then again 20,000 after a restart."""
    job = Class("hpc", "alice", "nlp", "a100", project="llm")
    start = calendar().day_start(OCTOBER)
    await book.add(ledger, [Row(job, start + 3600 * hour, 3600, 8, job=1) for hour in range(10)])
    for total in (50_000, 80_000, 60_000, 80_000):  # it restarted at 60,000
        await count(ledger, 1, total, OCTOBER)
    await book.add(ledger, [Row(Class("hpc", "dan", "product", "a100"), start, 3600, 1, job=2)])
    found = await CostReports(Costs(ledger)).cost(
        OWN_LINES, ReportQuery("2026-10-01", (Label.TEAM,), per=CostUnit("steps", 1000)), NOW
    )
    rows = {row.labels: row for row in found.table.rows if row.kind is None}
    assert (rows["nlp",].total, rows["nlp",].work.count) == (Decimal("109.60"), 80_000)
    assert cost_per(rows["nlp",].total, 80_000, 1000) == Decimal("1.37")
    assert (rows["product",].work.count, cost_per(rows["product",].total, 0)) == (0, None)
    assert found.table.total.work.count == 80_000


async def test_a_label_counts_its_different_values(ledger: Ledger, book: CostBook) -> None:
    rows = await fill(ledger, book, OCTOBER, 6)
    reports = CostReports(Costs(ledger))
    for by in (*GROUPS, (Label.NAME,)):
        found = (await reports.cost(OWN_LINES, ReportQuery("2026-10", by, per=EXPERIMENT), NOW)).table
        wanted: dict[tuple[str, ...], set[str]] = {}
        for row in rows:
            fields = {x: getattr(row.of, field) for x, field in FIELDS.items()}
            fields |= {Label.NAME: row.name, Label.DAY: calendar().day_of(row.hour).isoformat()}
            if row.of.experiment:
                wanted.setdefault(tuple(fields[x] for x in by), set()).add(row.of.experiment)
        assert by_labels(found.rows) == {labels: len(values) for labels, values in wanted.items()}
        assert found.total.work.values == {"e1", "e2"}
    none = ReportQuery("2026-10", (), per=JobLabel("label:model"))
    assert (await reports.cost(OWN_LINES, none, NOW)).table.total.work.count == 0


async def test_a_renamed_team_keeps_what_it_counted(ledger: Ledger, book: CostBook) -> None:
    """Also on the day of the change, which counts once; and a subtree is that of each time."""
    await fill(ledger, book, OCTOBER, 20)
    nlp = team(FLEET, "nlp")
    new = teams(FLEET, replace(nlp, name=TeamName("lang"), renamed_from=nlp.name), without="nlp")
    costs = Costs(ledger, await applied(ledger, (at(1), FLEET), (at(10, 11, 30), new)))
    total = 0
    for number in range(5, 16):
        total += 10**number
        await count(ledger, 1, total, day(number))
    reports = CostReports(costs)
    found = (await reports.cost(new, ReportQuery("2026-10", (Label.TEAM,), per=STEPS), NOW)).table
    assert by_labels(found.rows) == {("lang",): total}
    inside = UsageFilter(teams=frozenset({"research"}))
    found = (await reports.cost(new, ReportQuery("2026-10", (Label.DAY,), inside, per=STEPS), NOW)).table
    assert by_labels(found.rows) == {(day(n).isoformat(),): 10**n for n in range(5, 16)}


def caller(role: Role, user: str) -> Token:
    return Token(1, "token", role, at(1), "ada", None, None, None, UserName(user))


@pytest.fixture
async def queries(ledger: Ledger, book: CostBook) -> CostQueries:
    await fill(ledger, book, OCTOBER, 3)
    await ledger.revisions.add("acme", "digest", "test")
    book.db.execute("UPDATE fleet_revision SET created_at = '2026-01-01T00:00:00Z'")
    return CostQueries(ledger, Fleets(ledger, lambda _: FLEET))


async def test_a_report_has_the_cost_of_a_unit_and_says_what_is_missing(
    ledger: Ledger, queries: CostQueries
) -> None:
    await count(ledger, 1, 3000, OCTOBER)
    viewer, request = caller(Role.VIEWER, "v"), CostRequest("2026-10", per="1000:steps")
    found = await queries.cost(viewer, request)
    assert (found.per, found.notes, found.total.count) == ("1000:steps", [], 3000)
    (nlp,) = (row for row in found.rows if row.count)
    assert (nlp.labels, nlp.per_unit) == (["nlp"], cost_per(nlp.total, 3000, 1000))
    assert nlp.per_unit is not None
    assert abs(Fraction(nlp.per_unit) - Fraction(nlp.total) / 3) < Fraction(1, 10**6)
    plain = await queries.cost(viewer, replace(request, per=None))
    assert (plain.per, plain.total.count, plain.total.per_unit) == (None, None, None)
    missing = await queries.cost(viewer, replace(request, per="tokens"))
    assert "fairway count JOB tokens=TOTAL" in missing.notes[0]
    assert "jobs of this fleet count steps" in missing.notes[0]
    assert {row.per_unit for row in missing.rows} == {None}
    unset = await queries.cost(viewer, replace(request, per="label:model"))
    assert "cost.labels" in unset.notes[0]
    # Others see only their own: dan's team reported nothing.
    assert (await queries.cost(caller(Role.MEMBER, "dan"), request)).total.count is None
    assert (await queries.cost(caller(Role.MEMBER, "alice"), request)).total.count == 3000


@pytest.mark.parametrize(
    ("per", "by", "message"),
    [
        ("Steps", (Label.TEAM,), "neither a unit nor a label"),
        ("steps", (Label.NAME,), "not stored by name"),
        ("10:steps", (Label.TEAM, Label.OUTCOME), "not stored by outcome"),
        ("steps", (Label.SERVICE,), "not stored by service"),
    ],
)
async def test_what_a_cost_cannot_be_divided_by_is_refused(
    queries: CostQueries, per: str, by: tuple[Label, ...], message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        await queries.cost(caller(Role.VIEWER, "v"), CostRequest("2026-10", by, per=per))
    assert (caught.value.code, bool(caught.value.hint)) == ("InvalidRequest", True)
