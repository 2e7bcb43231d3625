"""A plan says what it would change of the past, and a closed month changes only on request (H3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from fairway.cost.repricing import changed_since
from fairway.ledger import Ledger
from fairway.model.charge import Span
from fairway.model.fleet import Fleet, Pool
from fairway.model.names import TeamName
from fairway.model.price import Commitment, CostRules, PriceStep
from fairway.model.team import Move
from fairway.services.charges import Costs
from fairway.services.errors import RequestError
from fairway.services.fleet_history import FleetHistory
from fairway.services.repricing import Repricing, find_repricing
from fairway.services.statements import MonthStatements
from tests.unit.services.cost_history import FLEET, NOW, OCTOBER, CostBook, fill
from tests.unit.services.test_fleet_history import applied, at, priced, team, teams, without

NOVEMBER = date(2026, 11, 1)


@pytest.fixture
async def book(ledger: Ledger, database_url: str) -> AsyncIterator[CostBook]:
    made = CostBook(database_url)
    yield made
    made.close()


def stepped(fleet: Fleet, since: date, price: str = "2.00", *later: PriceStep) -> Fleet:
    """Give pool a100 a price from a day on."""

    def step(pool: Pool) -> Pool:
        steps = (PriceStep(since, Decimal(price)), *later)
        return replace(pool, pricing=replace(pool.pricing, steps=steps)) if pool.name == "a100" else pool

    return replace(fleet, pools=tuple(step(p) for p in fleet.pools))


def committed(fleet: Fleet, *commitments: Commitment) -> Fleet:
    return replace(
        fleet,
        pools=tuple(
            replace(p, pricing=replace(p.pricing, commitments=commitments)) if p.name == "spot" else p
            for p in fleet.pools
        ),
    )


def moved(since: date) -> Fleet:
    nlp = replace(team(FLEET, "nlp"), parent=TeamName("product"), moved=Move(TeamName("research"), since))
    return teams(FLEET, nlp)


def renamed() -> Fleet:
    nlp = team(FLEET, "nlp")
    return teams(FLEET, replace(nlp, name=TeamName("lang"), renamed_from=nlp.name), without="nlp")


async def closed_october(ledger: Ledger, book: CostBook, fleet: Fleet = FLEET) -> FleetHistory:
    await fill(ledger, book, OCTOBER, 20)
    history = await applied(ledger, (at(1), fleet))
    await MonthStatements(ledger, Costs(ledger, history)).close(fleet, OCTOBER, "ada", NOW)
    return history


async def repricing(ledger: Ledger, history: FleetHistory, fleet: Fleet) -> Repricing:
    return await find_repricing(ledger, history._fleets, fleet, NOW)


async def test_a_step_in_a_closed_month_is_refused_with_its_amount(ledger: Ledger, book: CostBook) -> None:
    history = await closed_october(ledger, book)
    planned = stepped(FLEET, date(2026, 10, 5))
    found = await repricing(ledger, history, planned)
    (month,) = found.months
    # 16 GPUs, 0.63 more each, in the 16 days from the 5th that have capacity.
    assert month.closed and month.after - month.before == Decimal("3870.72")
    (diff,) = found.diffs()
    assert diff.what == "charges of 2026-10 (closed)" and (diff.after or "").endswith("(+3,870.72 EUR)")
    said = "October 2026 is closed: its statement would change by +3,870.72 EUR"
    for force in (True, False):
        with pytest.raises(RequestError, match=r"would change by \+3,870\.72 EUR") as refused:
            found.require(force=force, reprice_past=False)
    assert (refused.value.code, refused.value.message) == ("ClosedMonthWouldChange", f"not applied: {said}")
    assert "--reprice-past" in refused.value.hint
    found.require(force=False, reprice_past=True)
    # It is what the next statement then corrects.
    after = FleetHistory(ledger, history._fleets, (NOW, planned))
    november = await MonthStatements(ledger, Costs(ledger, after)).statement(planned, NOVEMBER, NOW)
    assert sum(e.billed.amount for e in november.lines if e.used_in == OCTOBER) == Decimal("3870.72")


async def test_an_old_step_that_is_deleted_changes_the_past(ledger: Ledger, book: CostBook) -> None:
    old, step = date(2026, 10, 5), PriceStep(date(2026, 10, 10), Decimal(3))
    history = await closed_october(ledger, book, stepped(FLEET, old, "2.00", step))
    (month,) = (await repricing(ledger, history, stepped(FLEET, old))).months
    assert month.after - month.before == -1 * 16 * 24 * 11


async def test_open_days_have_an_amount_and_are_not_refused(ledger: Ledger, book: CostBook) -> None:
    await fill(ledger, book, OCTOBER, 20)
    history = await applied(ledger, (at(1), FLEET))
    found = await repricing(ledger, history, stepped(FLEET, date(2026, 10, 5)))
    (diff,) = found.diffs()
    assert diff.what == "charges of 2026-10" and (diff.after or "").endswith("(+3,870.72 EUR)")
    assert found.objections() == []
    found.require(force=False, reprice_past=False)


async def test_a_dated_move_charges_other_teams(ledger: Ledger, book: CostBook) -> None:
    history = await closed_october(ledger, book)
    (month,) = (await repricing(ledger, history, moved(date(2026, 10, 5)))).months
    before = await Costs(ledger).by_team(FLEET, Span(int(at(5).timestamp()), int(at(21).timestamp())), NOW)
    assert month.before == month.after and abs(month.moved - Decimal(float(before[TeamName("nlp")]))) < 1
    with pytest.raises(RequestError, match="EUR charged to other teams"):
        (await repricing(ledger, history, moved(date(2026, 10, 5)))).require(force=True, reprice_past=False)


async def test_what_changes_nothing_of_the_past(ledger: Ledger, book: CostBook) -> None:
    """Undated settings, renames, steps of the future, and steps that say what was charged anyway."""
    history = await closed_october(ledger, book)
    for planned in (
        FLEET,
        priced(FLEET, "9.99"),
        renamed(),
        without(FLEET, "mig"),
        stepped(FLEET, date(2026, 12, 1)),
        stepped(FLEET, date(2026, 10, 5), "1.37"),
        moved(date(2026, 12, 1)),
    ):
        found = await repricing(ledger, history, planned)
        assert (found.months, found.diffs(), found.objections()) == ((), [], [])


async def test_few_months_are_compared_and_that_is_said(ledger: Ledger, book: CostBook) -> None:
    history = await applied(ledger, (at(1).replace(year=2022), FLEET))
    late = Commitment(6, Decimal("0.31"), OCTOBER, date(2027, 1, 1))
    planned = committed(FLEET, late, Commitment(1, Decimal(1), date(2021, 1, 1), date(2022, 11, 1)))
    found = await repricing(ledger, history, planned)
    assert found.cut and [d.after for d in found.diffs()] == ["only the last 36 months were compared"]


async def test_a_currency_or_time_zone_needs_force(ledger: Ledger) -> None:
    history = await applied(ledger, (at(1), FLEET))
    for planned, code in (
        (replace(FLEET, currency="USD"), "CurrencyWouldChange"),
        (replace(FLEET, cost=CostRules("Europe/Berlin")), "TimeZoneWouldChange"),
    ):
        found = await repricing(ledger, history, planned)
        assert found.months == () and [o.code for o in found.objections()] == [code]
        with pytest.raises(RequestError) as refused:
            found.require(force=False, reprice_past=True)
        assert refused.value.code == code
        found.require(force=True, reprice_past=False)


async def test_a_first_fleet_changes_nothing(ledger: Ledger) -> None:
    history = await applied(ledger)
    found = await repricing(ledger, history, stepped(FLEET, date(2026, 1, 1)))
    assert (found.months, found.objections()) == ((), [])


@pytest.mark.parametrize(
    ("after", "since"),
    [
        (lambda: FLEET, None),
        (lambda: priced(FLEET, "9.99"), None),
        (lambda: stepped(FLEET, date(2026, 9, 3)), date(2026, 9, 3)),
        (lambda: committed(FLEET), OCTOBER),
        (lambda: committed(FLEET, *FLEET.pools[2].pricing.commitments * 2), OCTOBER),
        (lambda: without(FLEET, "spot"), OCTOBER),
        (lambda: moved(date(2026, 8, 2)), date(2026, 8, 2)),
        (renamed, None),
    ],
)
def test_the_first_day_that_can_differ(after: Callable[[], Fleet], since: date | None) -> None:
    assert changed_since(FLEET, after()) == changed_since(after(), FLEET) == since
