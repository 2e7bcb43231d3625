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

from fairway.cli import completion
from fairway.cli.commands.report_reconcile import reconcile
from fairway.cli.connect import connect, server_options, spinner
from fairway.cli.group import Group
from fairway.cli.output.budgets import forecasts_view
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
from fairway.cli.output.report import (
    commitments_view,
    cost_view,
    efficiency_view,
    statements_view,
    usage_view,
    waste_view,
)
from fairway.cli.output.report_files import parquet_bytes, write_file
from fairway.cli.parameter import ParsedParam
from fairway.client.client import Client
from fairway.client.requests import CostFilters
from fairway.model.charge import JobLabel, Label, parse_dimension
from fairway.model.cost_unit import parse_divisor
from fairway.views.cost_records import Record, Report, csv_text, report_records, statement_records
from fairway.views.rounded import rounded_report
from fairway.wire import costs as wire

_MEASURED: Final = tuple(label for label in Label if label is not Label.OUTCOME)
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

    def valid(label: str) -> bool:
        found = parse_dimension(label)
        return found in allowed or (Label.PROJECT in allowed and isinstance(found, JobLabel))

    def parse(text: str) -> tuple[str, ...]:
        labels = [x.strip() for x in text.split(",") if x.strip()]
        if not labels or not all(map(valid, labels)):
            raise ValueError(f"{text!r}: use any of {_dimensions(allowed)}, separated by commas")
        return tuple(dict.fromkeys(labels))

    return ParsedParam("labels", parse)


def _parse_per(text: str) -> str:
    divisor = parse_divisor(text)
    if divisor is None:
        raise ValueError(f"{text!r}: use a unit (steps), a number of units (1000:steps), or label:KEY")
    return str(divisor)


def _dimensions(allowed: Sequence[Label]) -> str:
    return ", ".join([*allowed, *(["label:KEY"] if Label.PROJECT in allowed else [])])


def _by_option(default: str, allowed: Sequence[Label]) -> Callable[[Function], Function]:
    return click.option(
        "--by",
        type=labels_param(allowed),
        default=default,
        show_default=True,
        metavar="LABELS",
        help=f"Group rows by (comma-separated): {_dimensions(allowed)}.",
    )


def _report_options(function: Function) -> Function:
    function = _out_options([s.value for s in ReportFormat])(server_options(function))
    function = click.option(
        "--limit",
        "most",
        type=click.IntRange(1, wire.MAX_ROWS),
        default=200,
        show_default=True,
        metavar="N",
        help="Show at most N rows, and the sum of the others in one.",
    )(function)
    function = click.option(
        "--pool", metavar="NAME", help="Only this pool.", shell_complete=completion.pools
    )(function)
    return click.option(
        "--window",
        default="30d",
        show_default=True,
        metavar="WINDOW",
        help="Time window: 7d, 2026-10, 2026-10-15, 2026-10-01..2026-10-15, today, last-week, this-month, …",
        shell_complete=completion.windows,
    )(function)


def _people_options(function: Function) -> Function:
    function = click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only jobs with this label, of those in the fleet file's `cost.labels` (repeatable).",
    )(function)
    function = click.option("--project", metavar="NAME", help="Only jobs of this project.")(function)
    function = click.option("--user", metavar="LOGIN", help="Only this user.")(function)
    return click.option(
        "--team", metavar="NAME", help="Only this team and its subteams.", shell_complete=completion.teams
    )(function)


def _out_options(shapes: Sequence[str]) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        function = click.option(
            "--out",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Write to this file; its suffix (.csv, .json, .parquet, .html) sets the format.",
        )(function)
        return click.option(
            "-o",
            "--output",
            type=click.Choice(list(shapes)),
            help="Output format; `html` is a single file with charts.  [default: table]",
        )(function)

    return add


@click.group(
    cls=Group,
    epilog="""\b
Examples:
  fairway report cost                                       cost by team, last 30 days
  fairway report usage --by team,slice                      GPU-hours by team and MIG profile
  fairway report waste --window last-week                   unused capacity, by reason
  fairway report efficiency --by user                       busy and idle GPU-hours by user
  fairway report forecast                                   month-end costs of teams
  fairway report chargeback                                 last month's charges by team
  fairway report cost --team nlp --by user -o html --out nlp.html
""",
)
def report() -> None:
    """Report cost, usage, waste, efficiency, forecasts and chargeback."""


