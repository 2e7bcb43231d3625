"""Round reports for people: cents and hundredths of hours that sum to the totals shown. Pure.

Machines get every figure with six digits. In a table each column is rounded once, and divided among kinds,
and then among rows label by label: so a kind, or a team, has one figure in every table of a window.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias, TypeVar, cast

from fairway.cost.rounding import HUNDREDTH, round_cells
from fairway.model.charge import ChargeKind
from fairway.model.gpu_use import HeldKind
from fairway.model.price import cent
from fairway.wire import costs as wire

AnyReport: TypeAlias = wire.CostReport | wire.UsageReport | wire.WasteReport | wire.EfficiencyReport
ReportT = TypeVar("ReportT", bound=AnyReport)

_Row: TypeAlias = wire.CostRow | wire.UsageRow | wire.WasteRow | wire.EfficiencyRow
_MONEY: Final = frozenset({"usage", "idle", "overhead", "amounts", "held_amounts"})
_COLUMNS: Final[dict[type, tuple[str, ...]]] = {
    wire.CostRow: ("usage", "idle", "overhead", "gpu_hours"),
    wire.UsageRow: ("gpu_hours", "slice_hours"),
    wire.WasteRow: ("amounts", "held_amounts", "hours", "held_hours"),
    wire.EfficiencyRow: ("amounts", "hours", "energy_kwh", "co2_kg"),
}
"""The columns of each report, of which the others are sums; a mapping is a column by kind."""


def rounded_report(report: ReportT) -> ReportT:
    """Return a report with amounts in cents and hours in hundredths."""
    rows: list[_Row] = list(report.rows)
    changes: list[dict[str, object]] = [{} for _ in rows]
    totals: dict[str, object] = {}
    for column in _COLUMNS[type(report.total)]:
        quantum = cent(report.currency) if column in _MONEY else HUNDREDTH
        whole = sum(_kinds(report.total, column).values(), Decimal(0))
        cells = {
            (column, kind, str(each.others), *each.labels, str(i)): Fraction(amount)
            for i, each in enumerate(rows)
            for kind, amount in _kinds(each, column).items()
        }
        sums: dict[str, Decimal] = {}
        by_row: list[dict[str, Decimal]] = [{} for _ in rows]
        for path, amount in round_cells(cells, quantum, {column: whole}).items():
            kind, place = path[1], int(path[-1])
            by_row[place][kind] = amount
            sums[kind] = sums.get(kind, Decimal(0)) + amount
        for row, change, found in zip(rows, changes, by_row, strict=True):
            change[column] = _as_before(row, column, found)
        totals[column] = _as_before(report.total, column, sums)
    shown = [_with_sums(row.model_copy(update=change)) for row, change in zip(rows, changes, strict=True)]
    total = _with_sums(report.total.model_copy(update=totals))
    return cast("ReportT", report.model_copy(update={"rows": shown, "total": total}))


def _kinds(row: _Row, column: str) -> dict[str, Decimal]:
    """Return a column of a row by kind."""
    value = getattr(row, column)
    if isinstance(value, dict):
        return {kind.value: amount for kind, amount in value.items()}
    kind = row.kind if isinstance(row, wire.CostRow) else None
    return {} if value is None else {kind.value if kind else "": value}


def _as_before(row: _Row, column: str, found: dict[str, Decimal]) -> object:
    value = getattr(row, column)
    if isinstance(value, dict):
        return {kind: found.get(kind.value, Decimal(0)) for kind in value}
    return None if value is None else sum(found.values(), Decimal(0))


def _with_sums(row: _Row) -> _Row:
    """Compute the columns that are sums of others."""
    zero = Decimal(0)
    match row:
        case wire.CostRow():
            sums = {"total": row.usage + row.idle + row.overhead}
        case wire.UsageRow():
            sums = {}
        case wire.WasteRow():
            used = sum(row.held_hours.values(), zero)
            there = (h for kind, h in row.hours.items() if kind is not ChargeKind.COMMITMENT)
            amount = sum(row.amounts.values(), zero)
            sums = {"used_hours": used, "capacity_hours": sum(there, used), "amount": amount}
        case wire.EfficiencyRow():
            held, amount = sum(row.hours.values(), zero), sum(row.amounts.values(), zero)
            measured = held - row.hours.get(HeldKind.UNMEASURED, zero)
            sums = {"held_hours": held, "measured_hours": measured, "amount": amount}
    return row.model_copy(update=sums)
