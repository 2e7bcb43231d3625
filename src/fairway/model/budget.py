"""What a team may spend in a month or a quarter, and what happens when it has."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum


class Every(StrEnum):
    """How long a budget lasts: calendar months or quarters of the fleet's time zone."""

    MONTH = "month"
    QUARTER = "quarter"


class AtLimit(StrEnum):
    """What happens when it is spent."""

    WARN = "warn"
    """It is told, nothing else."""
    LOW_ONLY = "low-only"
    """Only jobs of a priority that is always preemptible start."""
    STOP = "stop"
    """Nothing starts."""


class Running(StrEnum):
    """What becomes of work that runs when a budget is spent."""

    LEAVE = "leave"
    END = "end"
    """Cancelled, what `at_limit` would not let start: `stop` all of it, `low-only` all but low."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Of a team with all teams inside it."""

    amount: Decimal
    every: Every = Every.MONTH
    warn_at: Decimal = Decimal("0.8")
    """Part of the amount at which it is told."""
    at_limit: AtLimit = AtLimit.WARN
    running: Running = Running.LEAVE


class Hold(StrEnum):
    """What is kept from starting for a spent budget. Never in a file: Fairway puts it on and takes it off."""

    LOW_ONLY = "low-only"
    STOP = "stop"
