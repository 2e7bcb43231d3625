"""The command group `fairway export`: write charges and jobs as files for other tools."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options, spinner
from fairway.cli.group import Group
from fairway.cli.output.report_files import not_written
from fairway.model.errors import PermanentError

_MONTHS: Final = "--month 2026-10, or --window 2026-10-01..2026-10-15"
_AMOUNTS: Final = ("Cost", "Quantity", "UnitPrice", "Price")
"""Suffixes of the names of columns that hold decimals."""


@click.group(
    cls=Group,
    epilog="""\b
Examples:
  fairway export focus --month 2026-10 --out october.csv
  fairway export jobs --days 14 --out jobs.csv
""",
)
def export() -> None:
    """Export charges as FOCUS files, and jobs as traces."""


@export.command(
    epilog="""\b
Examples:
  fairway export focus --month 2026-10 --out october.csv
  fairway export focus --month 2026-10 --out october.parquet
  fairway export focus --window 7d --team nlp --out week.csv
  fairway export focus --month 2026-10 | gzip > october.csv.gz
"""
)
@click.option("--month", metavar="YYYY-MM", help="A month, including its corrections of earlier months.")
@click.option(
    "--window",
    metavar="WINDOW",
    help="7d, 2026-10-15, 2026-10-01..2026-10-15, last-week, last-month, …",
    shell_complete=completion.windows,
)
@click.option(
    "--team", metavar="NAME", help="Only this team and its subteams.", shell_complete=completion.teams
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to a .csv or .parquet file.  [default: CSV to stdout]",
)
@server_options
def focus(
    *,
    month: str | None,
    window: str | None,
    team: str | None,
    out: Path | None,
    context: str | None,
    url: str | None,
) -> None:
    """Export charges in the FOCUS 1.2 format, with the split-cost columns of 1.3.

    There is one row for each day, pool, team, user, priority and kind of charge. The amounts add up exactly
    to those of `fairway report cost`. The export is streamed, so its size is not limited by memory.
    """
    if (month is None) == (window is None):
        raise click.UsageError(f"give either {_MONTHS}")
    if out is not None and out.suffix.lower() not in (".csv", ".parquet"):
        raise click.UsageError(f"{out} is neither .csv nor .parquet")
    with connect(context, url) as client:
        pieces = client.export_focus(month or window or "", team)
        if out is None:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            return
        with spinner(f"writing {out}"):
            rows = _write(out, pieces)
    click.echo(f"wrote {out}: {rows:,} rows", err=True)


@export.command(
    epilog="""\b
Examples:
  fairway export jobs --days 14 --out jobs.csv
  fairway simulate -f fleet.yaml --trace jobs.csv --sweep half_life=1d,7d
"""
)
@click.option(
    "--days",
    type=click.IntRange(1, 366),
    default=14,
    show_default=True,
    metavar="N",
    help="Jobs submitted in the last N days, and those that ran or waited when these began.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to a .csv file.  [default: stdout]",
)
@server_options
def jobs(*, days: int, out: Path | None, context: str | None, url: str | None) -> None:
    """Export past jobs as a trace for `fairway simulate`.

    There is one row for each job: when it was submitted, when it started and how long it ran, its GPUs, user,
    team, pool and priority. Names of jobs are left out, and so are services.
    """
    if out is not None and out.suffix.lower() != ".csv":
        raise click.UsageError(f"{out} is not .csv")
    with connect(context, url) as client:
        pieces = client.export_jobs(days)
        if out is None:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            return
        with spinner(f"writing {out}"):
            rows = _write(out, pieces)
    click.echo(f"wrote {out}: {rows:,} jobs", err=True)


def _write(out: Path, pieces: Iterator[bytes]) -> int:
    """Write the file atomically, by way of a temporary file beside it. Returns its number of rows."""
    temporary = out.with_name(f".{out.name}.part")
    finished = temporary
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        rows = _count(temporary)
        if out.suffix.lower() == ".parquet":
            finished = out.with_name(f".{out.name}.parquet.part")
            _as_parquet(temporary, finished)
        finished.replace(out)
    except OSError as error:
        raise not_written(out, error) from error
    finally:
        temporary.unlink(missing_ok=True)
        finished.unlink(missing_ok=True)
    return rows


def _count(path: Path) -> int:
    with path.open(encoding="utf-8", newline="") as file:
        return sum(1 for _ in csv.reader(file)) - 1


def _as_parquet(source: Path, target: Path) -> None:
    """Convert CSV to Parquet with amounts as decimals and the rest as text; streamed, to bound memory."""
    import polars as pl

    with source.open(encoding="utf-8", newline="") as file:
        names = next(csv.reader(file), None)
    if not names:
        raise PermanentError(
            "NothingToWrite", "the server sent no columns", "try again; if it persists, report it as a bug"
        )
    decimals = [pl.col(n).cast(pl.Decimal(38, 12)) for n in names if n.endswith(_AMOUNTS)]
    text = dict.fromkeys(names, pl.String)
    pl.scan_csv(source, schema=text).with_columns(decimals).sink_parquet(target)
