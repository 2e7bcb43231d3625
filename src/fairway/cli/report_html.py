"""Reports as one HTML file: no scripts, and nothing is loaded from anywhere, so that it can be mailed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from html import escape
from importlib.resources import files
from typing import Final

from fairway.api import cost_wire as wire
from fairway.api.cost_words import AnyRow, kind_word, row_names
from fairway.cli.report_plots import COLOURS, NARROW, WIDE, Bar, Series, bars_plot, columns_plot, legend
from fairway.cli.report_view import (
    cost_view,
    during,
    figure,
    percent,
    statement_state,
    statements_view,
    usage_view,
    waste_view,
)
from fairway.cli.views import View
from fairway.model.charge import UNUSED_KINDS, ChargeKind, Label

_BARS: Final = 15
_WASTED: Final = tuple(k for k in UNUSED_KINDS if k is not ChargeKind.COMMITMENT)


@dataclass(frozen=True, slots=True)
class Daily:
    """What a plot over time shows: each name's figure on each day."""

    days: Sequence[str]
    by_name: dict[str, dict[str, Decimal]]
    """Day by name."""
    unit: str
    colours: Mapping[str, int] = field(default_factory=dict)
    """Of names that have one of their own; the others take theirs in order."""


def cost_page(report: wire.CostReport, daily: Daily) -> str:
    """What it cost."""
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
    sections = [
        _over_time(f"Cost by day, {report.currency}", daily),
        _bars(f"Cost by {_by(report)}", bars, names, report.currency),
        _table(f"All of it, by {_by(report)}", cost_view(report, wide=True), _own_rows(report.rows)),
    ]
    return _page(f"What {_whose(report)} cost", report, figures, sections)


def usage_page(report: wire.UsageReport, daily: Daily) -> str:
    """What was held."""
    total = report.total
    figures = [("GPU-hours", figure(total.gpu_hours))]
    if total.slice_seconds:
        figures += [
            ("slice-hours", figure(total.slice_hours)),
            ("slice-seconds", figure(total.slice_seconds)),
        ]
    bars = [
        Bar(_name(row, report.by), [row.gpu_hours], f"{figure(row.gpu_hours)} GPU-hours")
        for row in report.rows[:_BARS]
    ]
    sections = [
        _over_time("GPU-hours by day", daily),
        _bars(f"GPU-hours by {_by(report)}", bars, ["GPU-hours"], "GPU-hours"),
        _table(f"All of it, by {_by(report)}", usage_view(report, wide=True), frozenset()),
    ]
    return _page(f"What {_whose(report)} used", report, figures, sections)


def waste_page(report: wire.WasteReport, daily: Daily) -> str:
    """What nobody used."""
    total, zero = report.total, Decimal(0)
    unused = sum((total.hours.get(k, zero) for k in _WASTED), zero)
    figures = [
        (f"cost, {report.currency}", figure(total.amount)),
        ("unused", f"{percent(unused, total.capacity_hours)} %"),
        ("hours unused", figure(unused)),
        ("hours there", figure(total.capacity_hours)),
    ]
    names = ["used", *(kind_word(k) for k in _WASTED)]
    bars = [
        Bar(
            _name(row, report.by),
            [row.used_hours, *(row.hours.get(k, zero) for k in _WASTED)],
            f"{percent(row.capacity_hours - row.used_hours, row.capacity_hours)} % unused",
        )
        for row in report.rows[:_BARS]
    ]
    sections = [
        _over_time(f"What it cost by day, {report.currency}", daily),
        _bars("Hours, used and not", bars, names, "hours"),
        _table(f"All of it, by {_by(report)}", waste_view(report, wide=False), frozenset()),
    ]
    return _page("What nobody used", report, figures, sections)


def statements_page(found: wire.Statements) -> str:
    """A month's statements, a team each; printed, each on a page of its own."""
    figures = [(f"total, {found.currency}", figure(found.total)), ("teams", str(len(found.statements)))]
    bars = [
        Bar(s.team or "(nobody)", [max(Decimal(0), s.total)], f"{figure(s.total)} {found.currency}")
        for s in sorted(found.statements, key=lambda s: -s.total)[:_BARS]
    ]
    sections = [_bars("By team", bars, ["charged"], found.currency)]
    for statement in found.statements:
        one = found.model_copy(update={"statements": [statement], "total": statement.total})
        view = statements_view(one)
        view = View([*view.columns[1:]], [row[1:] for row in view.rows[:-2]], view.empty, view.hint)
        marked = {i: "correction" for i, x in enumerate(statement.lines) if x.used_in != found.month}
        marked[len(view.rows) - 1] = "total"
        name = escape(statement.team or "Nobody: what is a line of its own")
        sections.append(f'<section class="team"><h2>{name}</h2>{_cells(view, marked)}</section>')
    notes = [*found.notes, *statement_state(found)]
    return _html(
        f"Statements of {found.month}",
        found.fleet,
        f"{found.month}, {found.timezone}",
        figures,
        sections,
        notes,
    )


def _page(
    title: str, report: wire.Document, figures: Sequence[tuple[str, str]], sections: Sequence[str]
) -> str:
    subtitle = f"{during(report.window)}, {report.window.timezone}"
    only = [f"{word} {name}" for word, name in (("user", report.user), ("pool", report.pool)) if name]
    if only:
        subtitle += f"; only {' and '.join(only)}"
    notes = list(report.notes)
    if report.of_teams is not None:
        notes.append(f"of the teams {', '.join(report.of_teams)}: what the asker may see")
    return _html(title, report.fleet, subtitle, figures, sections, notes)


