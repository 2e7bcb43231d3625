"""What is remembered of windows, and for how long."""

from __future__ import annotations

from dataclasses import replace

from fairway.ledger import Ledger
from fairway.model.charge import Label, Span
from fairway.services.charges import CACHE_SECONDS, MAX_CACHED, CachedCosts, Costs
from tests.unit.services.cost_history import FLEET, NOW, OCTOBER, CostBook, calendar, fill

MONTH = calendar().month_span(OCTOBER)


async def test_it_answers_as_costs_do(ledger: Ledger, database_url: str) -> None:
    book = CostBook(database_url)
    await fill(ledger, book, OCTOBER, 3)
    book.close()
    quick, plain = CachedCosts(ledger), Costs(ledger)
    for _ in range(2):
        found = await quick.charges(FLEET, MONTH, (Label.TEAM,), now=NOW)
        assert found == await plain.charges(FLEET, MONTH, (Label.TEAM,), now=NOW)


async def test_what_is_known_of_a_window_is_kept_a_while(ledger: Ledger) -> None:
    clock = [0.0]
    quick = CachedCosts(ledger, clock=lambda: clock[0])
    first = await quick.priced(FLEET, MONTH, NOW)
    assert await quick.priced(FLEET, MONTH, NOW + 1) is first
    assert await quick.priced(FLEET, MONTH, NOW - 1) is not first  # never of later than was asked
    first = await quick.priced(FLEET, MONTH, NOW)
    assert await quick.priced(replace(FLEET), MONTH, NOW) is not first  # another revision
    first = await quick.priced(FLEET, MONTH, NOW)
    clock[0] += CACHE_SECONDS
    assert await quick.priced(FLEET, MONTH, NOW) is not first


async def test_only_so_many_windows_are_kept(ledger: Ledger) -> None:
    quick = CachedCosts(ledger, clock=lambda: 0.0)
    first = await quick.priced(FLEET, MONTH, NOW)
    for day in range(MAX_CACHED):
        await quick.priced(FLEET, Span(MONTH.start, MONTH.start + 86400 * (day + 1)), NOW)
    assert await quick.priced(FLEET, MONTH, NOW) is not first
