"""Define team budgets per month or quarter, and what happens when they are spent."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum


class Every(StrEnum):
    """The period of a budget: a calendar month or quarter in the fleet's time zone."""

    MONTH = "month"
    QUARTER = "quarter"


class AtLimit(StrEnum):
    """What happens when a budget is spent."""

    WARN = "warn"
    """Only a warning."""
    LOW_ONLY = "low-only"
    """Only jobs of a preemptible priority start."""
    STOP = "stop"
    """No jobs start."""


class Running(StrEnum):
    """What happens to running jobs when a budget is spent."""

    LEAVE = "leave"
    END = "end"
    """Cancel the jobs that `at_limit` would not start: all for `stop`, all but preemptible for `low-only`."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a team including all its descendants."""

    amount: Decimal
    """The amount of the fleet file; in a fleet with the raises of a period, the amount in force."""
    every: Every = Every.MONTH
    warn_at: Decimal = Decimal("0.8")
    """The fraction of the amount at which to warn."""
    at_limit: AtLimit = AtLimit.WARN
    running: Running = Running.LEAVE
    raised: Decimal = Decimal(0)
    """The part of the amount that approved raises add. Never in a fleet file: `with_raises` sets it."""


class BudgetLevel(StrEnum):
    """How much of a budget is spent, as a level."""

    OK = "ok"
    WARNED = "warned"
    """At least `warn_at` of the amount is spent."""
    SPENT = "spent"


class BudgetOutlook(StrEnum):
    """How a budget will end its period at the current rate of spending: the one level that people see."""

    OK = "ok"
    """It lasts until the end of the period."""
    WARNED = "warned"
    """It lasts, but at least `warn_at` of the amount is spent."""
    RUNS_OUT = "runs-out"
    """It will be spent before the end of the period."""
    SPENT = "spent"


class RaiseState(StrEnum):
    """What became of a request for a raise."""

    REQUESTED = "requested"
    APPROVED = "approved"
    DENIED = "denied"


class Hold(StrEnum):
    """Which jobs a spent budget blocks. Never in a fleet file: Fairway sets and clears it."""

    LOW_ONLY = "low-only"
    STOP = "stop"
