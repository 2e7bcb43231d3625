"""Render reports as one HTML file without scripts or external resources, so that it can be mailed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from fairway.cli.output.format import TableView
from fairway.cli.output.report import (
    cost_view,
    during,
    efficiency_view,
    figure,
    percent,
    usage_view,
    waste_view,
)
from fairway.cli.output.svg import NARROW, WIDE, Bar, SvgPlot, SvgSeries, bars_plot, columns_plot
from fairway.client.client import Client
from fairway.client.requests import CostFilters
from fairway.model.charge import UNUSED_KINDS, ChargeKind, Dimension, Label
from fairway.model.gpu_use import HeldKind
from fairway.views.colours import OTHERS, PALETTE, colour_class, palette_css
from fairway.views.costs import HELD_WORDS, KIND_WORDS, AnyRow, row_names
from fairway.views.rounded import AnyReport, rounded_report
from fairway.wire import costs as wire

_BARS: Final = 15
_WASTED: Final = tuple(k for k in UNUSED_KINDS if k is not ChargeKind.COMMITMENT)
REPORT_TEMPLATE: Final = Environment(
    loader=PackageLoader("fairway.cli"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
).get_template("report.html", globals={"palette": palette_css()})


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A section of a page: a plot at both widths, or a table."""

    title: str
    css: str = ""
    legend: Sequence[tuple[str, str]] | None = None
    """Names, and the CSS classes of their colours."""
    plots: Sequence[SvgPlot] = ()
    view: TableView | None = None
    marked: Mapping[int, str] = field(default_factory=dict)
    """CSS classes of rows, by their index."""


@dataclass(frozen=True, slots=True)
class DailyValues:
    """The data of a plot over time: a value for each name and day."""

    days: Sequence[str]
    by_name: dict[str, dict[str, Decimal]]
    """Name to day to value."""
    unit: str
    colours: Mapping[str, str] = field(default_factory=dict)
    """The CSS classes of names with fixed colours; the others are assigned in order."""


def cost_page(report: wire.CostReport, daily: DailyValues) -> str:
    """Render a cost report."""
    total = report.total
    figures = [
        (f"total, {report.currency}", figure(total.total)),
        ("GPU-hours", figure(total.gpu_hours)),
        ("per GPU-hour", f"{total.total / total.gpu_hours:,.2f}" if total.gpu_hours else "-"),
        ("unused and overhead", f"{percent(total.idle + total.overhead, total.total)} %"),
    ]
    bars = [
        Bar(
            _name(row, report.by),
            [row.usage, row.idle, row.overhead],
            f"{figure(row.total)} {report.currency}",
        )
        for row in report.rows[:_BARS]
    ]
    names = ["usage", "idle share", "overhead share"]
    own = {i: "own" for i, row in enumerate(report.rows) if row.kind is not None}
    sections = [
        *_over_time(f"Cost by day, {report.currency}", daily),
        *_bars(f"Cost by {_by(report)}", bars, names, report.currency),
        _table(f"All rows by {_by(report)}", cost_view(report, wide=True), own),
    ]
    return _page(f"Cost of {_subject(report)}", report, figures, sections)


def usage_page(report: wire.UsageReport, daily: DailyValues) -> str:
    """Render a usage report."""
    total = report.total
    figures = [("GPU-hours", figure(total.gpu_hours))]
    if total.slice_seconds:
        figures.append(("slice-hours", figure(total.slice_hours)))
        figures.append(("slice-seconds", figure(total.slice_seconds)))
    bars = [
        Bar(_name(row, report.by), [row.gpu_hours], f"{figure(row.gpu_hours)} GPU-hours")
        for row in report.rows[:_BARS]
    ]
    sections = [
        *_over_time("GPU-hours by day", daily),
        *_bars(f"GPU-hours by {_by(report)}", bars, ["GPU-hours"], "GPU-hours"),
        _table(f"All rows by {_by(report)}", usage_view(report, wide=True), {}),
    ]
    return _page(f"Usage of {_subject(report)}", report, figures, sections)


