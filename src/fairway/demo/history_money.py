"""Money in the demo's history: spot prices, fitted budgets, closed months, budget events."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Final

from fairway.control.loops.budget import events_of, stand
from fairway.cost.calendar import Calendar, next_month
from fairway.demo.fleet_text import AMOUNTS
from fairway.demo.history_jobs import DAY, HOUR
from fairway.demo.history_policy import Amounts
from fairway.ledger import Ledger, StoredBudgetStatus
from fairway.ledger.records.costs import PricePointRow
from fairway.ledger.seed import date_closing
from fairway.model.charge import Label, Span
from fairway.model.fleet import Capacity, Fleet
from fairway.model.names import TeamName
from fairway.model.team import TeamTree
from fairway.services.charges import Costs, calendar_of
from fairway.services.statements import MonthStatements

FINANCE: Final = "ruth"
"""The user who closes months."""
NEAR: Final = Decimal("0.78")
"""The fraction of its budget that team nlp has spent now; the warning is at 80 %."""
_PRICED_EVERY: Final = 6 * HOUR


def spot_prices(fleet: Fleet, start: int, end: int, seed: int) -> Iterator[PricePointRow]:
    """Generate spot prices that vary around the list price, higher by day."""
    random = Random(seed)  # noqa: S311 - nothing secret
    for pool in fleet.pools:
        if pool.capacity is not Capacity.SPOT or pool.price is None:
            continue
        away = 0.0
        for at in range(start - start % _PRICED_EVERY, end, _PRICED_EVERY):
            away = 0.8 * away + random.gauss(0, 0.06)
            by_day = 0.05 * math.sin((at % DAY / DAY - 0.3) * 2 * math.pi)
            price = float(pool.price) * max(0.5, 1 + away + by_day)
            yield PricePointRow(pool.name, datetime.fromtimestamp(at, UTC), Decimal(f"{price:.4f}"))


@dataclass(frozen=True, slots=True)
class TeamSpending:
    """Daily charges of each team, including its subteams."""

    by_day: Mapping[TeamName, Mapping[date, Fraction]]

    def between(self, team: TeamName, first: date, until: date) -> Fraction:
        found = self.by_day.get(team, {})
        return sum((amount for day, amount in found.items() if first <= day < until), Fraction(0))


async def spending(fleet: Fleet, costs: Costs, start: int, end: int) -> TeamSpending:
    """Read the spending from the ledger, as a report does."""
    calendar = calendar_of(fleet)
    period = Span(calendar.day_start(calendar.day_of(start)), calendar.day_end(calendar.day_of(end)))
    own: dict[TeamName, dict[date, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for charge in await costs.charges(fleet, period, (Label.TEAM, Label.DAY), now=end):
        if charge.labels is not None:
            name, day = charge.labels
            own[TeamName(name)][date.fromisoformat(day)] += charge.amount
    tree = TeamTree(fleet.teams)
    whole: dict[TeamName, dict[date, Fraction]] = {}
    for team in fleet.teams:
        days: dict[date, Fraction] = defaultdict(Fraction)
        for inside in tree.subtree(team):
            for at, amount in own[inside.name].items():
                days[at] += amount
        whole[team.name] = days
    return TeamSpending(whole)


def fitting(spent: TeamSpending, calendar: Calendar, start: int, end: int) -> Amounts:
    """Fit budgets to the spending: one is close to its warning, one was exceeded last month, then raised."""
    today = calendar.day_of(end)
    first = today.replace(day=1)
    before = (first - timedelta(days=1)).replace(day=1)
    days = max(1, round((end - start) / DAY))
    now: dict[TeamName, Decimal] = {}
    for team in AMOUNTS:
        a_month = spent.between(team, calendar.day_of(start), today + timedelta(days=1)) * 30 / days
        now[team] = _round(a_month * Fraction(5, 4))
    nlp, search = TeamName("nlp"), TeamName("search")
    this_month = spent.between(nlp, first, today + timedelta(days=1))
    now[nlp] = max(_round(this_month / Fraction(NEAR)), _round(Fraction(now[nlp]) / 5))
    then = dict(now)
    then[nlp] = _round(Fraction(now[nlp]) * Fraction(9, 4))
    last = spent.between(search, before, first)
    if last > Fraction(now[search]) / 4:
        then[search] = _round(last * Fraction(93, 100))
        now[search] = _round(last * Fraction(23, 20))
    return Amounts(then, now)


async def close_months(ledger: Ledger, fleet: Fleet, costs: Costs, start: int, end: int) -> None:
    """Close every month that is over, dated to the second day of the next month."""
    calendar = calendar_of(fleet)
    closing = MonthStatements(ledger, costs)
    month = calendar.day_of(start).replace(day=1)
    while calendar.month_end(month) <= end:
        await closing.close(fleet, month, FINANCE, now=end)
        at = min(calendar.month_end(month) + DAY + 9 * HOUR, end)
        await date_closing(ledger, month, datetime.fromtimestamp(at, UTC))
        month = next_month(month)


def told(
    fleets: Mapping[int, Fleet], spent: TeamSpending, calendar: Calendar, start: int, end: int
) -> tuple[list[StoredBudgetStatus], list[tuple[datetime, TeamName, str]]]:
    """Return the current state of the budgets, and their past events at the end of each day.

    `fleets` maps the time from which each fleet was in force to the fleet, in order.
    """
    known: dict[TeamName, StoredBudgetStatus] = {}
    events: list[tuple[datetime, TeamName, str]] = []
    for day in calendar.days(Span(calendar.day_start(calendar.day_of(start)), calendar.next_hour(end))):
        now = min(day.end, end) - 1
        fleet = [fleet for since, fleet in fleets.items() if since <= now or since == min(fleets)][-1]
        today = calendar.day_of(now)
        for team in fleet.teams:
            if team.budget is None:
                continue
            so_far = spent.between(team.name, today.replace(day=1), today + timedelta(days=1))
            week = spent.between(team.name, today - timedelta(days=6), today + timedelta(days=1))
            standing = stand(team, team.budget, so_far, week / 7, now, calendar)
            for name, said in events_of(fleet, known.get(team.name), standing):
                events.append((datetime.fromtimestamp(now, UTC), name, said))
            known[team.name] = standing
    return list(known.values()), events


def _round(amount: Fraction) -> Decimal:
    """Round up to a round number."""
    step = 1000 if amount > 20_000 else 100
    return Decimal(max(1, math.ceil(amount / step)) * step)
