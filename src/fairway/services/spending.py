"""Read what payers spent on each of the last days, for forecasts. Past days rarely change and are cached."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final, Protocol

from fairway.cost.calendar import Calendar, calendar_of, next_month
from fairway.cost.forecast import HISTORY_DAYS, DailySpending, SpendingModel
from fairway.ledger import StoredForecast, UsageFilter
from fairway.model.charge import Charge, Label, Span
from fairway.model.fleet import Fleet, NamedBudget
from fairway.model.names import TeamName
from fairway.model.team import TeamTree
from fairway.services.charges import EVERYBODY

PAST_SECONDS: Final = 3600
"""How long the amounts of past days are cached: corrections and late usage are rare."""
MODEL_SECONDS: Final = 60
"""How long models are cached: the rate changes slowly, and today's charges cost a query."""
FORECAST_LABELS: Final = (Label.TEAM, Label.PROJECT)
"""What has forecasts of its month."""
_STEP: Final = Decimal("0.01")
_CHUNK_DAYS: Final = 7
"""Days that are read at once: bounds the memory, and lets other tasks run in between."""


class ReadsLabelledCharges(Protocol):
    """Provides charges; implemented by `Costs`."""

    async def charges(
        self,
        fleet: Fleet,
        period: Span,
        by: Sequence[Label],
        which: UsageFilter = EVERYBODY,
        now: int | None = None,
    ) -> tuple[Charge, ...]:
        """Return every charge of a period up to now."""
        ...

    async def by_budget(
        self, fleet: Fleet, budgets: Sequence[NamedBudget], period: Span, now: int | None = None
    ) -> Mapping[str, Mapping[date, Fraction]]:
        """Return what each budget counts of a period, by day."""
        ...


@dataclass(slots=True)
class _Past:
    """The amounts of past days by payer."""

    today: date
    zone: str
    read_at: int
    days: dict[str, list[float]] = field(default_factory=dict)


