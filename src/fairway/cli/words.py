"""How numbers, ages and moments read. Pure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from fairway.model.wording import count, span

__all__ = ["UNKNOWN", "age", "count", "moment", "number", "price", "since", "span"]

UNKNOWN = "-"


def age(seconds: int | None) -> str:
    """How old something is."""
    return "never" if seconds is None else span(seconds)


def since(moment: datetime | None, now: datetime) -> str:
    """How long something has been so."""
    return UNKNOWN if moment is None else span((now - moment).total_seconds())


def number(value: int | None) -> str:
    """A count; unknown is not zero."""
    return UNKNOWN if value is None else str(value)


def price(value: Decimal) -> str:
    """An amount to the cent, or finer if it is."""
    exponent = value.as_tuple().exponent
    return str(value) if isinstance(exponent, int) and exponent < -2 else f"{value:.2f}"


def moment(value: datetime | None, never: str) -> str:
    """A moment to the minute, UTC."""
    return never if value is None else value.strftime("%Y-%m-%d %H:%MZ")
