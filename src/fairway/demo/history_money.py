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

from fairway.control.loops.budget import events_of, stored_status
from fairway.cost.calendar import Calendar, calendar_of, next_month
from fairway.cost.forecast import DailySpending, SpendingModel
from fairway.demo.fleet_text import AMOUNTS
from fairway.demo.history_policy import Amounts
from fairway.demo.jobs import DAY, HOUR
from fairway.ledger import Ledger, StoredBudgetStatus
from fairway.ledger.records.costs import PricePointRow
from fairway.ledger.seed import set_closed_at
from fairway.model.charge import Label, Span
from fairway.model.fleet import Capacity, Fleet
from fairway.model.names import TeamName
from fairway.model.team import TeamTree
from fairway.services.charges import Costs
from fairway.services.statements import MonthStatements

FINANCE: Final = "ruth"
"""The user who closes months."""
NLP_SPENT: Final = Decimal("0.78")
"""The fraction of its budget that team nlp has spent now; the warning is at 80 %."""
_PRICE_SECONDS: Final = 6 * HOUR


def spot_prices(fleet: Fleet, start: int, end: int, seed: int) -> Iterator[PricePointRow]:
    """Generate spot prices that vary around the list price, higher by day."""
    random = Random(seed)  # noqa: S311 - nothing secret
    for pool in fleet.pools:
        if pool.capacity is not Capacity.SPOT or pool.price is None:
            continue
        deviation = 0.0
        for at in range(start - start % _PRICE_SECONDS, end, _PRICE_SECONDS):
            deviation = 0.8 * deviation + random.gauss(0, 0.06)
            by_day = 0.05 * math.sin((at % DAY / DAY - 0.3) * 2 * math.pi)
            price = float(pool.price) * max(0.5, 1 + deviation + by_day)
            yield PricePointRow(pool.name, datetime.fromtimestamp(at, UTC), Decimal(f"{price:.4f}"))


@dataclass(frozen=True, slots=True)
class TeamSpending:
    """Daily charges of each team, including its subteams."""

    by_day: Mapping[TeamName, Mapping[date, Fraction]]

    def between(self, team: TeamName, first: date, until: date) -> Fraction:
        found = self.by_day.get(team, {})
        return sum((amount for day, amount in found.items() if first <= day < until), Fraction(0))

    def model(self, team: TeamName, now: int, calendar: Calendar) -> SpendingModel:
        """Return the forecast model of a team as of the end of a day."""
        found, today = self.by_day.get(team, {}), calendar.day_of(now)
        first = min(found, default=today)
        days = [float(found.get(first + timedelta(days=n), 0)) for n in range((today - first).days)]
        span = calendar.day_span(today)
        elapsed = (now - span.start) / (span.end - span.start)
        return SpendingModel(DailySpending(first, days, float(found.get(today, 0)), elapsed))


async def read_spending(fleet: Fleet, costs: Costs, start: int, end: int) -> TeamSpending:
    """Read the spending from the ledger, as a report does."""
    calendar = calendar_of(fleet)
    period = Span(calendar.day_start(calendar.day_of(start)), calendar.day_end(calendar.day_of(end)))
    own: dict[TeamName, dict[date, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for charge in await costs.charges(fleet, period, (Label.TEAM, Label.DAY), now=end):
        if charge.labels is not None:
            name, day = charge.labels
            own[TeamName(name)][date.fromisoformat(day)] += charge.amount
    tree = TeamTree(fleet.teams)
    total: dict[TeamName, dict[date, Fraction]] = {}
    for team in fleet.teams:
        days: dict[date, Fraction] = defaultdict(Fraction)
        for subteam in tree.subtree(team):
            for day_, amount in own[subteam.name].items():
                days[day_] += amount
        total[team.name] = days
    return TeamSpending(total)


def fit_budgets(spent: TeamSpending, calendar: Calendar, start: int, end: int) -> tuple[Amounts, Amounts]:
    """Fit old and new budgets to the spending: one is near its warning, one was exceeded, then raised."""
    today = calendar.day_of(end)
    first = today.replace(day=1)
    before = (first - timedelta(days=1)).replace(day=1)
    days = max(1, round((end - start) / DAY))
    now: dict[TeamName, Decimal] = {}
    for team in AMOUNTS:
        per_month = spent.between(team, calendar.day_of(start), today + timedelta(days=1)) * 30 / days
        now[team] = _round(per_month * Fraction(5, 4))
    nlp, search = TeamName("nlp"), TeamName("search")
    this_month = spent.between(nlp, first, today + timedelta(days=1))
    now[nlp] = max(_round(this_month / Fraction(NLP_SPENT)), _round(Fraction(now[nlp]) / 5))
    then = dict(now)
    then[nlp] = _round(Fraction(now[nlp]) * Fraction(9, 4))
    last = spent.between(search, before, first)
    if last > Fraction(now[search]) / 4:
        then[search] = _round(last * Fraction(93, 100))
        now[search] = _round(last * Fraction(23, 20))
    return then, now


async def close_months(ledger: Ledger, fleet: Fleet, costs: Costs, start: int, end: int) -> None:
    """Close every month that is over, dated to the second day of the next month."""
    calendar = calendar_of(fleet)
    closing = MonthStatements(ledger, costs)
    month = calendar.day_of(start).replace(day=1)
    while calendar.month_end(month) <= end:
        await closing.close(fleet, month, FINANCE, now=end)
        at = min(calendar.month_end(month) + DAY + 9 * HOUR, end)
        await set_closed_at(ledger, month, datetime.fromtimestamp(at, UTC))
        month = next_month(month)


def budget_history(
    fleets: Mapping[int, Fleet], spent: TeamSpending, calendar: Calendar, start: int, end: int
) -> tuple[list[StoredBudgetStatus], list[tuple[datetime, TeamName, str]]]:
    """Return the current state of the budgets, and their past events at the end of each day.

    `fleets` maps the time from which each fleet was in force to the fleet, in order.
    """
    statuses: dict[TeamName, StoredBudgetStatus] = {}
    events: list[tuple[datetime, TeamName, str]] = []
    for day in calendar.days(Span(calendar.day_start(calendar.day_of(start)), calendar.next_hour(end))):
        now = min(day.end, end) - 1
        fleet = [fleet for since, fleet in fleets.items() if since <= now or since == min(fleets)][-1]
        today = calendar.day_of(now)
        for team in fleet.teams:
            if team.budget is None:
                continue
            so_far = spent.between(team.name, today.replace(day=1), today + timedelta(days=1))
            status = stored_status(
                team.name, team.budget, so_far, spent.model(team.name, now, calendar), now, calendar
            )
            for name, message in events_of(fleet, statuses.get(team.name), status, now):
                events.append((datetime.fromtimestamp(now, UTC), name, message))
            statuses[team.name] = status
    return list(statuses.values()), events


def _round(amount: Fraction) -> Decimal:
    """Round up to a round number."""
    step = 1000 if amount > 20_000 else 100
    return Decimal(max(1, math.ceil(amount / step)) * step)
