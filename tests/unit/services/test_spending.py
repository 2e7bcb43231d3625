"""Daily spending for forecasts: what is read, how often, and how teams add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest

from fairway.cost.calendar import calendar_of
from fairway.cost.forecast import HISTORY_DAYS
from fairway.ledger import UsageFilter
from fairway.model.charge import Charge, ChargeKind, Label, Span
from fairway.model.fleet import Fleet, NamedBudget
from fairway.model.names import ClusterName, TeamName
from fairway.model.price import CostRules
from fairway.model.team import Team
from fairway.services.charges import EVERYBODY
from fairway.services.spending import PAST_SECONDS, SpendingHistory

NOON = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp())
TEAMS = (Team(TeamName("research")), Team(TeamName("nlp"), TeamName("research")), Team(TeamName("product")))
FLEET = Fleet("acme", "USD", (), (), TEAMS)


@dataclass
class Till:
    """Charges each team so much on each day, and as much of it today as is over; keeps the spans read."""

    per_day: dict[str, Fraction]
    read: list[Span] = field(default_factory=list)

    async def charges(
        self,
        fleet: Fleet,
        period: Span,
        by: Sequence[Label],
        which: UsageFilter = EVERYBODY,
        now: int | None = None,
    ) -> tuple[Charge, ...]:
        assert now is not None
        self.read.append(period)
        calendar = calendar_of(fleet)
        found = [self._charge(None, period, Fraction(1000))]  # idle, that nobody pays
        for day in calendar.days(period):
            part = Fraction(max(0, min(day.end, now) - day.start), day.end - day.start)
            for team, amount in self.per_day.items():
                labels = (team, calendar.day_of(day.start).isoformat())[: len(by)]
                found += [self._charge(labels, day, amount * part / 2)] * 2  # of two pools
        return tuple(found)

    async def by_budget(
        self, fleet: Fleet, budgets: Sequence[NamedBudget], period: Span, now: int | None = None
    ) -> Mapping[str, Mapping[date, Fraction]]:
        assert not budgets
        return {}

    def _charge(self, labels: tuple[str, ...] | None, span: Span, amount: Fraction) -> Charge:
        return Charge(
            kind=ChargeKind.USAGE,
            cluster=ClusterName("hpc"),
            supply=None,
            span=span,
            labels=labels,
            device_seconds=0,
            amount=amount,
        )


def till() -> Till:
    return Till({"research": Fraction(10), "nlp": Fraction(30), "": Fraction(5)})


async def test_each_payer_has_its_days_and_the_part_of_today() -> None:
    found = await SpendingHistory(till()).read(FLEET, Label.TEAM, NOON)
    assert found.keys() == {"research", "nlp", ""}
    nlp = found["nlp"]
    assert (nlp.day, nlp.first) == (date(2026, 11, 15), date(2026, 11, 15) - timedelta(days=HISTORY_DAYS))
    assert list(nlp.days) == [30.0] * HISTORY_DAYS
    assert (nlp.today, nlp.elapsed) == (15.0, 0.5)


async def test_the_month_of_each_team_is_forecast_with_those_inside_it() -> None:
    forecasts = await SpendingHistory(till()).month_forecasts(FLEET, NOON)
    assert {f.label for f in forecasts} == {Label.TEAM, Label.PROJECT}
    found = {f.payer: f for f in forecasts if f.label is Label.TEAM}
    assert found.keys() == {"research", "nlp"}  # product spent nothing, and what is of no team is no team's
    research = found["research"]
    assert (research.label, research.month) == (Label.TEAM, date(2026, 11, 1))
    assert research.spent == Decimal("580.00")  # 14 days and a half of 40
    assert research.expected == Decimal("1200.00")
    assert research.low < research.expected < research.high


async def test_a_team_includes_the_teams_inside_it() -> None:
    models = await SpendingHistory(till()).team_models(FLEET, NOON)
    assert models.keys() == {"research", "nlp", "product"}
    assert models[TeamName("research")].per_day == pytest.approx(40)
    assert models[TeamName("nlp")].per_day == pytest.approx(30)
    assert models[TeamName("product")].per_day == 0


async def test_past_days_are_read_once_an_hour_and_again_when_a_day_has_ended() -> None:
    costs = till()
    history = SpendingHistory(costs)
    await history.team_models(FLEET, NOON)
    whole = len(costs.read)
    assert sum(span.end - span.start for span in costs.read) == (HISTORY_DAYS + 1) * 86400
    await history.team_models(FLEET, NOON + 10)
    assert len(costs.read) == whole, "the loop asks every ten seconds"
    await history.team_models(FLEET, NOON + 61)
    assert len(costs.read) == whole + 1, "today alone"
    await history.team_models(FLEET, NOON + PAST_SECONDS)
    assert len(costs.read) == 2 * whole + 1
    await history.team_models(FLEET, NOON + 13 * 3600)
    assert len(costs.read) == 3 * whole + 1
    history.clear()
    await history.team_models(FLEET, NOON + 13 * 3600)
    assert len(costs.read) == 4 * whole + 1


async def test_days_are_those_of_the_fleets_time_zone() -> None:
    berlin = Fleet("acme", "USD", (), (), TEAMS, cost=CostRules("Europe/Berlin"))
    found = await SpendingHistory(till()).read(berlin, Label.TEAM, NOON)
    assert list(found["nlp"].days) == pytest.approx([30.0] * HISTORY_DAYS)  # one of them has 25 hours
    assert found["nlp"].elapsed == pytest.approx(13 / 24)
