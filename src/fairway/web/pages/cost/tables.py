"""Format reports for the Cost page: key figures, and a table whose rows sum to its total. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Final, TypeVar

from fairway.cost.unit_cost import cost_per
from fairway.model.charge import UNUSED_KINDS, ChargeKind, Label
from fairway.model.cost_unit import CostDivisor, divisor_text, parse_divisor, size_of
from fairway.model.gpu_use import HeldKind
from fairway.views.cost_records import Report
from fairway.views.costs import HELD_WORDS, KIND_WORDS, AnyRow, row_amount, row_names
from fairway.web.format import amount, money, percent
from fairway.web.pages.cost.query import Comparison, CostQuery
from fairway.wire import costs as wire

RowT = TypeVar("RowT", wire.CostRow, wire.UsageRow, wire.WasteRow)

_ZERO: Final = Decimal(0)
_DASH: Final = "–"
_SUMMED: Final = ("gpu_hours", "usage", "idle", "overhead", "total")
_HELD: Final = (HeldKind.IDLE, HeldKind.POOR, HeldKind.UNMEASURED)
_WASTED: Final = tuple(kind for kind in UNUSED_KINDS if kind is not ChargeKind.COMMITMENT)


@dataclass(frozen=True, slots=True)
class Figure:
    """A key figure at the top of the page."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class RowName:
    """A label of a row, with the URL to drill down."""

    text: str
    address: str | None = None