class SpendingHistory:
    """Reads and caches the daily charges of payers and the models that follow from them."""

    def __init__(self, costs: ReadsLabelledCharges) -> None:
        self._costs = costs
        self._past: dict[Label, _Past] = {}
        self._models: tuple[int, Fleet, Mapping[TeamName, SpendingModel]] | None = None
        self._counted: tuple[int, Fleet, date, Mapping[str, SpendingModel]] | None = None

    async def team_models(self, fleet: Fleet, now: int) -> Mapping[TeamName, SpendingModel]:
        """Return a model of each team of the fleet, with the teams that are inside it today."""
        if self._models is not None:
            computed_at, of, models = self._models
            if of is fleet and 0 <= now - computed_at < MODEL_SECONDS:
                return models
        spending = with_subteams(fleet, await self.read(fleet, Label.TEAM, now))
        models = {team: SpendingModel(days) for team, days in spending.items()}
        self._models = (now, fleet, models)
        return models

    async def budget_models(self, fleet: Fleet, now: int) -> Mapping[str, SpendingModel]:
        """Return a model of what each budget counts that is no team's own, from whole days."""
        calendar = calendar_of(fleet)
        today = calendar.day_of(now)
        if self._counted is not None:
            computed_at, of, of_day, models = self._counted
            if of is fleet and of_day == today and 0 <= now - computed_at < PAST_SECONDS:
                return models
        first = today - timedelta(days=HISTORY_DAYS)
        days = {named.name: [0.0] * HISTORY_DAYS for named in fleet.budgets}
        for span in _chunks(first, today, calendar) if fleet.budgets else ():
            for name, amounts in (await self._costs.by_budget(fleet, fleet.budgets, span, now)).items():
                for day, amount in amounts.items():
                    days[name][(day - first).days] += float(amount)
        models = {name: SpendingModel(DailySpending(first, amounts)) for name, amounts in days.items()}
        self._counted = (now, fleet, today, models)
        return models

    async def month_forecasts(self, fleet: Fleet, now: int) -> Sequence[StoredForecast]:
        """Forecast the month of each project, and of each team with the teams that are inside it today."""
        found: list[StoredForecast] = []
        for label in FORECAST_LABELS:
            own = await self.read(fleet, label, now)
            payers = with_subteams(fleet, own) if label is Label.TEAM else own
            found += [
                month_forecast(label, payer, days)
                for payer, days in payers.items()
                if payer and days.any_spent
            ]
        return found

    async def read(self, fleet: Fleet, label: Label, now: int) -> Mapping[str, DailySpending]:
        """Return the spending of every payer by `label`, each without what is inside it."""
        calendar = calendar_of(fleet)
        today = calendar.day_of(now)
        first = today - timedelta(days=HISTORY_DAYS)
        past = await self._read_past(fleet, label, today, first, calendar, now)
        span = calendar.day_span(today)
        so_far: dict[str, float] = defaultdict(float)
        for charge in await self._costs.charges(fleet, span, (label,), now=now):
            if charge.labels is not None:
                so_far[charge.labels[0]] += float(charge.amount)
        elapsed = min(0.999, max(0.0, (now - span.start) / (span.end - span.start)))
        nothing = [0.0] * HISTORY_DAYS
        return {
            payer: DailySpending(first, past.days.get(payer, nothing), so_far.get(payer, 0.0), elapsed)
            for payer in past.days.keys() | so_far.keys()
        }

    async def _read_past(
        self, fleet: Fleet, label: Label, today: date, first: date, calendar: Calendar, now: int
    ) -> _Past:
        stored = self._past.get(label)
        if (
            stored is not None
            and (stored.today, stored.zone) == (today, fleet.cost.timezone)
            and 0 <= now - stored.read_at < PAST_SECONDS
        ):
            return stored
        past = _Past(today, fleet.cost.timezone, now)
        for span in _chunks(first, today, calendar):
            for charge in await self._costs.charges(fleet, span, (label, Label.DAY), now=now):
                if charge.labels is not None:
                    payer, day = charge.labels
                    days = past.days.setdefault(payer, [0.0] * HISTORY_DAYS)
                    days[(date.fromisoformat(day) - first).days] += float(charge.amount)
        self._past[label] = past
        return past

    def clear(self) -> None:
        """Forget what was read."""
        self._past.clear()
        self._models = self._counted = None


def month_forecast(label: Label, payer: str, spending: DailySpending) -> StoredForecast:
    """Forecast what a payer will have spent when the month ends."""
    month = spending.day.replace(day=1)
    so_far = math.fsum([*spending.days[len(spending.days) - (spending.day - month).days :], spending.today])
    forecast = SpendingModel(spending).forecast(so_far, next_month(month))
    spent, expected, low, high = (
        Decimal(amount).quantize(_STEP) for amount in (so_far, forecast.expected, forecast.low, forecast.high)
    )
    return StoredForecast(label, payer, month, spent, expected, low, high)


def with_subteams(fleet: Fleet, own: Mapping[str, DailySpending]) -> Mapping[TeamName, DailySpending]:
    """Add up the spending of each team and of all teams that are inside it today.

    A forecast is about the teams inside it from now on: one that moved brings its history along.
    """
    tree = TeamTree(fleet.teams)
    some = next(iter(own.values()), None)
    if some is None:
        return {}
    found = {}
    for team in fleet.teams:
        parts = [own[inside.name] for inside in tree.subtree(team) if inside.name in own]
        days = [sum(amounts) for amounts in zip(*(part.days for part in parts), strict=True)]
        found[team.name] = DailySpending(
            some.first,
            days or [0.0] * len(some.days),
            sum(part.today for part in parts),
            some.elapsed,
        )
    return found


def _chunks(first: date, until: date, calendar: Calendar) -> Iterator[Span]:
    while first < until:
        following = min(until, first + timedelta(days=_CHUNK_DAYS))
        yield Span(calendar.day_start(first), calendar.day_start(following))
        first = following