@report.command(
    epilog="""\b
Examples:
  fairway report cost                                         by team, last 30 days
  fairway report cost --by team,pool --window 2026-10
  fairway report cost --project llm --by label:experiment     of a project, by a label of its jobs
  fairway report cost --team nlp --by user,name --limit 20    the most expensive jobs of a team
  fairway report cost --by outcome                            what failed or was preempted cost
  fairway report cost --per 1000:steps                        also the cost of 1,000 steps
  fairway report cost --by project --per label:experiment     also the cost of an experiment
  fairway report cost --by day -o csv --out days.csv
  fairway report cost --out october.html --window 2026-10     one file with charts, to mail
"""
)
@_by_option("team", list(Label))
@click.option(
    "--per",
    type=ParsedParam("unit", _parse_per),
    metavar="UNIT",
    help="Also divide the cost: by a unit that jobs report (steps), by a number of units (1000:steps), or by "
    "the number of different values of a label (label:experiment).",
)
@_people_options
@_report_options
def cost(**options: Any) -> None:
    """Report the cost of usage, including shares of unused capacity and overhead.

    Cost that no team pays, according to the cost rules of the fleet file, is a row of its own. The rows add
    up to the total.

    With --per, COUNT is what the jobs of a row reported with `fairway count`, or the number of values of the
    label, and the last column the cost of each, with its share of idle capacity and overhead.
    """
    _run(Client.report_cost, cost_view, "calculating cost", **options)


@report.command(
    epilog="""\b
Examples:
  fairway report usage                                        GPU-hours by team, last 30 days
  fairway report usage --by team,slice                        slice-seconds by MIG profile
  fairway report usage --by user --team nlp --window 7d
  fairway report usage --by pool,day --window 2026-10 -o csv
"""
)
@_by_option("team", list(Label))
@_people_options
@_report_options
def usage(**options: Any) -> None:
    """Report usage: GPU-hours, with slices as fractions of a GPU, and slice-seconds.

    Running jobs count up to now. Jobs made with sbatch or kubectl count too.
    """
    _run(Client.report_usage, usage_view, "calculating usage", **options)


@report.command(
    epilog="""\b
Examples:
  fairway report waste                                        by pool, last 30 days
  fairway report waste --by pool,day --window 7d
  fairway report waste -o wide                                also the cost of each reason
  fairway report waste --out waste.html
"""
)
@_by_option("pool", _PLACES)
@_report_options
def waste(**options: Any) -> None:
    """Report unused capacity and its cost: idle, fragmented, drained, down, unused commitments.

    Fragmented GPUs are free, but too few on each node for the jobs that are waiting. If GPU metrics are read,
    the hours in use are divided as well: busy, held but idle, poorly used, not measured (-o wide: by row).
    """
    _run(Client.report_waste, waste_view, "calculating waste", **options)


@report.command(
    epilog="""\b
Examples:
  fairway report efficiency                                   by team, last 30 days
  fairway report efficiency --by user --team nlp              who holds idle GPUs?
  fairway report efficiency --by name --window 7d             train-1 and train-2 count as train-*
  fairway report efficiency --by pool -o wide                 also memory, power, energy and CO2
"""
)
@_by_option("team", _MEASURED)
@_people_options
@_report_options
def efficiency(**options: Any) -> None:
    """Report how GPU-hours were used: busy, poorly used, idle or not measured.

    The four add up to the GPU-hours that jobs held; unmeasured time never counts as idle. Poorly used means
    that the GPU was busy for only part of the time. Averages cover the measured time only.
    """
    _run(Client.report_efficiency, efficiency_view, "calculating efficiency", **options)