@dataclass(frozen=True, slots=True)
class ShownRow:
    """One row of the table."""

    names: tuple[RowName, ...]
    cells: tuple[str, ...]
    part: float = 0.0
    """Percentage of the total, 0 to 100: the length of its bar."""
    own: bool = False
    """Whether it is unallocated cost."""


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table with headings, rows and their total."""

    labels: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[ShownRow, ...]
    total: tuple[str, ...]
    more: int = 0
    """The number of rows that are summed up in one."""


def figures(report: Report, change: str) -> list[Figure]:
    """Return the key figures of a report; the first with its change since the days before."""
    match report:
        case wire.CostReport():
            return _cost_figures(report, change)
        case wire.UsageReport():
            return _usage_figures(report, change)
        case wire.WasteReport():
            return _waste_figures(report, change)


def table(report: Report, query: CostQuery) -> ShownTable:
    """Build the table of a report."""
    match report:
        case wire.CostReport():
            return cost_table(report, query)
        case wire.UsageReport():
            return _usage_table(report, query)
        case wire.WasteReport():
            return _waste_table(report, query)


def change_text(daily: Report, over: Comparison, before: Report) -> str:
    """Format the change of the compared days of a report by day: `12 % more than the 7 days before`."""
    place = daily.by.index(Label.DAY)
    days = {(over.first + timedelta(days=n)).isoformat() for n in range(over.days)}
    now = sum((row_amount(row) for row in daily.rows if row.labels[place] in days), _ZERO)
    return compared(now, row_amount(before.total), over.name_before)


def compared(now: Decimal, before: Decimal, then: str) -> str:
    """Format the change from one amount to another. Returns an empty string without a previous amount."""
    if not before:
        return ""
    change = (now - before) / before * 100
    if not round(change):
        return f"same as {then}"
    return f"{abs(change):,.0f} % {'more' if change > 0 else 'less'} than {then}"


def _cost_figures(report: wire.CostReport, change: str) -> list[Figure]:
    total, code = report.total, report.currency
    return [
        Figure("Total", money(total.total, code), change),
        Figure("Used", money(total.usage, code), f"{percent(total.usage, total.total)} of the total"),
        Figure("Idle share", money(total.idle, code), f"{percent(total.idle, total.total)} of the total"),
        Figure(
            "Overhead", money(total.overhead, code), f"{percent(total.overhead, total.total)} of the total"
        ),
        Figure("GPU-hours", amount(total.gpu_hours)),
        Figure(
            "Cost per GPU-hour used",
            money(total.total / total.gpu_hours, code) if total.gpu_hours else _DASH,
            "including idle share and overhead",
        ),
        *_unit_figures(report),
    ]


def _unit_figures(report: wire.CostReport) -> list[Figure]:
    """Return the cost of a unit, if it was requested."""
    divisor = parse_divisor(report.per) if report.per is not None else None
    if divisor is None:
        return []
    count = f"{report.total.count or 0:,} counted"
    return [Figure(f"Cost per {divisor_text(divisor)}", _unit_cost(report.total, report.currency), count)]


def _unit_cost(row: wire.CostRow, code: str = "") -> str:
    """Format the cost of a unit with four digits, because one may cost little."""
    return _DASH if row.per_unit is None else f"{row.per_unit:,.4f} {code}".rstrip()


def _usage_figures(report: wire.UsageReport, change: str) -> list[Figure]:
    total = report.total
    found = [Figure("GPU-hours", amount(total.gpu_hours), change)]
    if total.slice_seconds:
        found.append(Figure("Slice-hours", amount(total.slice_hours), "part of the GPU-hours"))
    days = max(1, round((report.window.end - report.window.start).total_seconds() / 86400))
    found.append(Figure("GPUs on average", amount((total.gpu_hours / (24 * days)).quantize(Decimal("0.1")))))
    return found


def _waste_figures(report: wire.WasteReport, change: str) -> list[Figure]:
    total, code = report.total, report.currency
    unused = sum((total.hours.get(kind, _ZERO) for kind in _WASTED), _ZERO)
    found = [
        Figure("Cost of unused GPUs", money(total.amount, code), change),
        Figure(
            "Unused",
            percent(unused, total.capacity_hours),
            f"{amount(unused)} of {amount(total.capacity_hours)} hours",
        ),
    ]
    found += [
        Figure(KIND_WORDS[kind].capitalize(), money(paid, code))
        for kind in UNUSED_KINDS
        if (paid := total.amounts.get(kind, _ZERO))
    ]
    # Apart from the cost of unused GPUs: somebody held these, and pays for them.
    found += [
        Figure(
            HELD_WORDS[kind].capitalize(),
            money(total.held_amounts.get(kind, _ZERO), code),
            f"{amount(held)} of {amount(total.used_hours)} used hours",
        )
        for kind in _HELD
        if (held := total.held_hours.get(kind, _ZERO))
    ]
    return found


def cost_table(report: wire.CostReport, query: CostQuery) -> ShownTable:
    """Build the cost table; totals come first, because a phone shows only the left columns."""
    total, code = report.total, report.currency
    idle, overhead = bool(total.idle), bool(total.overhead)
    divisor = parse_divisor(report.per) if report.per is not None else None

    def cells(row: wire.CostRow) -> tuple[str, ...]:
        return (
            amount(row.total, code),
            percent(row.total, total.total),
            _or_dash(row.usage, code),
            *((_or_dash(row.idle, code),) if idle else ()),
            *((_or_dash(row.overhead, code),) if overhead else ()),
            _or_dash(row.gpu_hours),
            *((f"{row.count:,}" if row.count else _DASH, _unit_cost(row)) if divisor else ()),
        )

    columns = (
        f"Total {code}",
        "Of all",
        "Usage",
        *(("Idle share",) if idle else ()),
        *(("Overhead",) if overhead else ()),
        "GPU-hours",
        *(("Count", f"{code}/{divisor_text(divisor)}") if divisor else ()),
    )
    rows = _merged_days(report.rows, divisor) if query.by == (Label.DAY,) else report.rows
    return _shown_table(query, columns, rows, total, cells)


def _usage_table(report: wire.UsageReport, query: CostQuery) -> ShownTable:
    """Build the usage table: GPU-hours, slices as fractions of a GPU; adds slice-hours if there are any."""
    total = report.total
    slices = bool(total.slice_seconds)

    def cells(row: wire.UsageRow) -> tuple[str, ...]:
        return (
            amount(row.gpu_hours),
            percent(row.gpu_hours, total.gpu_hours),
            *((_or_dash(row.slice_hours),) if slices else ()),
        )

    columns = ("GPU-hours", "Of all", *(("Slice-hours",) if slices else ()))
    return _shown_table(query, columns, report.rows, total, cells)


def _waste_table(report: wire.WasteReport, query: CostQuery) -> ShownTable:
    """Build the waste table: unused hours by reason, and their cost."""
    total, code = report.total, report.currency
    kinds = [kind for kind in _WASTED if total.hours.get(kind)]
    held = [kind for kind in _HELD if total.held_hours.get(kind)]

    def cells(row: wire.WasteRow) -> tuple[str, ...]:
        return (
            amount(row.amount, code),
            percent(row.capacity_hours - row.used_hours, row.capacity_hours),
            _or_dash(row.capacity_hours),
            _or_dash(row.used_hours),
            *(_or_dash(row.held_hours.get(kind, _ZERO)) for kind in held),
            *(_or_dash(row.hours.get(kind, _ZERO)) for kind in kinds),
        )

    held_columns = (f"{HELD_WORDS[kind].capitalize()} h" for kind in held)
    kind_columns = (f"{KIND_WORDS[kind].capitalize()} h" for kind in kinds)
    columns = (f"Cost {code}", "Unused", "Capacity h", "Used h", *held_columns, *kind_columns)
    return _shown_table(query, columns, report.rows, total, cells)


def _shown_table(
    query: CostQuery,
    columns: tuple[str, ...],
    rows: Sequence[RowT],
    total: RowT,
    cells: Callable[[RowT], tuple[str, ...]],
) -> ShownTable:
    whole = row_amount(total)
    shown = [
        ShownRow(_row_labels(row, query), cells(row), _part(row_amount(row), whole), _is_unallocated(row))
        for row in rows
    ]
    labels = tuple(label.value.capitalize() for label in query.by)
    return ShownTable(labels, columns, tuple(shown), cells(total), sum(row.others for row in rows))


def _merged_days(rows: Sequence[wire.CostRow], divisor: CostDivisor | None) -> list[wire.CostRow]:
    """Merge the rows of each day: unallocated cost goes into columns, not into rows of its own."""
    days: dict[str, wire.CostRow] = {}
    for row in rows:
        key = f"others {row.others}" if row.others else row.labels[0]
        day = days.get(key)
        if day is None:
            days[key] = row.model_copy(update={"kind": None})
            continue
        sums = {name: getattr(day, name) + getattr(row, name) for name in _SUMMED}
        # Unallocated cost has no count.
        count = day.count or row.count
        unit_cost = cost_per(sums["total"], count or 0, size_of(divisor)) if divisor else None
        days[key] = day.model_copy(update={**sums, "count": count, "per_unit": unit_cost})
    return [days[key] for key in sorted(days)]


def _row_labels(row: AnyRow, query: CostQuery) -> tuple[RowName, ...]:
    """Return the labels of a row, each with the URL to drill down into it."""
    texts = row_names(row, query.by)
    unlinked = row.others or _is_unallocated(row)
    return tuple(
        RowName(text, None if unlinked else query.narrowed(label, name))
        for label, text, name in zip(query.by, texts, row.labels, strict=True)
    )


def _is_unallocated(row: AnyRow) -> bool:
    return isinstance(row, wire.CostRow) and row.kind is not None


def _part(value: Decimal, whole: Decimal) -> float:
    return max(0.0, min(100.0, float(value / whole * 100))) if whole else 0.0


def _or_dash(value: Decimal, currency: str = "") -> str:
    return amount(value, currency) if value else _DASH
