"""Define the JSON of raises of team budgets: requests, decisions, and what became of each."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from fairway.model.budget import Every
from fairway.model.names import NAME_PATTERN
from fairway.wire.costs import Amount
from fairway.wire.fleet import Moment, RequestBody, Wire

MAX_TEXT = 500
"""The longest reason or comment."""
MAX_AMOUNT = 10**12
"""The largest amount, as of a budget in the fleet file."""

_Text = Annotated[str, Field(max_length=MAX_TEXT, pattern=r"^[^\x00]*$")]


class BudgetRaise(Wire):
    """A raise of a team's budget in one period, and what became of it."""

    id: int
    team: str
    currency: str
    every: Every
    period: date = Field(description="the first day of the period that it is for")
    until: date = Field(description="the first day of the next period: it ends there")
    amount: Amount = Field(description="what it adds to the amount of the fleet file")
    reason: str
    requested_by: str
    requested_at: Moment
    state: Literal["requested", "approved", "denied", "expired"] = Field(
        description="expired: the period ended before somebody decided"
    )
    decided_by: str | None
    decided_at: Moment | None
    comment: str = Field(description="of the decision; may be empty")
    may_approve: bool = Field(description="whether the caller may approve it")
    may_deny: bool = Field(description="whether the caller may deny it, or withdraw it as its requester")


class BudgetRaises(Wire):
    """Raises of the teams that the caller may see, newest first."""

    raises: list[BudgetRaise]
    of_teams: list[str] | None = Field(description="whose the caller may see; null: all")


class RaiseRequest(RequestBody):
    """A request to raise a team's budget until the current period ends."""

    team: Annotated[str, Field(pattern=NAME_PATTERN)]
    amount: Annotated[Decimal, Field(gt=0, le=MAX_AMOUNT, max_digits=16, decimal_places=3)] = Field(
        description="what to add to the budget, in the fleet's currency", examples=["5000"]
    )
    reason: Annotated[_Text, Field(min_length=1)] = Field(examples=["deadline of the paper"])


class RaiseDecision(RequestBody):
    """A decision on a request."""

    comment: _Text = ""
