"""Compute the plot over time from reports by day: a few names with colours, the rest as one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from fairway.model.charge import ChargeKind, Dimension, Label
from fairway.views.colours import OTHERS, PALETTE, colour_class
from fairway.views.costs import KIND_WORDS, AnyRow, row_amount, row_names
from fairway.wire import costs as wire

COLOURS: Final = len(PALETTE)
"""The number of names with a colour; if there are more, the others are one."""
_ZERO: Final = Decimal(0)
_DAYS: Final = 100
"""The most columns by day; longer windows are shown by week, then by month."""
_WEEKS: Final = 120
_KIND_COLOURS: Final = {
    ChargeKind.USAGE: "used",
    ChargeKind.IDLE: "idle",
    ChargeKind.FRAGMENTED: "fragmented",
    ChargeKind.DRAINED: "drained",
    ChargeKind.DOWN: "down",
    ChargeKind.COMMITMENT: "commitment",
    ChargeKind.OVERHEAD: "overhead",
}
"""The same on every page: idle is grey, down is not."""

Values = dict[str, dict[str, Decimal]]
"""Amounts by name, then day."""


def _unallocated_name(kind: ChargeKind) -> str:
    """Return the name of unallocated cost of a kind."""
    return f"{KIND_WORDS[kind]} (unallocated)"


_PART_COLOURS: Final = {KIND_WORDS[kind]: colour for kind, colour in _KIND_COLOURS.items()}
_UNALLOCATED_COLOURS: Final = {_unallocated_name(kind): colour for kind, colour in _KIND_COLOURS.items()}


@dataclass(frozen=True, slots=True)
class PlotSeries:
    """One colour of the plot."""

    name: str
    colour: str
    values: tuple[Decimal, ...]

    @property
    def total(self) -> Decimal:
        return sum(self.values, _ZERO)


@dataclass(frozen=True, slots=True)
class Plot:
    """A stacked plot over time, the largest series at the bottom."""

    unit: str
    every: str
    """`day`, `week` or `month`."""
    days: tuple[str, ...]
    """The first day of each column."""
    series: tuple[PlotSeries, ...]

    @property
    def totals(self) -> list[Decimal]:
        """Return the total of each column."""
        return [sum((s.values[i] for s in self.series), _ZERO) for i in range(len(self.days))]

    @property
    def total(self) -> Decimal:
        return sum(self.totals, _ZERO)

    def data(self) -> dict[str, Any]:
        """Return the data for the script, with amounts as exact text."""
        return {
            "unit": self.unit,
            "every": self.every,
            "days": self.days,
            "series": [
                {"name": s.name, "colour": s.colour, "values": [f"{v:f}" for v in s.values]}
                for s in self.series
            ],
        }


def cost_plot(report: wire.CostReport, numbers: Mapping[str, int] | None = None) -> Plot:
    """Plot cost by a label and day. Unallocated cost has its own colours.

    `numbers`: the fixed colours of names; without them, names get theirs by size.
    """
    return _plot(report.window, report.currency, _by_name(report.rows, report.by), numbers=numbers)


def parts_plot(report: wire.CostReport) -> Plot:
    """Plot cost by day and part: used, idle share, overhead."""
    place = report.by.index(Label.DAY)
    values = _values(
        (name, row.labels[place], amount)
        for row in report.rows
        for name, amount in (("used", row.usage), ("idle", row.idle), ("overhead", row.overhead))
        if amount
    )
    return _plot(report.window, report.currency, values, colours=_PART_COLOURS)


def usage_plot(report: wire.UsageReport, numbers: Mapping[str, int] | None = None) -> Plot:
    """Plot GPU-hours by day, and by a label if the report has one."""
    return _plot(report.window, "GPU-hours", _by_name(report.rows, report.by), numbers=numbers)


def waste_plot(report: wire.WasteReport) -> Plot:
    """Plot the cost of unused capacity by day and reason."""
    place = report.by.index(Label.DAY)
    values = _values(
        (KIND_WORDS[kind], row.labels[place], amount)
        for row in report.rows
        for kind, amount in row.amounts.items()
        if amount
    )
    return _plot(report.window, report.currency, values, colours=_PART_COLOURS)


def _by_name(rows: Iterable[AnyRow], by: Sequence[Dimension]) -> Values:
    place = by.index(Label.DAY)

    def name(row: AnyRow) -> str:
        if isinstance(row, wire.CostRow) and row.kind:
            return _unallocated_name(row.kind)
        names = [text for i, text in enumerate(row_names(row, by)) if i != place]
        return " ".join(filter(None, names)) or "all"

    return _values((name(row), row.labels[place], row_amount(row)) for row in rows)


def _values(amounts: Iterable[tuple[str, str, Decimal]]) -> Values:
    """Sum amounts by name and day; rows without a day do not count."""
    found: Values = {}
    for name, day, amount in amounts:
        if day:
            days = found.setdefault(name, {})
            days[day] = days.get(day, _ZERO) + amount
    return found


def _plot(
    window: wire.Window,
    unit: str,
    values: Values,
    colours: Mapping[str, str] = _UNALLOCATED_COLOURS,
    numbers: Mapping[str, int] | None = None,
) -> Plot:
    """Build a plot; `colours` has the colours of kinds, `numbers` the fixed colours of other names."""
    every, columns = _columns(window)
    fixed = [name for name in colours if name in values]
    ranked = sorted(
        (name for name in values if name not in fixed), key=lambda n: (-sum(values[n].values(), _ZERO), n)
    )
    shown = ranked if len(ranked) <= COLOURS else ranked[: COLOURS - 1]
    fixed_colours = {n: i for i, n in enumerate(shown)} if numbers is None else numbers
    series = [
        PlotSeries(name, colour_class(fixed_colours.get(name)), _summed(values[name], columns))
        for name in shown
    ]
    rest: dict[str, Decimal] = {}
    for name in ranked[len(shown) :]:
        for day, amount in values[name].items():
            rest[day] = rest.get(day, _ZERO) + amount
    if any(rest.values()):
        series.append(PlotSeries("all others", OTHERS, _summed(rest, columns)))
    series += [PlotSeries(name, colours[name], _summed(values[name], columns)) for name in fixed]
    return Plot(unit, every, tuple(dict.fromkeys(columns.values())), tuple(series))


def _columns(window: wire.Window) -> tuple[str, dict[str, str]]:
    """Return the unit of the columns, and the first day of the column of each day."""
    last = min(window.last_day, window.end.astimezone(ZoneInfo(window.timezone)).date())
    days = [window.first_day + timedelta(days=n) for n in range((last - window.first_day).days + 1)]
    if len(days) <= _DAYS:
        return "day", {day.isoformat(): day.isoformat() for day in days}
    if len(days) <= 7 * _WEEKS:
        return "week", {day.isoformat(): (day - timedelta(days=day.weekday())).isoformat() for day in days}
    return "month", {day.isoformat(): day.replace(day=1).isoformat() for day in days}


def _summed(days: Mapping[str, Decimal], columns: Mapping[str, str]) -> tuple[Decimal, ...]:
    sums = dict.fromkeys(columns.values(), _ZERO)
    for day, amount in days.items():
        if (column := columns.get(day)) is not None:
            sums[column] += amount
    return tuple(sums.values())
