"""Charges follow the fleets that were in force, with a real ledger."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType

import pytest

from fairway.cost.calendar import calendar_of
from fairway.ledger import Ledger, Revision, Token, UsageFilter
from fairway.ledger.seed import PastApply, write_applies
from fairway.model.access import Role
from fairway.model.charge import ChargeKind, Label, Span
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName, TeamName, UserName
from fairway.model.price import Sharing
from fairway.model.team import Move, Team
from fairway.services.charges import Costs
from fairway.services.cost_queries import CostQueries, CostRequest
from fairway.services.errors import RequestError
from fairway.services.fleet_history import FleetHistory
from fairway.services.fleets import Fleets
from fairway.services.focus_export import focus_lines
from fairway.services.reports import CostReports, ReportQuery, window_of
from fairway.services.spent import TeamSpending
from fairway.services.statements import MonthStatements
from tests.unit.ledger.usage_samples import Row
from tests.unit.services.cost_history import (
    CLASSES,
    FLEET,
    HPC,
    NOW,
    OCTOBER,
    CostBook,
    fill,
    with_rules,
)

MONTH = calendar_of(FLEET).month_span(OCTOBER)
PRICED = replace(FLEET, pools=tuple(p for p in FLEET.pools if p.name != "spot"))
"""Without commitments, which are owed whether or not capacity is known."""


@pytest.fixture
async def book(ledger: Ledger, database_url: str) -> AsyncIterator[CostBook]:
    made = CostBook(database_url)
    yield made
    made.close()


def at(day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(2026, 10, day, hour, minute, tzinfo=UTC)


async def applied(ledger: Ledger, *fleets: tuple[datetime, Fleet]) -> FleetHistory:
    """Apply fleets at these times; returns the history that reads them."""
    texts = {f"revision {n}": fleet for n, (_, fleet) in enumerate(fleets)}
    times = [when for when, _ in fleets]
    past = [
        PastApply(text, text, "ada", when, when, {HPC: ("", ())})
        for text, when in zip(texts, times, strict=True)
    ]
    await write_applies(ledger, past)

    def parse(revision: Revision) -> Fleet:
        return texts[revision.text]

    return FleetHistory(ledger, Fleets(ledger, parse))


def without(fleet: Fleet, pool: str) -> Fleet:
    return replace(fleet, pools=tuple(p for p in fleet.pools if p.name != pool))


def priced(fleet: Fleet, price: str) -> Fleet:
    return replace(fleet, pools=tuple(replace(p, price=Decimal(price)) for p in fleet.pools))


async def total(costs: Costs, fleet: Fleet, period: Span) -> Fraction:
    return sum((c.amount for c in await costs.charges(fleet, period, (), now=NOW)), Fraction(0))


async def test_nothing_is_charged_before_the_first_apply(ledger: Ledger, book: CostBook) -> None:
    """H4: no overhead, no commitment and no usage of a time without a fleet."""
    await fill(ledger, book, OCTOBER, 20)
    costs = Costs(ledger, await applied(ledger, (at(10, 9, 30), FLEET)))
    assert await costs.priced(FLEET, Span(0, MONTH.start), NOW) == ()
    assert await total(costs, FLEET, Span(MONTH.start, int(at(10, 9).timestamp()))) == 0
    overhead = [
        c.amount for c in await costs.charges(FLEET, MONTH, (), now=NOW) if c.kind is ChargeKind.OVERHEAD
    ]
    hours = 21 * 24 + 15
    assert sum(overhead) == Fraction(1201) * hours / (31 * 24)


async def test_without_an_apply_the_stored_revisions_count(ledger: Ledger, book: CostBook) -> None:
    stored = await ledger.revisions.add("observed", "observed", "ada")
    costs = Costs(ledger, FleetHistory(ledger, Fleets(ledger, lambda _: FLEET)))
    created = int(stored.created_at.timestamp())
    day = Span(created - 86400, created + 86400)
    windows = await costs.priced(FLEET, day, created + 86400)
    assert [w.span.start for w in windows] == [calendar_of(FLEET).hour_start(created)]


async def test_the_first_apply_counts_from_the_start_of_its_hour_whatever_was_stored_before(
    ledger: Ledger, book: CostBook
) -> None:
    """A server that was started with a file of clusters alone meters at once what is applied then."""
    history = await applied(ledger, (at(1, 8), replace(FLEET, pools=())), (at(10, 9, 30), FLEET))
    book.db.execute("UPDATE fleet_revision SET created_at = %s WHERE text = 'revision 0'", [at(10, 9, 10)])
    book.db.execute("DELETE FROM apply_cluster WHERE apply IN (SELECT min(id) FROM apply)")
    (start, fleet), *more = await history.timeline(FLEET)
    assert (start, fleet, more) == (int(at(10, 9).timestamp()), FLEET, [])
    book.db.execute("UPDATE fleet_revision SET created_at = %s WHERE text = 'revision 0'", [at(10, 7, 10)])
    times = [start for start, _ in await history.timeline(FLEET)]
    assert times == [int(at(10, 7, 10).timestamp()), int(at(10, 9).timestamp())]


@pytest.mark.parametrize("rule", list(Sharing))
async def test_a_change_within_a_day_conserves_and_leaves_the_past(
    ledger: Ledger, book: CostBook, rule: Sharing
) -> None:
    """H3: charges before the apply are as if it had never been made, and parts of a day sum to the whole."""
    await fill(ledger, book, OCTOBER, 20)
    old = replace(PRICED, cost=replace(PRICED.cost, idle=rule, overhead=rule))
    new = priced(old, "9.99")
    costs = Costs(ledger, await applied(ledger, (at(1), old), (at(10, 12, 20), new)))
    moment = int(at(10, 13).timestamp())
    days = (Span(MONTH.start, moment), Span(moment, int(at(21).timestamp())))
    expected = [await total(Costs(ledger), fleet, span) for fleet, span in zip((old, new), days, strict=True)]
    assert [await total(costs, new, span) for span in days] == expected
    assert await total(costs, new, Span(days[0].start, days[1].end)) == sum(expected)
    # Capacity × price + overhead of the days that have capacity.
    seconds = (moment - MONTH.start, int(at(21).timestamp()) - moment)
    paid = sum(
        18 * Fraction(price) * length / 3600 for price, length in zip(("1.37", "9.99"), seconds, strict=True)
    )
    assert sum(expected) == paid + Fraction(1201) * 20 / 31


async def test_a_pool_that_lived_within_a_day_is_reported(ledger: Ledger, book: CostBook) -> None:
    """M6: its usage and its idle capacity, for the hours of its life."""
    hours = [int(at(5, hour).timestamp()) for hour in range(24)]
    await book.add(ledger, [Row(CLASSES[0], hour, 3600, 4) for hour in hours])
    book.capacity("a100", "hpc", "", Span(hours[0], hours[-1] + 3600))
    history = await applied(
        ledger, (at(1), without(FLEET, "a100")), (at(5, 8), FLEET), (at(5, 20), without(FLEET, "a100"))
    )
    charges = await Costs(ledger, history).charges(FLEET, MONTH, (Label.POOL,), now=NOW)
    seconds = {
        kind: sum(c.device_seconds for c in charges if c.kind is kind and c.pool == "a100")
        for kind in (ChargeKind.USAGE, ChargeKind.IDLE)
    }
    # Used until midnight, idle until it was removed.
    assert seconds == {ChargeKind.USAGE: 4 * 16 * 3600, ChargeKind.IDLE: 12 * 12 * 3600}


async def test_the_overhead_of_a_pool_is_in_its_filter(ledger: Ledger, book: CostBook) -> None:
    """M5: `--pool P` is the row of `--by pool`."""
    await fill(ledger, book, OCTOBER, 10)
    for overhead in Sharing:
        fleet = with_rules(Sharing.BY_USAGE, overhead)
        costs = Costs(ledger)
        by_pool = await CostReports(costs).cost(fleet, ReportQuery("2026-10", (Label.POOL,)), NOW)
        which = UsageFilter(pools=frozenset({PoolName("mig")}))
        alone = await CostReports(costs).cost(fleet, ReportQuery("2026-10", (Label.POOL,), which), NOW)
        of_pool = [row.total for row in by_pool.table.rows if row.labels == ("mig",)]
        assert [row.total for row in alone.table.rows if row.labels == ("mig",)] == of_pool
        assert alone.table.total.total == sum(of_pool)


def teams(fleet: Fleet, *changed: Team, without: str = "") -> Fleet:
    by_name = {team.name: team for team in changed}
    kept = [by_name.pop(t.name, t) for t in fleet.teams if t.name != without]
    return replace(fleet, teams=(*kept, *by_name.values()))


def team(fleet: Fleet, name: str) -> Team:
    return next(t for t in fleet.teams if t.name == name)


async def spent(
    ledger: Ledger, history: FleetHistory, fleet: Fleet, first: date = OCTOBER
) -> dict[str, Fraction]:
    span = calendar_of(fleet).month_span(first)
    found = await TeamSpending(ledger, Costs(ledger, history)).by_team(fleet, span, NOW)
    return {str(name): amount for name, amount in found.items()}


async def reported(costs: Costs, fleet: Fleet, name: str) -> Decimal:
    which = UsageFilter(teams=frozenset({name}))
    found = await CostReports(costs).cost(fleet, ReportQuery("2026-10", (Label.TEAM,), which), NOW)
    return found.table.total.total


async def stated(ledger: Ledger, costs: Costs, fleet: Fleet, name: str) -> Decimal:
    statement = await MonthStatements(ledger, costs).statement(fleet, OCTOBER, NOW)
    return sum((e.billed.amount for e in statement.lines if e.billed.is_of({name})), Decimal(0))


async def exported(ledger: Ledger, costs: Costs, fleet: Fleet, name: str) -> Decimal:
    window = window_of(fleet, "2026-10", NOW)
    text = "".join([piece async for piece in focus_lines(costs, fleet, window, frozenset({name}))])
    return sum((Decimal(row["BilledCost"]) for row in csv.DictReader(io.StringIO(text))), Decimal(0))


@pytest.mark.parametrize("change", ["renamed", "moved", "removed pool", "overhead"])
async def test_budget_statement_report_and_focus_are_equal(
    ledger: Ledger, book: CostBook, change: str
) -> None:
    """H1, H2: whatever changed within the month."""
    await fill(ledger, book, OCTOBER, 20)
    old = with_rules(Sharing.BY_GUARANTEE, Sharing.BY_USAGE)
    nlp = team(old, "nlp")
    new = {
        "renamed": teams(old, replace(nlp, name=TeamName("lang"), renamed_from=nlp.name), without="nlp"),
        "moved": teams(old, replace(nlp, parent=TeamName("product"))),
        "removed pool": without(old, "mig"),
        "overhead": replace(
            old, clusters=(replace(old.clusters[0], overhead=MappingProxyType({"power": Decimal(90)})),)
        ),
    }[change]
    history = await applied(ledger, (at(1), old), (at(8, 12, 20), new))
    costs = Costs(ledger, history)
    budgets = await spent(ledger, history, new)
    assert sum(budgets[t.name] for t in new.teams if t.parent is None) > 0
    for name in (t.name for t in new.teams):
        amount = float(budgets[name])
        assert abs(float(await reported(costs, new, name)) - amount) <= 0.01
        # Lines of several teams, each rounded to less than a cent.
        for document in (stated(ledger, costs, new, name), exported(ledger, costs, new, name)):
            assert abs(float(await document) - amount) <= 0.03


async def test_a_renamed_team_keeps_what_it_spent(ledger: Ledger, book: CostBook) -> None:
    """H2: before and after the rename, and in a closed month that had its old name."""
    await fill(ledger, book, OCTOBER, 20)
    nlp = team(FLEET, "nlp")
    new = teams(FLEET, replace(nlp, name=TeamName("lang"), renamed_from=nlp.name), without="nlp")
    before = await Costs(ledger).by_team(FLEET, MONTH, NOW)
    old_history = await applied(ledger, (at(1), FLEET), (datetime(2026, 11, 3, tzinfo=UTC), new))
    closing = MonthStatements(ledger, Costs(ledger))
    closed = await closing.close(FLEET, OCTOBER, "ada", NOW)
    after = await spent(ledger, old_history, new)
    assert (after["lang"], after["research"]) == (before[TeamName("nlp")], before[TeamName("research")])
    assert "nlp" not in after
    statement = await MonthStatements(ledger, Costs(ledger, old_history)).statement(new, OCTOBER, NOW)
    assert {e.billed.team for e in statement.lines} == {
        "lang" if e.billed.team == "nlp" else e.billed.team for e in closed.lines
    }
    november = await MonthStatements(ledger, Costs(ledger, old_history)).statement(
        new, date(2026, 11, 1), NOW
    )
    assert [e for e in november.lines if e.used_in == OCTOBER] == []


async def test_a_moved_team_leaves_what_it_spent_with_its_old_parent(ledger: Ledger, book: CostBook) -> None:
    """H2: undated from the apply on, dated from the day on, also in the filter of a report."""
    await fill(ledger, book, OCTOBER, 20)
    product = TeamName("product")
    moved = teams(FLEET, replace(team(FLEET, "nlp"), parent=product))
    dated = teams(
        FLEET,
        replace(team(FLEET, "nlp"), parent=product, moved=Move(TeamName("research"), date(2026, 10, 5))),
    )
    calendar, plain = calendar_of(FLEET), Costs(ledger)
    history = await applied(ledger, (at(1), FLEET), (at(15), moved), (at(16), dated), (at(17), moved))
    first = await plain.by_team(FLEET, Span(MONTH.start, calendar.day_start(date(2026, 10, 15))), NOW)
    second = await plain.by_team(moved, Span(calendar.day_start(date(2026, 10, 15)), MONTH.end), NOW)
    after = await spent(ledger, history, moved)
    for name in ("research", "product", "nlp"):
        assert after[name] == first.get(TeamName(name), 0) + second.get(TeamName(name), 0)
    assert (
        abs(float(await reported(Costs(ledger, history), moved, "research")) - float(after["research"]))
        < 0.01
    )
    by_day = FleetHistory(ledger, history._fleets, (int(at(18).timestamp()), dated))
    until = await plain.by_team(FLEET, Span(MONTH.start, calendar.day_start(date(2026, 10, 5))), NOW)
    later = await plain.by_team(moved, Span(calendar.day_start(date(2026, 10, 5)), MONTH.end), NOW)
    found = await spent(ledger, by_day, dated)
    assert found["research"] == until[TeamName("research")] + later[TeamName("research")]


async def test_corrections_count_in_the_budget_of_the_month_that_bills_them(
    ledger: Ledger, book: CostBook
) -> None:
    """L6: late usage of the closed October is in November's statement and in its budgets."""
    await fill(ledger, book, OCTOBER, 20)
    history = await applied(ledger, (at(1), FLEET))
    closing = MonthStatements(ledger, Costs(ledger, history))
    await closing.close(FLEET, OCTOBER, "ada", NOW)
    november = date(2026, 11, 1)
    before = await spent(ledger, history, FLEET, november)
    late = [Row(CLASSES[0], int(at(3, 5).timestamp()), 3600, 2, job=900)]
    await book.add(ledger, late)
    after = await spent(ledger, history, FLEET, november)
    corrections = [
        e.billed.amount
        for e in (await closing.statement(FLEET, november, NOW)).lines
        if e.used_in == OCTOBER and e.billed.team == "nlp"
    ]
    assert sum(corrections) == Decimal("2.74")
    assert after["nlp"] - before.get("nlp", Fraction(0)) == Fraction("2.74")
    assert after["research"] - before.get("research", Fraction(0)) == Fraction("2.74")
    # Of a quarter that includes October, the late usage is part of what was charged.
    quarter = Span(MONTH.start, calendar_of(FLEET).month_end(date(2026, 12, 1)))
    whole = await TeamSpending(ledger, Costs(ledger, history)).by_team(FLEET, quarter, NOW)
    assert whole == await Costs(ledger, history).by_team(FLEET, quarter, NOW)


async def test_removed_pools_and_teams_can_be_reported(ledger: Ledger, book: CostBook) -> None:
    """M6: by those who see everything."""
    await fill(ledger, book, OCTOBER, 20)
    less = without(teams(FLEET, without="product"), "mig")
    history = await applied(ledger, (at(1), FLEET), (at(25), less))
    costs = CostQueries(ledger, history._fleets)

    def caller(role: Role) -> Token:
        return Token(1, "finance", role, at(1), "ada", None, None, None, UserName("ada"))

    request = CostRequest(window="2026-10")
    for removed in (replace(request, team="product"), replace(request, pool="mig")):
        report = await costs.cost(caller(Role.VIEWER), removed)
        assert report.total.total > 0
    with pytest.raises(RequestError, match="there is no team product"):
        await costs.cost(caller(Role.MEMBER), replace(request, team="product"))
    with pytest.raises(RequestError, match="there is no team nobody"):
        await costs.cost(caller(Role.VIEWER), replace(request, team="nobody"))
    with pytest.raises(RequestError, match="there is no pool nothing"):
        await costs.cost(caller(Role.VIEWER), replace(request, pool="nothing"))
