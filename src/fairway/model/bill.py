"""A provider's bill, by pool and day: what `fairway report reconcile` holds ours against."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

from fairway.model.names import PoolName


class BillForm(StrEnum):
    """How a bill is written."""

    AWS = "aws"
    """AWS Cost and Usage Report, legacy CSV (`lineItem/UsageAmount`)."""
    AWS_2 = "aws-2"
    """AWS Data Exports, CUR 2.0 (`line_item_usage_amount`)."""
    FOCUS = "focus"
    """FOCUS CSV of any version from 1.0 on."""


@dataclass(frozen=True, slots=True)
class BillLine:
    """What a bill says of one pool on one day, its lines added up."""

    day: date
    pool: PoolName | None
    """None: of no pool that we know; `about` says what it is."""
    about: str
    """Of lines without a pool what they are for: service, instance type, region."""
    gpu_hours: Decimal
    cost: Decimal
    lines: int = 1
    """How many lines of the bill it was made of."""
    places: int = 10
    """Digits after the point that their costs have at most: how finely the bill is told."""


@dataclass(frozen=True, slots=True)
class Bill:
    """A whole bill, read and mapped."""

    form: BillForm
    currency: str
    """Empty: the bill does not say."""
    lines: tuple[BillLine, ...]
    """By day, then pool; those without a pool last."""
    rows: int
    """How many rows the file had."""


@dataclass(frozen=True, slots=True)
class OwnDay:
    """What we say one pool's capacity cost on one day."""

    day: date
    pool: PoolName
    gpu_hours: Fraction
    """Of capacity, used or not: what a provider bills."""
    cost: Fraction
