"""How numbers, ages and moments read. Pure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

UNKNOWN = "-"


def span(seconds: float) -> str:
    """A length of time in its largest fitting unit: `12 s`, `5 min`, `3 h`, `9 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(max(0, seconds))} s"


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


def count(n: int, noun: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def moment(value: datetime | None, never: str) -> str:
    """A moment to the minute, UTC."""
    return never if value is None else value.strftime("%Y-%m-%d %H:%MZ")
