"""The command group `fairway price`: prices of GPUs, bought or on a spot market."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, TextIO

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options, spinner
from fairway.cli.group import Group
from fairway.cli.output.format import Format, Listing, count, output_option, show
from fairway.cli.output.report import price_points_view, prices_view
from fairway.cli.parameter import ParsedParam
from fairway.model.errors import PermanentError
from fairway.wire import costs as wire
from fairway.wire.fleet import MAX_PER_PAGE

_MAX_POINTS: Final = 1_000_000
_DAYS_A_YEAR: Final = Decimal("365.25")


def _amount(name: str, unit: str = "") -> ParsedParam[Decimal]:
    """Return the type of a number such as 250000, 250,000 or 0.18, optionally with `unit`; `70%` is 0.7."""

    def parse(text: str) -> Decimal:
        digits = text.strip().replace(",", "").replace("_", "")
        try:
            number = Decimal(digits.removesuffix(unit).strip())
        except InvalidOperation:
            number = Decimal("NaN")
        if not number.is_finite() or abs(number) > 10**15:
            raise ValueError(f"{text!r} is not {name}")
        return number / 100 if unit == "%" and digits.endswith("%") else number

    return ParsedParam(name, parse)


def _parse_years(text: str) -> Decimal:
    """Parse a lifetime, `4y`, `48mo` or `1461d`, into years."""
    found = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]{1,3})?)(y|mo|d)?", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a lifetime; use 4y, 48mo or 1461d")
    units_per_year = {"mo": Decimal(12), "d": _DAYS_A_YEAR}.get(found[2], Decimal(1))
    return Decimal(found[1]) / units_per_year


_MONEY: Final = _amount("an amount")
_WATTS: Final = _amount("watts", "W")
_YEARS: Final = ParsedParam("years", _parse_years)


@click.group(
    cls=Group,
    epilog="""\b
Examples:
  fairway price list
  fairway price owned --purchase 250000 --gpus 8 --lifetime 4y --power 700W --electricity 0.18
  fairway price points cloud-l40s prices.csv
""",
)
def price() -> None:
    """Show, compute and import GPU prices."""


@price.command(
    "list",
    epilog="\b\nExamples:\n  fairway price list             list price, discounts, commitments, spot\n",
)
@output_option
@server_options
def list_(*, output: Format, context: str | None, url: str | None) -> None:
    """List today's price of each pool."""
    with connect(context, url) as client:
        found = client.prices()
    show(Listing([found], prices_view(found)), output)


@price.command(
    epilog="""\b
Examples:
  fairway price owned --purchase 250000 --gpus 8 --lifetime 4y
  fairway price owned --purchase 250000 --gpus 8 --lifetime 4y --power 700W --idle-power 120W \\
      --pue 1.3 --electricity 0.18 --utilisation 70% --upkeep 12000 --interest 5% --currency EUR
"""
)
@click.option(
    "--purchase", type=_MONEY, required=True, help="Purchase price of all GPUs, including their servers."
)
@click.option("--gpus", type=click.IntRange(1, 10**6), required=True, help="Number of GPUs.")
@click.option("--lifetime", type=_YEARS, required=True, metavar="4y", help="Years of use: 4y, 48mo or 1461d.")
@click.option("--residual", type=_MONEY, default="0", help="Resale value at the end.  [default: 0]")
@click.option("--power", type=_WATTS, default="0", metavar="700W", help="Power of a busy GPU.  [default: 0]")
@click.option(
    "--idle-power", type=_WATTS, default="0", metavar="W", help="Power of an idle GPU.  [default: 0]"
)
@click.option(
    "--pue",
    type=_amount("a PUE"),
    default="1",
    help="Power usage effectiveness of the data centre.  [default: 1]",
)
@click.option("--electricity", type=_amount("a price"), default="0", help="Price of a kWh.  [default: 0]")
@click.option(
    "--utilisation",
    type=_amount("a part", "%"),
    default="100%",
    metavar="70%",
    help="Share of the time that GPUs are busy.  [default: 100%]",
)
@click.option("--upkeep", type=_MONEY, default="0", help="Maintenance of all GPUs, per year.  [default: 0]")
@click.option(
    "--interest", type=_amount("a rate", "%"), default="0%", help="Interest rate per year.  [default: 0%]"
)
@click.option("--currency", default="USD", show_default=True, help="Currency to print.")
def owned(
    *,
    purchase: Decimal,
    gpus: int,
    lifetime: Decimal,
    power: Decimal,
    idle_power: Decimal,
    electricity: Decimal,
    upkeep: Decimal,
    **others: Any,
) -> None:
    """Compute the price per GPU-hour of GPUs that you own, with its formula (TCO).

    This needs no server. Put the result into the fleet file as the price of the pool.
    """
    from fairway.cost.owned import owned_price

    price = owned_price(
        purchase,
        lifetime,
        gpus,
        watts_per_gpu=power,
        idle_watts_per_gpu=idle_power,
        price_per_kwh=electricity,
        upkeep_per_year=upkeep,
        **others,
    )
    click.echo(price.formula)
    click.echo(f"\nIn the fleet file:  price: {float(price.per_gpu_hour):.4f}", err=True)


