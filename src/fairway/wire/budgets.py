"""Define the JSON of budgets and their state."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Literal

from pydantic import Field

from fairway.model.budget import AtLimit, Every, Hold, Running
from fairway.model.charge import Label
from fairway.wire.costs import Amount
from fairway.wire.fleet import Moment, Wire


class BudgetEvent(Wire):
    """What happened to a budget."""

    at: Moment
    text: str


class Budget(Wire):
    """A budget and its state in the current period."""

    name: str = Field(description="the team's, if it is a team's own")
    scope: str = Field(description="what it counts: team nlp; the fleet, spot capacity")
    team: str = Field(description="the team that it counts, with all teams inside it; empty: not of a team")
    currency: str
    every: Every
    period: date = Field(description="its first day")
    until: date = Field(description="the first day of the next period")
    amount: Amount = Field(description="in force in this period: of the fleet file, and approved raises")
    raised: Amount = Field(default=Decimal(0), description="the part of the amount that raises add")
    warn_at: Decimal = Field(description="part of the amount, from 0 to 1")
    at_limit: AtLimit
    running: Running
    spent: Amount | None = Field(description="running work included; null: not counted yet")
    part: Decimal | None = Field(description="spent of the amount, in percent")
    per_day: Amount | None = Field(description="how fast it is being spent, on the mean weekday")
    runs_out: date | None = Field(description="the expected day; null: not in this period")
    expected: Amount | None = Field(
        description="what will be spent when the period ends; null: not known yet, or on hold"
    )
    low: Amount | None = Field(description="of the range that contains the result in 80 % of cases")
    high: Amount | None = Field(description="the other end of it")
    level: Literal["ok", "warned", "spent"] | None = Field(description="by how much of the amount is spent")
    outlook: Literal["ok", "warned", "runs-out", "spent"] | None = Field(
        description="the level to show: how the period is expected to end; null: not counted yet"
    )
    forecast: str = Field(description="`outlook` in words: will run out 10 days early")
    range: str = Field(description="`low` and `high` in words: 52,000–61,000 by month end; else empty")
    hold: Hold | None = Field(description="which jobs do not start, because of this budget or one around it")
    since: Moment | None = Field(description="when it came to this level and hold")
    checked_at: Moment | None
    summary: str = Field(description="of a hold: what is spent, and what starts until when; else empty")
    hint: str = Field(description="what somebody can do about it")
    events: list[BudgetEvent] = Field(description="the newest few, the newest first")


class Forecast(Wire):
    """What a team, with those inside it, or a project will have spent when the month ends."""

    name: str
    spent: Amount = Field(description="this month, up to `checked_at`")
    expected: Amount = Field(description="when the month ends")
    low: Amount = Field(description="of the range that contains the result in 80 % of cases")
    high: Amount = Field(description="the other end of it")
    range: str = Field(description="`low` and `high` in words: 52,000–61,000 by month end")
    checked_at: Moment


class Forecasts(Wire):
    """The forecasts of the payers that the caller may see, the largest first."""

    fleet: str
    currency: str
    by: Label
    month: date | None = Field(description="its first day; null: nothing was forecast yet")
    forecasts: list[Forecast]
    of_teams: list[str] | None = Field(description="whose the caller may see; null: all")


class Budgets(Wire):
    """Every budget the caller may see, parents before children."""

    budgets: list[Budget]
    of_teams: list[str] | None = Field(description="whose the caller may see; null: all")
