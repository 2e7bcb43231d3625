"""The command group `fairway report`: usage, cost, waste and chargeback."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, cast

import click
from pydantic import BaseModel

from fairway.cli.commands.report_reconcile import reconcile
from fairway.cli.connect import connect, server_options, spinner
from fairway.cli.output.format import (
    Format,
    Function,
    Listing,
    TableView,
    data_text,
    note_lines,
    show,
    table_lines,
)
from fairway.cli.output.report import cost_view, efficiency_view, statements_view, usage_view, waste_view
from fairway.cli.output.report_files import parquet_bytes, write_file
from fairway.cli.parameter import ParsedParam
from fairway.client.client import Client
from fairway.client.requests import CostFilters
from fairway.model.charge import Label
from fairway.views.cost_records import Record, Report, csv_text, report_records, statement_records
from fairway.wire import costs as wire

_PLACES: Final = (Label.POOL, Label.CLUSTER, Label.SLICE, Label.DAY)


class ReportFormat(StrEnum):
    """The output formats of a report."""

    TABLE = "table"
    WIDE = "wide"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"
    PARQUET = "parquet"
    HTML = "html"


_SUFFIXES: Final = {
    ".csv": ReportFormat.CSV,
    ".json": ReportFormat.JSON,
    ".yaml": ReportFormat.YAML,
    ".parquet": ReportFormat.PARQUET,
    ".html": ReportFormat.HTML,
    ".htm": ReportFormat.HTML,
}


@dataclass(frozen=True, slots=True)
class ReportTarget:
    """The output format of a report and its file. Without a file it is printed to stdout."""

    shape: ReportFormat
    out: Path | None


def labels_param(allowed: Sequence[Label]) -> ParsedParam[tuple[str, ...]]:
    """Return the type of comma-separated labels, e.g. `team,user`; duplicates are removed."""

    def parse(text: str) -> tuple[str, ...]:
        labels = [x.strip() for x in text.split(",") if x.strip()]
        if not labels or any(label not in allowed for label in labels):
            raise ValueError(f"{text!r}: say any of {', '.join(allowed)}, with commas between")
        return tuple(dict.fromkeys(labels))

    return ParsedParam("labels", parse)


def _by_option(default: str, allowed: Sequence[Label]) -> Callable[[Function], Function]:
    return click.option(
        "--by",
        type=labels_param(allowed),
        default=default,
        show_default=True,
        metavar="LABELS",
        help=f"What rows are grouped by, with commas: {', '.join(allowed)}.",
    )


def _report_options(function: Function) -> Function:
    function = _out_options([s.value for s in ReportFormat])(server_options(function))
    function = click.option(
        "--most",
        type=click.IntRange(1, wire.MAX_ROWS),
        default=200,
        show_default=True,
        help="Rows to show; what is beyond is summed up in one.",
    )(function)
    function = click.option("--pool", metavar="NAME", help="Only this pool.")(function)
    return click.option(
        "--window",
        default="30d",
        show_default=True,
        metavar="TIME",
        help="30d (today and the days before), 2026-10, 2026-10-15, or 2026-10-01..2026-10-15.",
    )(function)


def _people_options(function: Function) -> Function:
    function = click.option("--user", metavar="LOGIN", help="Only this user.")(function)
    return click.option("--team", metavar="NAME", help="Only this team and those inside it.")(function)


def _out_options(shapes: Sequence[str]) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        function = click.option(
            "--out",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Write it there; .csv, .json, .parquet and .html say the shape.",
        )(function)
        return click.option(
            "-o",
            "--output",
            type=click.Choice(list(shapes)),
            help="table fits the terminal, html is one file to mail, the others are for programs.  [table]",
        )(function)

    return add


@click.group(
    epilog="""\b
Examples:
  fairway report cost                                       what each team cost in 30 days
  fairway report usage --by team,slice                      GPU-hours, slice-seconds by profile
  fairway report waste --window 7d                          what nobody used, and why
  fairway report efficiency --by user                       what became of what was held
  fairway report chargeback --month 2026-10                 what each team is charged
  fairway report cost --team nlp --by user -o html --out nlp.html
"""
)
def report() -> None:
    """Show what was used, how well, what it cost, what was wasted, and what each team is charged."""


@report.command(
    epilog="""\b
Examples:
  fairway report cost                                         by team, 30 days
  fairway report cost --by team,pool --window 2026-10         a month
  fairway report cost --team nlp --by user,name --most 20     a team's dearest jobs
  fairway report cost --by day -o csv --out days.csv
  fairway report cost --out october.html --window 2026-10     one file with plots, to mail
"""
)
@_by_option("team", list(Label))
@_people_options
@_report_options
def cost(**options: Any) -> None:
    """Show what usage cost, with shares of what nobody used and of overhead.

    What nobody carries, by the fleet's cost rules, is a line of its own. Rows sum to the total.
    """
    _run(Client.report_cost, cost_view, "adding up what was used", **options)


@report.command(
    epilog="""\b
Examples:
  fairway report usage                                        GPU-hours by team, 30 days
  fairway report usage --by team,slice                        slice-seconds of each MIG profile
  fairway report usage --by user --team nlp --window 7d
  fairway report usage --by pool,day --window 2026-10 -o csv
"""
)
@_by_option("team", list(Label))
@_people_options
@_report_options
def usage(**options: Any) -> None:
    """Show what was held: GPU-hours, slices by their part of the GPU, and slice-seconds.

    Running jobs count up to now; so do jobs made by sbatch or kubectl.
    """
    _run(Client.report_usage, usage_view, "adding up what was used", **options)


@report.command(
    epilog="""\b