@report.command(
    epilog="""\b
Examples:
  fairway report chargeback                                   last month, all teams
  fairway report chargeback --month 2026-10 --team nlp
  fairway report chargeback --month 2026-10 --out october.csv
  fairway report chargeback --month 2026-10 --team nlp --out nlp.html    every amount explained
  fairway report chargeback --month 2026-10 --close           final; later changes go to November
"""
)
@click.option(
    "--month",
    metavar="YYYY-MM",
    help="Month in the fleet's time zone, or this-month.  [default: last-month]",
)
@click.option(
    "--team", metavar="NAME", help="Only this team and its subteams.", shell_complete=completion.teams
)
@click.option("--close", is_flag=True, help="Close the month (operators and admins). This cannot be undone.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_out_options([s.value for s in ReportFormat if s is not ReportFormat.WIDE])
@server_options
def chargeback(
    *,
    month: str | None,
    team: str | None,
    close: bool,
    yes: bool,
    output: str | None,
    out: Path | None,
    context: str | None,
    url: str | None,
) -> None:
    """Report the charges of a month by team.

    A closed month never changes; later findings become corrections in the next month.
    """
    if close and team:
        raise click.UsageError("a month is closed for all teams: remove --team")
    if close and month is None:
        raise click.UsageError("name the month to close:  --month YYYY-MM")
    month = month or "last-month"
    target = _target(output, out)
    with connect(context, url) as client:
        if close:
            _confirm(month, yes=yes)
        with spinner(f"calculating the charges of {month}"):
            found = client.close_month(month) if close else client.statements(month, team)
            html = None
            if target.shape is ReportFormat.HTML:
                html = client.statement_document(month, team).html
    _show(found, statements_view(found), statement_records(found), target, html)


@report.command(
    epilog="""\b
Examples:
  fairway report commitments                                  last 30 days
  fairway report commitments --window 2026-10 --pool cloud-h100
"""
)
@click.option("--pool", metavar="NAME", help="Only this pool.", shell_complete=completion.pools)
@click.option(
    "--window",
    default="30d",
    show_default=True,
    metavar="WINDOW",
    help="Time window: 7d, 2026-10, 2026-10-01..2026-10-15, last-month, this-month, …",
    shell_complete=completion.windows,
)
@_out_options([s.value for s in ReportFormat if s is not ReportFormat.HTML])
@server_options
def commitments(
    *,
    window: str,
    pool: str | None,
    output: str | None,
    out: Path | None,
    context: str | None,
    url: str | None,
) -> None:
    """Report coverage, utilisation and break-even of each commitment.

    A commitment costs less than list price from its break-even on: if a larger part of its GPU-hours is used
    than it costs of the list price.
    """
    target = _target(output, out)
    with connect(context, url) as client, spinner("calculating the use of commitments"):
        found = client.report_commitments(window=window, pool=pool)
    records = [row.model_dump(mode="json") for row in found.commitments]
    table = commitments_view(found, wide=target.shape is ReportFormat.WIDE)
    _show(found, table, records, target, None)


@report.command(
    epilog="""\b
Examples:
  fairway report forecast                                     this month, by team
  fairway report forecast --by project
"""
)
@click.option(
    "--by",
    type=click.Choice([Label.TEAM.value, Label.PROJECT.value]),
    default=Label.TEAM.value,
    show_default=True,
    help="Projects span teams: only roles that see all costs get them.",
)
@_out_options([s.value for s in ReportFormat if s not in {ReportFormat.WIDE, ReportFormat.HTML}])
@server_options
def forecast(*, by: str, output: str | None, out: Path | None, context: str | None, url: str | None) -> None:
    """Forecast what each team, with those inside it, or project will have spent when the month ends.

    The range contains the result in 80 % of cases. Forecasts are computed every five minutes.
    """
    target = _target(output, out)
    with connect(context, url) as client:
        found = client.forecasts(by)
    records = [row.model_dump(exclude={"range"}, mode="json") for row in found.forecasts]
    _show(found, forecasts_view(found), records, target, None)


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

            with spinner("drawing charts"):
                html = report_page(client, cast("CostFilters", filters), found)
    table = view(rounded_report(found), wide=target.shape is ReportFormat.WIDE)
    _show(found, table, report_records(found), target, html)


def _confirm(month: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"closing {month} cannot be undone: confirm with --yes")
    click.confirm(f"Close {month}? This cannot be undone.", abort=True, err=True)


def _target(output: str | None, out: Path | None) -> ReportTarget:
    """Choose the output format: by `-o`, else by the file's suffix, else a table."""
    if output is not None:
        shape = ReportFormat(output)
    elif out is not None:
        found = _SUFFIXES.get(out.suffix.lower())
        if found is None:
            raise click.UsageError(f"the format of {out} is unknown: add -o csv, json, parquet or html")
        shape = found
    else:
        shape = ReportFormat.TABLE
    if shape is ReportFormat.PARQUET and out is None and sys.stdout.isatty():
        raise click.UsageError("parquet cannot be printed to a terminal: add --out FILE")
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
