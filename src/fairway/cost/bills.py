"""Our capacity cost against a provider's bill, by pool and day, with a name for whatever differs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum

from fairway.model.bill import Bill, OwnDay
from fairway.model.names import PoolName


class Gap(StrEnum):
    """Why the two differ."""

    NONE = "none"
    """They agree to the cent."""
    ROUNDING = "rounding"
    """By no more than the bill's own rounding of its lines."""
    PRICE = "price"
    """The same hours at another price."""
    HOURS = "hours"
    """Other hours at the same price."""
    PRICE_AND_HOURS = "price-and-hours"
    ONLY_OURS = "only-ours"
    """We have GPUs there that day; the bill has none."""
    ONLY_THEIRS = "only-theirs"
    """The bill has the pool that day; we saw no GPUs."""
    NO_POOL = "no-pool"
    """The bill has lines that belong to no pool."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One pool on one day, or what belongs to no pool that day."""

    day: date
    pool: PoolName | None
    about: str
    our_hours: Decimal
    bill_hours: Decimal
    ours: Decimal
    bill: Decimal
    by_price: Decimal
    """Part of the difference that another price makes."""
    by_hours: Decimal
    """Part of it that other hours make; both together are the difference."""
    gap: Gap
    explanation: str
    """One sentence."""

    @property
    def difference(self) -> Decimal:
        """What the bill is above ours."""
        return self.bill - self.ours


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The whole comparison. Its parts add up: ours + all differences = the bill."""

    comparisons: tuple[Comparison, ...]
    ours: Decimal
    bill: Decimal
    by_gap: tuple[tuple[Gap, Decimal], ...]
    """How much of the difference each reason makes, the largest first."""


def reconcile(ours: Iterable[OwnDay], bill: Bill, cent: Decimal) -> Reconciliation:
    """Compare by pool and day; `cent` is the currency's."""
    raise NotImplementedError