Examples:
  fairway report waste                                        by pool, 30 days
  fairway report waste --by pool,day --window 7d
  fairway report waste -o wide                                the money for each reason too
  fairway report waste --out waste.html
"""
)
@_by_option("pool", _PLACES)
@_report_options
def waste(**options: Any) -> None:
    """Show what nobody used and what it cost: idle, fragmented, drained, down, unused commitments.

    Fragmented: free, but too few on each node for anything that waits. Where GPUs are measured, the used
    hours are divided as well: busy, held but idle, poorly used, not measured; -o wide tells them by row.
    """
    _run(Client.report_waste, waste_view, "adding up what was not used", **options)


@report.command(
    epilog="""\b
Examples:
  fairway report efficiency                                   by team, 30 days
  fairway report efficiency --by user --team nlp              who holds idle GPUs
  fairway report efficiency --by name --window 7d             train-1, train-2 are train-*
  fairway report efficiency --by pool -o wide                 memory, power, energy and CO2 too
"""
)
@_by_option("team", list(Label))
@_people_options
@_report_options
def efficiency(**options: Any) -> None:
    """Show what became of the GPU-hours that were held: busy, poorly used, idle, not measured.

    The four add up to what was held; what nobody measured is never called idle. Poorly used: the GPU did
    some work, and its engine waited for the rest of the time. Means are of the time that was measured.
    """
    _run(Client.report_efficiency, efficiency_view, "adding up what GPUs did", **options)


@report.command(
    epilog="""\b
Examples:
  fairway report chargeback --month 2026-10                   every team's statement
  fairway report chargeback --month 2026-10 --team nlp
  fairway report chargeback --month 2026-10 --out october.csv
  fairway report chargeback --month 2026-10 --close           for good: later finds are November's
"""
)
@click.option("--month", required=True, metavar="YYYY-MM", help="Of the fleet's time zone.")
@click.option("--team", metavar="NAME", help="Only this team and those inside it.")
@click.option("--close", is_flag=True, help="Close it: it stays as it is told now. Operators and admins may.")
@click.option("--yes", is_flag=True, help="Do not ask before closing.")
@_out_options([s.value for s in ReportFormat if s is not ReportFormat.WIDE])
@server_options
def chargeback(
    *,
    month: str,
    team: str | None,
    close: bool,
    yes: bool,
    output: str | None,
    out: Path | None,
    context: str | None,
    url: str | None,
) -> None:
    """Show what each team is charged for a month, line by line.

    A closed month is shown as it was told; what is found later is a correction in the next, with its month.
    """
    if close and team:
        raise click.UsageError("a month is closed for all teams: leave --team out")
    target = _target(output, out)
    with connect(context, url) as client:
        if close:
            _confirm(month, yes=yes)
        with spinner(f"making the statements of {month}"):
            found = client.close_month(month) if close else client.statements(month, team)
    html = None
    if target.shape is ReportFormat.HTML:
        from fairway.cli.output.report_html import statements_page

        html = statements_page(found)
    _show(found, statements_view(found), statement_records(found), target, html)


def _run(
    fetch: Callable[..., Report | wire.EfficiencyReport],
    view: Callable[..., TableView],
    doing: str,
    *,
    output: str | None,
    out: Path | None,
    context: str | None,
    url: str | None,
    **filters: Any,
) -> None:
    """Fetch a report and print or write it."""
    target = _target(output, out)
    with connect(context, url) as client:
        with spinner(doing):
            found = fetch(client, **filters)
        html = None
        if target.shape is ReportFormat.HTML:
            from fairway.cli.output.report_html import report_page

            with spinner("drawing"):
                html = report_page(client, cast("CostFilters", filters), found)
    table = view(found, wide=target.shape is ReportFormat.WIDE)
    _show(found, table, report_records(found), target, html)


def _confirm(month: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"closing {month} cannot be undone: say --yes")
    click.confirm(f"Close {month} for good?", abort=True, err=True)


def _target(output: str | None, out: Path | None) -> ReportTarget:
    """Choose the output format: by `-o`, else by the file's suffix, else a table."""
    if output is not None:
        shape = ReportFormat(output)
    elif out is not None:
        found = _SUFFIXES.get(out.suffix.lower())
        if found is None:
            raise click.UsageError(f"{out} does not say its shape: give -o csv, json, parquet or html")
        shape = found
    else:
        shape = ReportFormat.TABLE
    if shape is ReportFormat.PARQUET and out is None and sys.stdout.isatty():
        raise click.UsageError("parquet is not for a terminal: give --out FILE")
    return ReportTarget(shape, out)


def _show(
    document: BaseModel, view: TableView, records: Sequence[Record], target: ReportTarget, html: str | None
) -> None:
    match target.shape:
        case ReportFormat.TABLE | ReportFormat.WIDE if target.out is None:
            show(Listing([document], view), Format(target.shape))
            return
        case ReportFormat.TABLE | ReportFormat.WIDE:
            data: str | bytes = "\n".join(
                [*table_lines(view, Format.WIDE, colour=False), "", *note_lines(view), ""]
            )
        case ReportFormat.CSV:
            data = csv_text(records)
        case ReportFormat.JSON | ReportFormat.YAML:
            data = data_text(document.model_dump(mode="json"), Format(target.shape))
        case ReportFormat.PARQUET:
            data = parquet_bytes(records)
        case ReportFormat.HTML:
            data = html or ""
    if target.out is None:
        click.echo(data, nl=False)
        if not records and target.shape is ReportFormat.CSV:
            click.echo(view.empty, err=True)
        return
    write_file(target.out, data)
    click.echo(f"wrote {target.out}", err=True)


report.add_command(reconcile)