def waste_page(report: wire.WasteReport, daily: DailyValues) -> str:
    """Render a waste report."""
    total, zero = report.total, Decimal(0)
    unused = sum((total.hours.get(k, zero) for k in _WASTED), zero)
    figures = [
        (f"cost, {report.currency}", figure(total.amount)),
        ("unused", f"{percent(unused, total.capacity_hours)} %"),
        ("hours unused", figure(unused)),
        ("capacity hours", figure(total.capacity_hours)),
    ]
    names = ["used", *(KIND_WORDS[k] for k in _WASTED)]
    bars = [
        Bar(
            _name(row, report.by),
            [row.used_hours, *(row.hours.get(k, zero) for k in _WASTED)],
            f"{percent(row.capacity_hours - row.used_hours, row.capacity_hours)} % unused",
        )
        for row in report.rows[:_BARS]
    ]
    sections = [
        *_over_time(f"Cost of unused GPUs by day, {report.currency}", daily),
        *_bars("Used and unused hours", bars, names, "hours"),
        _table(f"All rows by {_by(report)}", waste_view(report, wide=False), {}),
    ]
    return _page("Waste", report, figures, sections)


def efficiency_page(report: wire.EfficiencyReport, daily: DailyValues) -> str:
    """Render a report of what became of the held GPU time."""
    total, zero = report.total, Decimal(0)
    figures = [
        ("GPU-hours held", figure(total.held_hours)),
        ("measured", f"{percent(total.measured_hours, total.held_hours)} %"),
        ("engine busy", "-" if total.engine is None else f"{total.engine * 100:.1f} %"),
        (f"held but idle, {report.currency}", figure(total.amounts.get(HeldKind.IDLE, zero))),
    ]
    if total.energy_kwh:
        figures.append(("kWh", figure(total.energy_kwh)))
    if total.co2_kg is not None:
        figures.append(("kg of CO2", figure(total.co2_kg)))
    bars = [
        Bar(
            _name(row, report.by),
            [row.hours.get(kind, zero) for kind in HeldKind],
            f"{figure(row.held_hours)} GPU-hours",
        )
        for row in report.rows[:_BARS]
    ]
    sections = [
        *_over_time("GPU-hours held by day", daily),
        *_bars(f"GPU-hours by {_by(report)}", bars, list(HELD_WORDS.values()), "GPU-hours"),
        _table(f"All rows by {_by(report)}", efficiency_view(report, wide=True), {}),
    ]
    return _page(f"GPU efficiency of {_subject(report)}", report, figures, sections)


def _page(
    title: str, report: wire.Document, figures: Sequence[tuple[str, str]], sections: Sequence[ReportSection]
) -> str:
    subtitle = f"{during(report.window)}, {report.window.timezone}"
    only = [f"{word} {name}" for word, name in (("user", report.user), ("pool", report.pool)) if name]
    if only:
        subtitle += f"; only {' and '.join(only)}"
    notes = list(report.notes)
    if report.of_teams is not None:
        notes.append(f"Shows the teams {', '.join(report.of_teams)}, which the author may see.")
    return REPORT_TEMPLATE.render(
        title=title,
        fleet=report.fleet,
        subtitle=subtitle,
        figures=figures,
        sections=sections,
        notes=notes,
        sums=True,
    )


def _over_time(title: str, daily: DailyValues) -> list[ReportSection]:
    """Return a plot over time, stacked by name; none for a single day."""
    if len(daily.days) < 2 or not daily.by_name:
        return []
    ranked = sorted(daily.by_name, key=lambda n: -sum(daily.by_name[n].values(), Decimal(0)))
    most = len(ranked) if len(ranked) <= len(PALETTE) else len(PALETTE) - 1
    shown, rest = ranked[:most], ranked[most:]
    zero = Decimal(0)
    series = [
        SvgSeries(
            name,
            [daily.by_name[name].get(day, zero) for day in daily.days],
            daily.colours.get(name) or colour_class(i),
        )
        for i, name in enumerate(shown)
    ]
    if rest:
        sums = [sum((daily.by_name[n].get(day, zero) for n in rest), zero) for day in daily.days]
        series.append(SvgSeries(f"{len(rest)} others", sums, OTHERS))
    plots = [columns_plot(daily.days, series, daily.unit, width) for width in (WIDE, NARROW)]
    return [ReportSection(title, "plot", [(s.name, s.colour) for s in series], plots)]


