"""How the pages write times, amounts and money: the same on every page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from fairway.model.price import MINOR_DIGITS
from fairway.model.wording import span


def duration(value: timedelta | float | None) -> str:
    """`20 min`, in the same words as at the command line."""
    if value is None:
        return "–"
    return span(value.total_seconds() if isinstance(value, timedelta) else value)


def ago(value: datetime | None, now: datetime) -> str:
    """`5 min ago`."""
    return "never" if value is None else f"{duration(now - value)} ago"


def moment(value: datetime | None) -> str:
    """`2026-11-15 18:03:22`, UTC: the page says so once."""
    return "–" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def clock(value: datetime | None, day: datetime) -> str:
    """`18:03:22` of the same day, else with its date: in a list of one job's moments the date is noise."""
    said = moment(value)
    return said.removeprefix(f"{day.astimezone(UTC):%Y-%m-%d} ")


def money(value: Decimal | float | str | None, currency: str = "") -> str:
    """`1,234.50 USD`, `1,234 JPY`: with as many digits as the currency has."""
    return "–" if value is None else f"{amount(Decimal(str(value)), currency)} {currency}".rstrip()


def amount(value: Decimal | int | None, currency: str = "") -> str:
    """`1,234.50`: money, or hours, where a heading says of what."""
    return "–" if value is None else f"{value:,.{MINOR_DIGITS.get(currency, 2)}f}"


def number(value: float | Decimal | None, places: int = 0) -> str:
    """`12,345`."""
    return "–" if value is None else f"{value:,.{places}f}"


def percent(part: float | Decimal, whole: float | Decimal) -> str:
    """`42 %`; of nothing: a dash."""
    return f"{float(part) / float(whole) * 100:.0f} %" if whole else "–"


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "duration": duration,
    "ago": ago,
    "moment": moment,
    "clock": clock,
    "money": money,
    "amount": amount,
    "number": number,
    "percent": percent,
}
