"""The command `fairway report reconcile`: compare the cost of capacity with a provider's bill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import click

from fairway.cli.connect import connect, server_options, spinner
from fairway.cli.output.format import Column, Fit, Format, Listing, TableView, count, show
from fairway.cli.output.report import figure
from fairway.cli.parameter import ParsedParam
from fairway.client.client import Client
from fairway.cost.bill_comparison import BillComparison, Gap, Reconciliation
from fairway.cost.bill_comparison import reconcile as compare
from fairway.files.bill.read import Matching, read_bill
from fairway.model.bill import Bill, OwnDay
from fairway.model.errors import PermanentError
from fairway.model.names import PoolName
from fairway.model.price import cent
from fairway.views.cost_records import csv_text

_AGREE: Final = (Gap.NONE, Gap.ROUNDING)


def _parse_pair(text: str) -> tuple[str, str]:
    """Parse `LEFT=RIGHT`, e.g. `p4d.24xlarge=cloud-a100`, at the last equals sign."""
    left, equals, right = text.rpartition("=")
    if not (left.strip() and equals and right.strip()):
        raise ValueError(f"{text!r} is not of the form p4d.24xlarge=cloud-a100")
    return left.strip(), right.strip()


_PAIR: Final = ParsedParam("pair", _parse_pair)


@click.command(
    epilog="""\b
Examples:
  fairway report reconcile --bill cur.csv.gz        match lines by the tag fairway-pool
  fairway report reconcile --bill cur.csv --map p4d.24xlarge=cloud-a100
  fairway report reconcile --bill cur.csv --map p5.48xlarge@us-east-1=cloud-h100
  fairway report reconcile --bill focus.csv --tag team-pool --all
  fairway report reconcile --bill focus.csv -o csv > differences.csv
"""
)
@click.option(
    "--bill",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="AWS Cost and Usage Report or FOCUS file, as CSV or gzipped CSV.",
)
@click.option(
    "--tag", default="fairway-pool", show_default=True, help="Tag whose value is the name of a pool."
)
@click.option(
    "--map",
    "rules",
    type=_PAIR,
    multiple=True,
    metavar="WHAT=POOL",
    help="Assign an instance type, TYPE@REGION or resource id to a pool (repeatable).",
)
@click.option(
    "--gpus",
    type=_PAIR,
    multiple=True,
    metavar="TYPE=N",
    help="GPU count of an instance type that Fairway does not know (repeatable).",
)
@click.option("--all", "all_", is_flag=True, help="Also show days on which both sides agree.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
@server_options
def reconcile(
    *,
    bill: Path,
    tag: str,
    rules: Sequence[tuple[str, str]],
    gpus: Sequence[tuple[str, str]],
    all_: bool,
    output: str,
    context: str | None,
    url: str | None,
) -> None:
    """Compare the cost of capacity with a provider's bill, by pool and day.

    Exits with 1 if a line of the bill belongs to no pool, or if a day of a pool is on one side only.
    """
    with connect(context, url) as client, spinner(f"comparing with {bill.name}"):
        prices = client.prices()
        matching = Matching(
            frozenset(PoolName(p.pool) for p in prices.pools),
            tag,
            tuple((what, PoolName(pool)) for what, pool in rules),
            {kind: _parse_gpu_count(n) for kind, n in gpus},
        )
        zone = client.report_capacity(window="1d").window.timezone
        parsed = read_bill(bill, matching, ZoneInfo(zone))
        _check_currency(parsed, prices.currency)
        result = compare(_own_days(client, parsed), parsed, cent(prices.currency))
    _show(result, parsed, prices.currency, output, all_=all_)
    if any(c.gap in (Gap.NO_POOL, Gap.ONLY_OURS, Gap.ONLY_THEIRS) for c in result.comparisons):
        raise click.exceptions.Exit(1)


def _own_days(client: Client, bill: Bill) -> list[OwnDay]:
    """Fetch the cost of capacity for the bill's days and pools; other pools are of other providers."""
    if not bill.lines:
        raise PermanentError(
            "EmptyBill", "the bill has no lines for compute instances", "check that this is the right file"
        )
    days = [line.day for line in bill.lines]
    pools = {line.pool for line in bill.lines if line.pool is not None}
    report = client.report_capacity(window=f"{min(days)}..{max(days)}")
    return [
        OwnDay(d.day, PoolName(d.pool), Fraction(d.gpu_seconds, 3600), Fraction(d.cost))
        for d in report.days
        if d.pool in pools
    ]


def _show(result: Reconciliation, bill: Bill, currency: str, output: str, *, all_: bool) -> None:
    shown = [c for c in result.comparisons if all_ or c.gap not in _AGREE]
    if output == "csv":
        click.echo(csv_text([_record(c) for c in shown]), nl=False)
    elif output == "json":
        document = {
            "currency": currency,
            "ours": str(result.ours),
            "bill": str(result.bill),
            "by_gap": {gap.value: str(amount) for gap, amount in result.by_gap},
            "comparisons": [{k: str(v) for k, v in _record(c).items()} for c in shown],
        }
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        show(Listing([], reconciliation_view(result, shown, bill, currency)), Format.TABLE)


def reconciliation_view(
    result: Reconciliation, shown: Sequence[BillComparison], bill: Bill, currency: str
) -> TableView:
    """Return a table with one row for each pool and day that differs, then both totals."""
    columns = [
        Column("DAY"),
        Column("POOL", fit=Fit.MIDDLE),
        *Column.numbers("OURS", "BILL", f"MORE {currency}"),
        Column("WHY", fit=Fit.END),
    ]
    rows = [
        [
            c.day.isoformat(),
            c.pool or "(no pool)",
            f"{c.ours:,.2f}",
            f"{c.bill:,.2f}",
            f"{c.difference:+,.2f}",
            c.explanation,
        ]
        for c in shown
    ]
    if rows:
        totals = [f"{result.ours:,.2f}", f"{result.bill:,.2f}", f"{result.bill - result.ours:+,.2f}"]
        rows.append(["TOTAL", "", *totals, ""])
    reasons = [
        f"{gap.value.replace('-', ' ')}: {amount:+,.2f} {currency}" for gap, amount in result.by_gap if amount
    ]
    days = len({(c.day, c.pool) for c in result.comparisons})
    return TableView(
        columns,
        rows,
        empty=f"the bill and the report agree: {figure(result.bill)} {currency} on {count(days, 'pool-day')}",
        hint="show all of them with:  --all",
        notes=[
            f"{count(bill.rows, 'row')} of the bill; the difference is  {'; '.join(reasons) or 'nothing'}"
        ],
        alarming=frozenset(i for i, c in enumerate(shown) if c.gap is Gap.NO_POOL),
    )


def _record(c: BillComparison) -> dict[str, Any]:
    return {
        "day": c.day.isoformat(),
        "pool": c.pool or "",
        "about": c.about,
        "our_hours": c.our_hours,
        "bill_hours": c.bill_hours,
        "ours": c.ours,
        "bill": c.bill,
        "difference": c.difference,
        "by_price": c.by_price,
        "by_hours": c.by_hours,
        "gap": c.gap.value,
        "explanation": c.explanation,
    }


def _parse_gpu_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 10_000):
        raise click.UsageError(f"--gpus: {text!r} is not a number of GPUs")
    return int(text)


def _check_currency(bill: Bill, ours: str) -> None:
    if bill.currency and bill.currency != ours:
        raise PermanentError(
            "OtherCurrency",
            f"the bill is in {bill.currency}, the fleet in {ours}",
            "request the bill in the fleet's currency, or convert it first",
        )
