"""The command `fairway report reconcile`: compare the cost of capacity with a provider's bill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import click

from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, Shown, count, show
from fairway.cli.output.report import figure
from fairway.cli.output.report_files import csv_text
from fairway.cli.output.table import Column, Fit, TableView
from fairway.cli.shared.spinner import patience
from fairway.client.client import Client
from fairway.cost.bill_comparison import BillComparison, Gap, Reconciliation
from fairway.cost.bill_comparison import reconcile as compare
from fairway.files.bill.read import Matching, read_bill
from fairway.model.bill import Bill, OwnDay
from fairway.model.errors import PermanentError
from fairway.model.names import PoolName
from fairway.model.price import cent

_AGREE: Final = (Gap.NONE, Gap.ROUNDING)


class Pair(click.ParamType[tuple[str, str]]):
    """The click parameter type of `LEFT=RIGHT`, e.g. `p4d.24xlarge=cloud-a100`."""

    name = "pair"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split a pair at its last equals sign."""
        if isinstance(value, tuple):
            return value
        left, equals, right = value.rpartition("=")
        if not (left.strip() and equals and right.strip()):
            self.fail(f"{value!r} is not like p4d.24xlarge=cloud-a100", param, ctx)
        return left.strip(), right.strip()


@click.command(
    epilog="""\b
Examples:
  fairway report reconcile --bill cur.csv.gz        by each line's tag fairway-pool
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
    help="AWS Cost and Usage Report or FOCUS, CSV, also gzipped.",
)
@click.option(
    "--tag", default="fairway-pool", show_default=True, help="The tag whose value is a pool's name."
)
@click.option(
    "--map",
    "rules",
    type=Pair(),
    multiple=True,
    metavar="WHAT=POOL",
    help="An instance type, TYPE@REGION or resource id, and the pool it is of; may be repeated.",
)
@click.option(
    "--gpus", type=Pair(), multiple=True, metavar="TYPE=N", help="GPUs of an instance type that is not known."
)
@click.option("--all", "all_", is_flag=True, help="Also days on which both agree.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="How the comparison is shown.",
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
    """Compare what capacity cost with a provider's bill, by pool and day, and name what is unexplained.

    Exits with 1 if a line of the bill belongs to no pool or a pool's day is only on one side.
    """
    with connect(context, url) as client, patience(f"comparing with {bill.name}"):
        prices = client.prices()
        matching = Matching(
            frozenset(PoolName(p.pool) for p in prices.pools),
            tag,
            tuple((what, PoolName(pool)) for what, pool in rules),
            {kind: _number(n) for kind, n in gpus},
        )
        zone = client.report_capacity(window="1d").window.timezone
        read = read_bill(bill, matching, ZoneInfo(zone))
        _same_currency(read, prices.currency)
        found = compare(_ours(client, read), read, cent(prices.currency))
    _show(found, read, prices.currency, output, all_=all_)
    if any(c.gap in (Gap.NO_POOL, Gap.ONLY_OURS, Gap.ONLY_THEIRS) for c in found.comparisons):
        raise click.exceptions.Exit(1)


def _ours(client: Client, bill: Bill) -> list[OwnDay]:
    """Fetch the cost of capacity for the bill's days and pools; other pools are of other providers."""
    if not bill.lines:
        raise PermanentError("EmptyBill", "the bill has no lines of compute", "is it the right file?")
    days = [line.day for line in bill.lines]
    pools = {line.pool for line in bill.lines if line.pool is not None}
    report = client.report_capacity(window=f"{min(days)}..{max(days)}")
    return [
        OwnDay(d.day, PoolName(d.pool), Fraction(d.gpu_seconds, 3600), Fraction(d.cost))
        for d in report.days
        if d.pool in pools
    ]


def _show(found: Reconciliation, bill: Bill, currency: str, output: str, *, all_: bool) -> None:
    shown = [c for c in found.comparisons if all_ or c.gap not in _AGREE]
    if output == "csv":
        click.echo(csv_text([_record(c) for c in shown]), nl=False)
    elif output == "json":
        document = {
            "currency": currency,
            "ours": str(found.ours),
            "bill": str(found.bill),
            "by_gap": {gap.value: str(amount) for gap, amount in found.by_gap},
            "comparisons": [{k: str(v) for k, v in _record(c).items()} for c in shown],
        }
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        show(Shown([], reconciliation_view(found, shown, bill, currency)), Format.TABLE)


def reconciliation_view(
    found: Reconciliation, shown: Sequence[BillComparison], bill: Bill, currency: str
) -> TableView:
    """Return a table with one row for each pool and day that differs, then both totals."""
    columns = [
        Column("DAY"),
        Column("POOL", fit=Fit.MIDDLE),
        Column("OURS", right=True),
        Column("BILL", right=True),
        Column(f"MORE {currency}", right=True),
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
        totals = [f"{found.ours:,.2f}", f"{found.bill:,.2f}", f"{found.bill - found.ours:+,.2f}"]
        rows.append(["TOTAL", "", *totals, ""])
    reasons = [
        f"{gap.value.replace('-', ' ')}: {amount:+,.2f} {currency}" for gap, amount in found.by_gap if amount
    ]
    days = len({(c.day, c.pool) for c in found.comparisons})
    return TableView(
        columns,
        rows,
        empty=f"the bill and the report agree: {figure(found.bill)} {currency} on {count(days, 'pool-day')}",
        hint="see each of them:  --all",
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


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= 10_000):
        raise click.UsageError(f"--gpus: {text!r} is no number of GPUs")
    return int(text)


def _same_currency(bill: Bill, ours: str) -> None:
    if bill.currency and bill.currency != ours:
        raise PermanentError(
            "OtherCurrency",
            f"the bill is in {bill.currency}, the fleet in {ours}",
            "ask for the bill in the fleet's currency, or convert it first",
        )
