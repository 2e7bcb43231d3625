"""Define a provider's bill by pool and day, which `fairway report reconcile` compares with own costs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

from fairway.model.names import PoolName


class BillForm(StrEnum):
    """The file format of a bill."""

    AWS = "aws"
    """AWS Cost and Usage Report, legacy CSV (`lineItem/UsageAmount`)."""
    AWS_2 = "aws-2"
    """AWS Data Exports, CUR 2.0 (`line_item_usage_amount`)."""
    FOCUS = "focus"
    """FOCUS CSV, version 1.0 or later."""


@dataclass(frozen=True, slots=True)
class BillLine:
    """The sum of a bill's lines for one pool on one day."""

    day: date
    pool: PoolName | None
    """None if no known pool matches; `about` then says what it is."""
    about: str
    """For lines without a pool: service, instance type, region."""
    gpu_hours: Decimal
    cost: Decimal
    lines: int = 1
    """The number of bill lines summed."""
    places: int = 10
    """The maximum number of decimal places of their costs: the precision of the bill."""


@dataclass(frozen=True, slots=True)
class Bill:
    """A whole bill, with its lines matched to pools."""

    form: BillForm
    currency: str
    """Empty if the bill does not state it."""
    lines: tuple[BillLine, ...]
    """Sorted by day, then pool; those without a pool last."""
    rows: int
    """The number of rows in the file."""


@dataclass(frozen=True, slots=True)
class OwnDay:
    """The cost of one pool's capacity on one day, according to Fairway."""

    day: date
    pool: PoolName
    gpu_hours: Fraction
    """GPU-hours of capacity, used or not, as a provider bills them."""
    cost: Fraction