def _bars(title: str, bars: Sequence[Bar], names: Sequence[str], unit: str) -> list[ReportSection]:
    if not bars:
        return []
    legend = [(name, f"c{i}") for i, name in enumerate(names) if any(b.parts[i] for b in bars)]
    plots = [bars_plot(bars, names, unit, width) for width in (WIDE, NARROW)]
    return [ReportSection(title, "plot", legend if len(names) > 1 else None, plots)]


def _table(title: str, view: TableView, marked: Mapping[int, str], css: str = "") -> ReportSection:
    """Return a table without its empty optional columns; the last row is the total."""
    shown = [i for i, c in enumerate(view.columns) if not c.hide_if_empty or any(row[i] for row in view.rows)]
    rows = [[row[i] for i in shown] for row in view.rows]
    table = replace(view, columns=[view.columns[i] for i in shown], rows=rows)
    return ReportSection(title, css, view=table, marked={**marked, len(rows) - 1: "total"})


def _name(row: AnyRow | wire.EfficiencyRow, by: Sequence[Dimension]) -> str:
    return " · ".join(filter(None, row_names(row, by)))


def _by(report: wire.Document) -> str:
    return " and ".join(label.value for label in report.by)


def _subject(report: wire.Document) -> str:
    return report.team or (", ".join(report.of_teams) if report.of_teams else report.fleet)


def daily_values(report: AnyReport, teams: Mapping[str, int] | None = None) -> DailyValues:
    """Convert a report by day, and by one more label if it has two, to the data of a plot over time.

    `teams`: the numbers of their fixed colours.
    """
    by_name: dict[str, dict[str, Decimal]] = {}
    day_col = report.by.index(Label.DAY)
    days: set[str] = set()
    in_hours = isinstance(report, wire.UsageReport | wire.EfficiencyReport)
    unit = "GPU-hours" if in_hours else report.currency
    for row in report.rows:
        day = row.labels[day_col]
        if not day:
            continue
        days.add(day)
        for name, value in _parts(row, report.by, day_col):
            by_day = by_name.setdefault(name, {})
            by_day[day] = by_day.get(day, Decimal(0)) + value
    # The same colours as in the bars.
    colours = {KIND_WORDS[kind]: f"c{i}" for i, kind in enumerate(UNUSED_KINDS, 1)}  # usage is the first
    if isinstance(report, wire.EfficiencyReport):
        colours = {word: f"c{i}" for i, word in enumerate(HELD_WORDS.values())}
    elif teams and Label.TEAM in report.by:
        colours |= {team: colour_class(number) for team, number in teams.items()}
    return DailyValues(sorted(days), by_name, unit, colours)


def _parts(
    row: AnyRow | wire.EfficiencyRow, by: Sequence[Dimension], day_col: int
) -> list[tuple[str, Decimal]]:
    if isinstance(row, wire.EfficiencyRow):
        return [(HELD_WORDS[kind], hours) for kind, hours in row.hours.items() if hours]
    if isinstance(row, wire.WasteRow):
        return [(KIND_WORDS[kind], amount) for kind, amount in row.amounts.items() if amount]
    names = row_names(row, by)
    name = " ".join(filter(None, (text for i, text in enumerate(names) if i != day_col))) or names[day_col]
    if isinstance(row, wire.CostRow):
        return [(KIND_WORDS[row.kind] if row.kind else name, row.total)]
    return [(name, row.gpu_hours)]


def report_page(client: Client, filters: CostFilters, report: AnyReport) -> str:
    """Render a report with a plot over time, for which it is fetched again by day and its first label."""
    first = next((label for label in report.by if label is not Label.DAY), None)
    by_day: CostFilters = {**filters, "by": ["day", *([first.value] if first else [])], "most": wire.MAX_ROWS}
    by_day["per"] = None
    teams = None
    if first is Label.TEAM:
        teams = {team.name: team.colour for team in client.teams() if team.colour is not None}
    report = rounded_report(report)
    match report:
        case wire.CostReport():
            return cost_page(report, daily_values(rounded_report(client.report_cost(**by_day)), teams))
        case wire.UsageReport():
            return usage_page(report, daily_values(rounded_report(client.report_usage(**by_day)), teams))
        case wire.WasteReport():
            by_day["by"] = ["day"]
            return waste_page(report, daily_values(rounded_report(client.report_waste(**by_day))))
        case wire.EfficiencyReport():
            by_day["by"] = ["day"]
            return efficiency_page(report, daily_values(rounded_report(client.report_efficiency(**by_day))))
