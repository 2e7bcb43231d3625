"""Format a capacity plan as a table, or as one HTML file with plots. Pure: wire types in, text out."""

from __future__ import annotations

from decimal import Decimal

from fairway.cli.output.format import UNKNOWN, Column, Fit, ScreenLine, TableView, table, table_width
from fairway.cli.output.svg import NARROW, WIDE, Bar, bars_plot
from fairway.policy.slo_alerts import percent
from fairway.wire import capacity as wire


def capacity_lines(found: wire.CapacityPlan) -> list[ScreenLine]:
    """Return the table of a plan and its notes."""
    view = capacity_view(found)
    return [
        *map(ScreenLine, table(view.columns, view.rows, table_width())),
        ScreenLine(),
        *map(ScreenLine, notes(found)),
    ]


def capacity_view(found: wire.CapacityPlan) -> TableView:
    """Return a row for each pool and month; it shows the objective with the lowest compliance."""
    columns = [
        Column("POOL", fit=Fit.MIDDLE),
        *Column.numbers("MONTH", "DEMAND", "NODES", "GPUS", "MORE", "GOOD"),
        *Column.numbers(f"BUY {found.currency}", "RESERVE", "BURST"),
    ]
    return TableView(columns, [_row(one) for one in found.months], "", "")


def _row(one: wire.PlannedMonth) -> list[str]:
    parts = [part for o in one.objectives if (part := o.compliance) is not None]
    good = percent(min(parts)) if parts else UNKNOWN
    return [
        one.pool,
        f"+{one.month}" if one.month else "now",
        f"{one.demand * 100:.0f}%",
        f">{one.tried}" if one.nodes is None else f"{one.nodes}",
        UNKNOWN if one.gpus is None else f"{one.gpus:,}",
        UNKNOWN if one.more_gpus is None else f"{one.more_gpus:+,}",
        good,
        *(UNKNOWN if amount is None else f"{amount:,.0f}" for amount in (one.buy, one.reserve, one.burst)),
    ]


def notes(found: wire.CapacityPlan) -> list[str]:
    """Return what a plan assumes, and which pools cannot meet the objectives."""
    grow = "grow with the pool" if found.limits_grow else "stay as they are"
    lines = [
        f"{found.jobs:,} jobs of {found.begin:%Y-%m-%d} to {found.end:%Y-%m-%d}, replayed; "
        f"demand grows {found.growth * 100:g}% a month",
        *found.objectives,
        "costs are of a month, of the GPUs beyond the present ones: bought or reserved for all hours, or on",
        "demand for the hours in which they are held alone; a price that the fleet file lacks is shown as -",
        f"guarantees and ceilings of teams on the pool {grow}; other pools stay as they are",
    ]
    without = sorted({one.pool for one in found.months if one.nodes is None})
    if without:
        lines.append(
            f"no number of nodes of {', '.join(without)} meets the objectives: limits of teams, or jobs in "
            "other pools, keep them from it"
        )
    return lines


def capacity_page(found: wire.CapacityPlan) -> str:
    """Render a plan as one HTML file without scripts or external resources."""
    from fairway.cli.output.report_html import REPORT_TEMPLATE, ReportSection

    pools = list(dict.fromkeys(one.pool for one in found.months))
    figures = [(pool, f"{_last(found, pool)} in {found.months[-1].month} months") for pool in pools]
    sections = [
        ReportSection(
            f"GPUs of {pool} that meet the objectives",
            "plot",
            None,
            [bars_plot(_bars(found, pool), ["GPUs"], "GPUs", width) for width in (WIDE, NARROW)],
        )
        for pool in pools
    ]
    return REPORT_TEMPLATE.render(
        title="Capacity plan",
        fleet=found.fleet,
        subtitle=f"{found.source}, {found.begin:%Y-%m-%d} to {found.end:%Y-%m-%d}",
        figures=figures,
        sections=[*sections, ReportSection("Months", view=capacity_view(found))],
        notes=notes(found),
        sums=False,
    )


def _bars(found: wire.CapacityPlan, pool: str) -> list[Bar]:
    return [
        Bar(
            "now" if not one.month else f"in {one.month} months",
            [Decimal(one.gpus or 0)],
            "no number meets them" if one.gpus is None else f"{one.gpus:,} GPUs",
        )
        for one in found.months
        if one.pool == pool
    ]


def _last(found: wire.CapacityPlan, pool: str) -> str:
    last = [one for one in found.months if one.pool == pool][-1]
    return "no number of GPUs" if last.gpus is None else f"{last.gpus:,} GPUs"