def _html(
    title: str,
    fleet: str,
    subtitle: str,
    figures: Sequence[tuple[str, str]],
    sections: Sequence[str],
    notes: Sequence[str],
) -> str:
    style = (files("fairway.cli") / "templates" / "report.css").read_text(encoding="utf-8")
    boxes = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in figures)
    said = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{escape(f'{title} · {fleet}')}</title><style>\n{style}</style></head>\n"
        f'<body><header><h1>{escape(title)}</h1><p class="soft">{escape(fleet)}, {escape(subtitle)}</p>'
        f'</header>\n<dl class="figures">{boxes}</dl>\n' + "\n".join(filter(None, sections)) + "\n"
        f"<footer>{said}<p>Made by Fairway. Parts sum to the totals shown, to the cent.</p></footer>"
        "</body></html>\n"
    )


def _over_time(title: str, daily: Daily) -> str:
    """Stacked by name; nothing for a single day."""
    if len(daily.days) < 2 or not daily.by_name:
        return ""
    ranked = sorted(daily.by_name, key=lambda n: -sum(daily.by_name[n].values(), Decimal(0)))
    shown, rest = ranked[: COLOURS - 1], ranked[COLOURS - 1 :]
    zero = Decimal(0)
    series = [
        Series(name, [daily.by_name[name].get(day, zero) for day in daily.days], daily.colours.get(name, i))
        for i, name in enumerate(shown)
    ]
    if rest:
        sums = [sum((daily.by_name[n].get(day, zero) for n in rest), zero) for day in daily.days]
        series.append(Series(f"{len(rest)} others", sums, COLOURS - 1))
    keys = legend([s.name for s in series], [s.colour for s in series])
    return _plot(
        title, keys, [columns_plot(daily.days, series, daily.unit, width) for width in (WIDE, NARROW)]
    )


def _bars(title: str, bars: Sequence[Bar], names: Sequence[str], unit: str) -> str:
    if not bars:
        return ""
    used = [i for i in range(len(names)) if any(b.parts[i] for b in bars)]
    keys = legend([names[i] for i in used], used) if len(names) > 1 else ""
    return _plot(title, keys, [bars_plot(bars, names, unit, width) for width in (WIDE, NARROW)])


def _plot(title: str, keys: str, drawn: Sequence[str]) -> str:
    wide, narrow = drawn
    return (
        f'<section class="plot"><h2>{escape(title)}</h2>{keys}'
        f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div></section>'
    )


def _table(title: str, view: View, own: frozenset[int]) -> str:
    if not view.rows:
        return f"<section><h2>{escape(title)}</h2><p>{escape(view.empty)}</p></section>"
    marked = dict.fromkeys(own, "own") | {len(view.rows) - 1: "total"}
    return f"<section><h2>{escape(title)}</h2>{_cells(view, marked)}</section>"


def _cells(view: View, marked: dict[int, str]) -> str:
    right = [' class="right"' if c.right else "" for c in view.columns]
    kept = [i for i, c in enumerate(view.columns) if not c.hide_if_empty or any(row[i] for row in view.rows)]
    heads = "".join(f"<th{right[i]}>{escape(view.columns[i].title)}</th>" for i in kept)
    body = []
    for n, row in enumerate(view.rows):
        mark = f' class="{marked[n]}"' if n in marked else ""
        cells = "".join(f"<td{right[i]}>{escape(row[i])}</td>" for i in kept)
        body.append(f"<tr{mark}>{cells}</tr>")
    table = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="scroll"><table>{table}</table></div>'


def _own_rows(rows: Sequence[wire.CostRow]) -> frozenset[int]:
    return frozenset(i for i, row in enumerate(rows) if row.kind is not None)


def _name(row: AnyRow, by: Sequence[Label]) -> str:
    return " · ".join(filter(None, row_names(row, by)))


def _by(report: wire.Document) -> str:
    return " and ".join(label.value for label in report.by)


def _whose(report: wire.Document) -> str:
    return report.team or (", ".join(report.of_teams) if report.of_teams else report.fleet)


def daily_of(report: wire.CostReport | wire.UsageReport | wire.WasteReport) -> Daily:
    """A report by day, and by one more label if it has two, as a plot over time takes it."""
    by_name: dict[str, dict[str, Decimal]] = {}
    place = report.by.index(Label.DAY)
    days: set[str] = set()
    unit = "GPU-hours" if isinstance(report, wire.UsageReport) else report.currency
    for row in report.rows:
        day = row.labels[place]
        if not day:
            continue
        days.add(day)
        for name, value in _parts(row, report.by, place):
            of_name = by_name.setdefault(name, {})
            of_name[day] = of_name.get(day, Decimal(0)) + value
    kinds = {
        kind_word(kind): i for i, kind in enumerate(UNUSED_KINDS, 1)
    }  # as in the bars, after what was used
    return Daily(sorted(days), by_name, unit, kinds if isinstance(report, wire.WasteReport) else {})


def _parts(row: AnyRow, by: Sequence[Label], place: int) -> list[tuple[str, Decimal]]:
    if isinstance(row, wire.WasteRow):
        return [(kind_word(kind), amount) for kind, amount in row.amounts.items() if amount]
    named = row_names(row, by)
    name = " ".join(filter(None, (text for i, text in enumerate(named) if i != place))) or named[place]
    if isinstance(row, wire.CostRow):
        return [(kind_word(row.kind) if row.kind else name, row.total)]
    return [(name, row.gpu_hours)]
