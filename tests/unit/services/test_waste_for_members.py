"""What nobody used is the same for everybody, whoever's money the caller may see."""

from __future__ import annotations

from contextlib import closing

from fairway.ledger import Ledger, UsageFilter
from fairway.model.charge import Label
from fairway.services.charges import Costs
from fairway.services.reports import CostReports, ReportQuery
from tests.unit.services.cost_history import FLEET, NOW, OCTOBER, CostBook, fill


async def test_a_member_sees_all_that_was_there(ledger: Ledger, database_url: str) -> None:
    with closing(CostBook(database_url)) as book:
        await fill(ledger, book, OCTOBER, 7)
    reports = CostReports(Costs(ledger))
    seen = [
        await reports.waste(FLEET, ReportQuery("2026-10", (Label.POOL,), which), NOW)
        for which in (UsageFilter(), UsageFilter(teams=frozenset({"nlp"})), UsageFilter(teams=frozenset()))
    ]
    assert seen[0].total.used_hours > 0
    assert seen[1].rows == seen[2].rows == seen[0].rows
