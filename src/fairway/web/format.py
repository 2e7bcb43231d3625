"""Format times, amounts and money, the same on every page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from fairway.model.price import MINOR_DIGITS
from fairway.model.text import span

_HALF_HUNDREDTH: Final = Decimal("0.005")


def duration(value: timedelta | float | None) -> str:
    """Format a duration as the command line does: `20 min`."""
    if value is None:
        return "–"
    return span(value.total_seconds() if isinstance(value, timedelta) else value)


def ago(value: datetime | None, now: datetime) -> str:
    """Format the time since `value`: `5 min ago`."""
    return "never" if value is None else f"{duration(now - value)} ago"


def moment(value: datetime | None) -> str:
    """Format a time as UTC: `2026-11-15 18:03:22`; the page states the zone once."""
    return "–" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def clock(value: datetime | None, day: datetime) -> str:
    """Format a time of day, `18:03:22`, with the date only if it is not `day`'s."""
    return moment(value).removeprefix(f"{day.astimezone(UTC):%Y-%m-%d} ")


def money(value: Decimal | float | str | None, currency: str = "") -> str:
    """Format money with the currency's decimals: `1,234.50 USD`, `1,234 JPY`."""
    return "–" if value is None else f"{amount(Decimal(str(value)), currency)} {currency}".rstrip()


def amount(value: Decimal | int | None, currency: str = "") -> str:
    """Format an amount without its unit, for columns whose heading has it: `1,234.50`."""
    return "–" if value is None else f"{value:,.{MINOR_DIGITS.get(currency, 2)}f}"


def number(value: float | Decimal | None, places: int = 0) -> str:
    """Format a number with thousands separators: `12,345`."""
    return "–" if value is None else f"{value:,.{places}f}"


def percent(part: float | Decimal, whole: float | Decimal) -> str:
    """Format `part` as a percentage of `whole`, `42 %`; a dash if `whole` is zero."""
    return f"{float(part) / float(whole) * 100:.0f} %" if whole else "–"


def rate(paid: Decimal, hours: Decimal, currency: str = "") -> str:
    """Format what an hour cost, in up to four places: as many as the rounded figures determine."""
    if not hours:
        return "–"
    found = paid / hours
    unit = Decimal(1).scaleb(-MINOR_DIGITS.get(currency, 2))
    doubt = 2 * (unit + abs(found) * _HALF_HUNDREDTH) / abs(hours)
    return f"{found:,.{min(4, max(MINOR_DIGITS.get(currency, 2), -doubt.adjusted() - 1))}f}"


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    function.__name__: function
    for function in (duration, ago, moment, clock, money, amount, number, percent, rate)
}
