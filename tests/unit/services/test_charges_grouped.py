"""What is summed up in the ledger costs, to the cent, what it costs told apart by everything."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import date, timedelta

import pytest

from fairway.cost.report import ReportEntry, ReportTable, table
from fairway.ledger import Ledger, UsageFilter, UsageView
from fairway.model.charge import Label, UsageSum
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName
from fairway.model.price import Sharing
from fairway.services.charges import CachedCosts, Costs
from fairway.services.reports import CostReports, ReportQuery, window_of
from tests.unit.services.cost_history import CLASSES, NOW, OCTOBER, CostBook, calendar, fill, with_rules

EVERYTHING = tuple(label for label in Label if label not in {Label.NAME, Label.OUTCOME})
HOUR = 3600
FIRST = date(2026, 10, 30)
DAYS = 7
"""To the end of NOW's day, later than NOW: nothing of the future may be told."""


@pytest.fixture
async def book(ledger: Ledger, database_url: str) -> AsyncIterator[CostBook]:
    made = CostBook(database_url)
    await fill(ledger, made, FIRST, DAYS)
    for n, of in enumerate(CLASSES, start=100):  # some run, for hours or for days
        made.job(n, of, state="running")
        made.attempt(n, NOW - (n % 5) * 9 * HOUR - 17, devices=n % 3 + 1)
    yield made
    made.close()


async def ungrouped(costs: Costs, fleet: Fleet, question: ReportQuery) -> ReportTable:
    """Every charge told apart by all there is, and only then summed by what was asked."""
    found: list[ReportEntry] = []
    places = [EVERYTHING.index(label) for label in question.by]
    for priced in await costs.priced(fleet, window_of(fleet, question.window, NOW).span, NOW):
        each = await costs.entries(priced, EVERYTHING, question.which)
        found += [replace(entry, labels=tuple(entry.labels[i] for i in places)) for entry in each]
    days = [i for i, label in enumerate(question.by) if label is Label.DAY]
    return table(found, max_rows=question.max_rows, sort_labels=days)


def questions(dice: random.Random, count: int) -> list[ReportQuery]:
    filters = [
        UsageFilter(),
        UsageFilter(),
        UsageFilter(teams=frozenset({"nlp", "product"})),
        UsageFilter(users=frozenset({"carol"})),
        UsageFilter(pools=frozenset({PoolName("a100"), PoolName("mig")})),
        UsageFilter(teams=frozenset({"vision"}), pools=frozenset({PoolName("mig")})),
    ]
    windows = ["2026-11", "6d", "2d", "2026-10-30..2026-11-02", "1d"]
    return [
        ReportQuery(
            dice.choice(windows),
            tuple(dice.sample(EVERYTHING, dice.randrange(0, 4))),
            dice.choice(filters),
            max_rows=dice.choice([3, 1000]),
        )
        for _ in range(count)
    ]


async def test_grouped_is_ungrouped_to_the_cent(ledger: Ledger, book: CostBook) -> None:
    plain = Costs(ledger)
    dice = random.Random(7)
    told = 0
    for idle, overhead in itertools.product(Sharing, Sharing):
        fleet, quick = with_rules(idle, overhead, "Europe/Berlin"), CachedCosts(ledger)
        for question in questions(dice, 4):
            wanted = await ungrouped(plain, fleet, question)
            for costs in (plain, quick):
                found = (await CostReports(costs).cost(fleet, question, NOW)).table
                assert found == wanted, (idle, overhead, question)
            told += len(wanted.rows)
    assert told > 100


class Moments(Costs):
    """Notes what is read at one moment."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.read: list[tuple[UsageView, ...]] = []

    async def _views(self, priced: object, *views: UsageView) -> tuple[tuple[UsageSum, ...], ...]:
        self.read.append(views)
        return await super()._views(priced, *views)  # type: ignore[arg-type]


async def test_days_are_not_read_where_they_make_no_difference(ledger: Ledger, book: CostBook) -> None:
    month = calendar("Europe/Berlin").month_span(OCTOBER)
    pool = PoolName("a100")
    for idle, own_spans in ((Sharing.OWN_LINE, 1), (Sharing.BY_GUARANTEE, 1), (Sharing.BY_USAGE, 31)):
        costs = Moments(ledger)
        fleet = with_rules(idle, Sharing.OWN_LINE, "Europe/Berlin")
        await costs.charges(fleet, month, (Label.TEAM,), now=NOW)
        (views,) = costs.read  # one moment: shares and the whole they are of agree
        assert len(views[0].spans[pool]) == own_spans
        assert len(views[-1].spans[pool]) == 31


async def test_what_all_used_is_read_once_of_a_window(ledger: Ledger, book: CostBook) -> None:
    fleet = with_rules(Sharing.OWN_LINE, Sharing.OWN_LINE)
    month = calendar().month_span(OCTOBER)
    quick = CachedCosts(ledger, clock=lambda: 0.0)
    (priced,) = await quick.priced(fleet, month, NOW)
    first = await quick.everyone(priced)
    book.db.execute("UPDATE usage_team_day SET device_seconds = device_seconds + 1")
    assert await quick.everyone(priced) is first
    (later,) = await quick.priced(fleet, month, NOW + int(timedelta(hours=1).total_seconds()))
    assert await quick.everyone(later) != first
