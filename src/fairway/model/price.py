"""What capacity costs, and who pays for what nobody used: prices with dates, commitments, overhead, sharing.

Days are the fleet's own (`CostRules.timezone`); money is in the fleet's currency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fairway.model.names import SliceName


@dataclass(frozen=True, slots=True)
class PriceStep:
    """A price per GPU-hour that holds from the beginning of a day on, until the next step."""

    since: date
    per_gpu_hour: Decimal


@dataclass(frozen=True, slots=True)
class PricePoint:
    """A price per GPU-hour that holds from a moment on, until the next point: spot markets."""

    at: datetime
    per_gpu_hour: Decimal


@dataclass(frozen=True, slots=True)
class Commitment:
    """GPUs that are paid for at a price of their own, whether or not they are there."""

    gpus: int
    per_gpu_hour: Decimal
    since: date
    until: date
    """The first day it no longer holds."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """What refines a pool's `price`. A later entry of a kind wins from its moment on."""

    steps: tuple[PriceStep, ...] = ()
    """By day, ascending; before the first the pool's `price` holds."""
    discount: Decimal = Decimal(0)
    """Part of the list price that is not paid, 0 up to but not 1. Not of commitments or spot points."""
    commitments: tuple[Commitment, ...] = ()
    slices: Mapping[SliceName, Decimal] = field(default_factory=lambda: MappingProxyType({}))
    """Slices with a price of their own, per slice-hour; the others cost their part of the GPU."""


DEFAULT_PRICING: Final = Pricing()


class Sharing(StrEnum):
    """Who carries what nobody used, or what belongs to no job."""

    OWN_LINE = "own-line"
    """Nobody: it is shown by itself."""
    BY_GUARANTEE = "by-guarantee"
    """Teams, by what they are guaranteed of the pool; own line where nothing is."""
    BY_USAGE = "by-usage"
    """Whoever used the pool that day, by what it cost; own line where nobody did."""


@dataclass(frozen=True, slots=True)
class CostRules:
    """How charges are made."""

    timezone: str = "UTC"
    """IANA name: where days and months begin."""
    idle: Sharing = Sharing.OWN_LINE
    overhead: Sharing = Sharing.OWN_LINE


DEFAULT_COST_RULES: Final = CostRules()

MINOR_DIGITS: Final = MappingProxyType(
    {"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3}
    | dict.fromkeys(("CLP", "ISK", "JPY", "KRW", "PYG", "UGX", "VND", "XAF", "XOF", "XPF"), 0)
)
"""ISO 4217: digits after the point of currencies that have not two."""


def cent(currency: str) -> Decimal:
    """The smallest amount of a currency that statements show."""
    return Decimal(1).scaleb(-MINOR_DIGITS.get(currency, 2))
