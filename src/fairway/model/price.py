"""Define the prices of capacity and the cost rules: dated prices, commitments, discounts, sharing.

Days are in the fleet's time zone (`CostRules.timezone`); amounts are in the fleet's currency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fairway.model.names import SliceName


@dataclass(frozen=True, slots=True)
class PriceStep:
    """A price per GPU-hour that applies from the start of a day until the next step."""

    since: date
    per_gpu_hour: Decimal


@dataclass(frozen=True, slots=True)
class PricePoint:
    """A spot price per GPU-hour that applies from a point in time until the next one."""

    at: datetime
    per_gpu_hour: Decimal


@dataclass(frozen=True, slots=True)
class Commitment:
    """GPUs that are paid for at a committed price, whether or not they exist."""

    gpus: int
    per_gpu_hour: Decimal
    since: date
    until: date
    """The first day after the commitment."""
    id: str = ""
    """The provider's name of it; empty: see `commitment_ids`."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """Refinements of a pool's `price`: later prices, discount, commitments and slice prices."""

    steps: tuple[PriceStep, ...] = ()
    """Sorted by day; before the first step the pool's `price` applies."""
    discount: Decimal = Decimal(0)
    """Fraction off the list price, at least 0 and below 1. Does not apply to commitments or spot prices."""
    commitments: tuple[Commitment, ...] = ()
    slices: Mapping[SliceName, Decimal] = field(default_factory=lambda: MappingProxyType({}))
    """Prices per slice-hour of slices that have one; the others cost their part of the GPU."""


DEFAULT_PRICING: Final = Pricing()


def commitment_ids(pool: str, commitments: Sequence[Commitment]) -> dict[Commitment, str]:
    """Return the id of each commitment of a pool: its own, or the pool and the day from which it applies.

    Of several without an id from the same day, the later ones of the file get a number.
    """
    found: dict[Commitment, str] = {}
    for commitment in commitments:
        id_ = default = commitment.id or f"{pool}-{commitment.since}"
        number = 1
        while id_ in found.values():
            number += 1
            id_ = f"{default}-{number}"
        found.setdefault(commitment, id_)
    return found


class Sharing(StrEnum):
    """Who pays for unused capacity or overhead."""

    OWN_LINE = "own-line"
    """Nobody: it is shown as a separate line."""
    BY_GUARANTEE = "by-guarantee"
    """Teams, in proportion to their guarantees on the pool; a separate line if there are none."""
    BY_USAGE = "by-usage"
    """The users of the pool that day, in proportion to their cost; a separate line if there are none."""


@dataclass(frozen=True, slots=True)
class CostRules:
    """The rules by which charges are computed."""

    timezone: str = "UTC"
    """IANA name of the time zone that defines days and months."""
    idle: Sharing = Sharing.OWN_LINE
    overhead: Sharing = Sharing.OWN_LINE
    labels: tuple[str, ...] = ()
    """The keys of labels of jobs that reports can group by."""


DEFAULT_COST_RULES: Final = CostRules()

MINOR_DIGITS: Final = MappingProxyType(
    {"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3}
    | dict.fromkeys(("CLP", "ISK", "JPY", "KRW", "PYG", "UGX", "VND", "XAF", "XOF", "XPF"), 0)
)
"""ISO 4217: decimal places of currencies that do not have two."""


def cent(currency: str) -> Decimal:
    """Return the smallest amount of a currency that statements show."""
    return Decimal(1).scaleb(-MINOR_DIGITS.get(currency, 2))


def money_text(amount: Decimal, currency: str) -> str:
    """Format money with the currency's decimals: `1,234.50 USD`, `1,234 JPY`."""
    return f"{amount:,.{MINOR_DIGITS.get(currency, 2)}f} {currency}"
