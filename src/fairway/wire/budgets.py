"""Define the JSON of budgets and their state."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Literal

from pydantic import Field

from fairway.model.budget import AtLimit, Every, Hold, Running
from fairway.wire.costs import Amount
from fairway.wire.fleet import Moment, Wire


class BudgetEvent(Wire):
    """What happened to a budget."""

    at: Moment
    text: str


class Budget(Wire):
    """A team's budget, with all teams inside it, and its state in the current period."""

    team: str
    currency: str
    every: Every
    period: date = Field(description="its first day")
    until: date = Field(description="the first day of the next period")
    amount: Amount
    warn_at: Decimal = Field(description="part of the amount, from 0 to 1")
    at_limit: AtLimit
    running: Running
    spent: Amount | None = Field(description="running work included; null: not counted yet")
    part: Decimal | None = Field(description="spent of the amount, in percent")
    per_day: Amount | None = Field(description="how fast it is being spent")
    runs_out: date | None = Field(description="at that rate; null: not in this period")
    level: Literal["ok", "warned", "spent"] | None = Field(description="by how much of the amount is spent")
    outlook: Literal["ok", "warned", "runs-out", "spent"] | None = Field(
        description="the level to show: how the period will end at the current rate; null: not counted yet"
    )
    forecast: str = Field(description="`outlook` in words: will run out 10 days early")
    hold: Hold | None = Field(description="which jobs do not start, because of this budget or one around it")
    since: Moment | None = Field(description="when it came to this level and hold")
    checked_at: Moment | None
    summary: str = Field(description="of a hold: what is spent, and what starts until when; else empty")
    hint: str = Field(description="what somebody can do about it")
    events: list[BudgetEvent] = Field(description="the newest few, the newest first")


class Budgets(Wire):
    """Every budget the caller may see, parents before children."""

    budgets: list[Budget]
    of_teams: list[str] | None = Field(description="whose the caller may see; null: all")
