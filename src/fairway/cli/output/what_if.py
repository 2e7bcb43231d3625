"""Format a what-if study as tables, or as one HTML file with plots. Pure: wire types in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from fairway.cli.output.format import Column, Fit, ScreenLine, TableView, table, table_width
from fairway.cli.output.svg import NARROW, WIDE, Bar, SvgPlot, bars_plot
from fairway.views.what_if_rows import (
    TextTable,
    change_text,
    current_of,
    duration_text,
    percent_text,
    shown_scenarios,
    what_if_notes,
    what_if_tables,
)
from fairway.wire import what_if as wire

_PLOTTED_TEAMS: Final = 4
_PARTS: Final = ("used", "fragmented", "held back by limits", "free, and nothing waited")


def what_if_lines(found: wire.WhatIf) -> list[ScreenLine]:
    """Return the tables of a study, each with its title, and its notes."""
    lines: list[ScreenLine] = []
    for one in what_if_tables(found):
        lines += [*([ScreenLine()] if lines else []), ScreenLine(one.title, "cyan")]
        lines += map(ScreenLine, table(_columns(one), one.rows, table_width()))
    return [*lines, ScreenLine(), *map(ScreenLine, what_if_notes(found))]


def what_if_page(found: wire.WhatIf) -> str:
    """Render a study as one HTML file without scripts or external resources."""
    from fairway.cli.output.report_html import REPORT_TEMPLATE, ReportSection

    current = current_of(found)
    figures = [
        ("jobs", f"{found.jobs:,}"),
        ("p95 wait, current file", duration_text(current.waits.p95_wait)),
        ("GPUs used, current file", f"{percent_text(current.utilisation)} %"),
        ("Jain's index, current file", f"{current.fairness.mean:.3f}" if current.fairness else "-"),
    ]
    sections = [
        ReportSection("P95 wait, hours", "plot", None, _plots(_wait_bars(found), ["wait"], "hours")),
        ReportSection(
            "What became of the GPUs, %",
            "plot",
            [(name, f"c{i}") for i, name in enumerate(_PARTS)],
            _plots(_use_bars(found), _PARTS, "%"),
        ),
        *(
            ReportSection(f"P95 wait of {name}, hours", "plot", None, _plots(bars, ["wait"], "hours"))
            for name, bars in _team_bars(found)
        ),
        *(
            ReportSection(one.title, view=TableView(_columns(one), one.rows, "", ""))
            for one in what_if_tables(found)
        ),
    ]
    return REPORT_TEMPLATE.render(
        title="What if",
        fleet=found.fleet,
        subtitle=f"{found.source}, {found.begin:%Y-%m-%d} to {found.end:%Y-%m-%d}",
        figures=figures,
        sections=sections,
        notes=what_if_notes(found),
        sums=False,
    )


def _columns(one: TextTable) -> list[Column]:
    first, *others = one.headings
    return [Column(first, fit=Fit.MIDDLE), *(Column(title, right=True, fit=Fit.MIDDLE) for title in others)]


def _plots(bars: Sequence[Bar], names: Sequence[str], unit: str) -> list[SvgPlot]:
    return [bars_plot(bars, names, unit, width) for width in (WIDE, NARROW)]


def _wait_bars(found: wire.WhatIf) -> list[Bar]:
    return [
        Bar(
            one.name,
            [_hours(one.waits.p95_wait)],
            " ".join(filter(None, (duration_text(one.waits.p95_wait), _change(one)))),
        )
        for one in found.scenarios
    ]


def _team_bars(found: wire.WhatIf) -> list[tuple[str, list[Bar]]]:
    """Return the bars of the largest teams that wait."""
    largest = sorted(current_of(found).teams, key=lambda team: -team.gpu_hours.mean)
    by_team = [
        (
            wanted.team,
            [
                Bar(one.name, [_hours(team.waits.p95_wait)], duration_text(team.waits.p95_wait))
                for one in shown_scenarios(found)
                for team in one.teams
                if team.team == wanted.team
            ],
        )
        for wanted in largest
    ]
    return [(name, bars) for name, bars in by_team if any(bar.parts[0] for bar in bars)][:_PLOTTED_TEAMS]


def _use_bars(found: wire.WhatIf) -> list[Bar]:
    """Return bars that add up to all GPUs, but for what really happened, of which only a part is known."""
    bars = []
    for one in found.scenarios:
        parts = [_percent(part) for part in (one.utilisation, one.fragmentation, one.limited)]
        free = Decimal(0) if one.fragmentation is None else max(Decimal(0), 100 - sum(parts, Decimal(0)))
        bars.append(Bar(one.name, [*parts, free], f"{percent_text(one.utilisation)} % used"))
    return bars


def _change(one: wire.ScenarioFigures) -> str:
    return "" if one.p95_wait_change is None else f"({change_text(one.p95_wait_change)})"


def _hours(found: wire.Estimate) -> Decimal:
    return Decimal(f"{found.mean / 3600:.2f}")


def _percent(found: wire.Estimate | None) -> Decimal:
    return Decimal(0) if found is None else Decimal(f"{100 * found.mean:.1f}")