def _parse_period(text: str) -> tuple[datetime, datetime | None]:
    """Parse the times of prices: one, `FROM..UNTIL` (before UNTIL), or `FROM..` for all from then on."""
    first, dots, last = text.partition("..")
    try:
        start = _parse_time(first)
        end = (_parse_time(last) if last else None) if dots else start + timedelta(seconds=1)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-10-01T03:17Z, FROM..UNTIL or FROM..") from None
    if end is not None and end <= start:
        raise ValueError(f"{text!r} ends before it begins")
    return start, end


def _parse_time(text: str) -> datetime:
    at = datetime.fromisoformat(text.strip())
    return at.replace(tzinfo=at.tzinfo or UTC)


@price.command(
    epilog="""\b
Examples:
  fairway price points cloud-l40s prices.csv
  aws ec2 describe-spot-price-history … | jq … | fairway price points cloud-l40s -
  fairway price points cloud-l40s                     list what is stored, newest first
  fairway price points cloud-l40s --history           also what was replaced or withdrawn
  fairway price points cloud-l40s --withdraw 2026-10-01T03:17Z
  fairway price points cloud-l40s --withdraw 2026-10-01..2026-10-02
\b
The file:
  at,per_gpu_hour
  2026-10-01T00:00:00Z,0.4120
  2026-10-01T03:17:00Z,0.3995
"""
)
@click.argument("pool", shell_complete=completion.pools)
@click.argument("file", type=click.File(encoding="utf-8-sig"), required=False)
@click.option(
    "--withdraw",
    "period",
    type=ParsedParam("period", _parse_period),
    metavar="FROM[..UNTIL]",
    help="Withdraw the price of this time, those before UNTIL, or with FROM.. all from then on.",
)
@click.option(
    "--allow-jumps", is_flag=True, help="Store prices that differ by more than half from the one before."
)
@click.option("--history", is_flag=True, help="List prices that were replaced or withdrawn, too.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_PER_PAGE),
    default=50,
    show_default=True,
    metavar="N",
    help="List at most N prices.",
)
@output_option
@server_options
def points(
    *,
    pool: str,
    file: TextIO | None,
    period: tuple[datetime, datetime | None] | None,
    allow_jumps: bool,
    history: bool,
    limit: int,
    output: Format,
    context: str | None,
    url: str | None,
) -> None:
    """Import spot prices of a pool from a CSV file, list them, or withdraw them.

    Each price applies from its time until the next one, instead of the list price. A price with the same time
    replaces the earlier one. Only pools with capacity: spot take prices. Closed months do not change; the
    difference is corrected in the next month.
    """
    if file is not None and period is not None:
        raise click.UsageError("give a file or --withdraw, not both")
    if period is not None:
        with connect(context, url) as client:
            withdrawn = client.withdraw_price_points(pool, *period)
        click.echo(f"{pool}: {count(withdrawn, 'price')} withdrawn", err=True)
    elif file is not None:
        found = list(_points(file))
        with connect(context, url) as client, spinner(f"sending {count(len(found), 'price')}"):
            new = client.keep_price_points(pool, found, allow_jumps=allow_jumps)
        click.echo(f"{pool}: {count(len(found), 'price')} read, {new} new", err=True)
    else:
        with connect(context, url) as client:
            listed = client.price_points(pool, history=history, limit=limit)
        show(Listing([listed], price_points_view(listed, history=history)), output)


def _points(file: TextIO) -> Iterator[wire.PricePoint]:
    name = Path(file.name).name if file.name else "stdin"
    rows = csv.reader(file)
    heading = [cell.strip().lower() for cell in next(rows, [])]
    if heading[:2] != ["at", "per_gpu_hour"]:
        raise _bad(f"{name}: the first line must be at,per_gpu_hour")
    for number, row in enumerate(rows, 2):
        if number > _MAX_POINTS:
            raise _bad(f"{name}: more than {_MAX_POINTS} lines; send it in parts")
        if row:
            yield _point(name, number, row)


def _point(name: str, number: int, row: list[str]) -> wire.PricePoint:
    try:
        return wire.PricePoint(at=_parse_time(row[0]), per_gpu_hour=Decimal(row[1].strip()))
    except (ValueError, IndexError, InvalidOperation):
        raise _bad(f"{name}:{number}: {','.join(row)[:80]!r} is not a time and a price") from None


def _bad(message: str) -> PermanentError:
    return PermanentError("InvalidPrices", message, "fairway price points --help  shows such a file")
