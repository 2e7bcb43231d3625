"""Group charges into the rows of a report, rounded so that rows and columns both sum to the totals shown.

The grand total is rounded, then distributed by the first label, within it by the second and so on, then by
column: so a team's total is the same in every report of a window, whatever the other labels are. Cents are
then moved within rows until each column's total equals its exact total, rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final

from fairway.cost.rounding import apportion, apportion_paths
from fairway.model.charge import ChargeKind

HUNDREDTH: Final = Decimal("0.01")
"""Precision of hours in reports."""
_HOUR: Final = 3600
_ZERO: Final = Decimal(0)


class ReportColumn(StrEnum):
    """A column of amounts in a cost report."""

    USAGE = "usage"
    IDLE = "idle"
    """Every kind of unused capacity, including commitments."""
    OVERHEAD = "overhead"


def column_of(kind: ChargeKind) -> ReportColumn:
    """Return the column of a kind of charge."""
    match kind:
        case ChargeKind.USAGE:
            return ReportColumn.USAGE
        case ChargeKind.OVERHEAD:
            return ReportColumn.OVERHEAD
        case _:
            return ReportColumn.IDLE


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """One exact amount with the labels that the report groups by."""

    labels: tuple[str, ...]
    kind: ChargeKind
    carried: bool
    """Whether it is charged to its labels; otherwise it is a separate line of the report."""
    amount: Fraction
    gpu_seconds: Fraction = Fraction(0)
    """Usage in GPU-seconds; a slice counts as its part of a GPU."""
    device_seconds: int = 0
    slice_seconds: int = 0


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A rounded row of a report."""

    labels: tuple[str, ...]
    kind: ChargeKind | None
    """The kind of a separate line that nobody pays; None for every other row."""
    gpu_hours: Decimal
    slice_hours: Decimal
    device_seconds: int
    slice_seconds: int
    amounts: Mapping[ReportColumn, Decimal]
    others: int = 0
    """The number of rows merged into this one beyond the limit; 0 for a single row."""

    @property
    def total(self) -> Decimal:
        return sum(self.amounts.values(), _ZERO)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """The rows of a report and their total."""

    rows: tuple[ReportRow, ...]
    total: ReportRow


@dataclass(slots=True)
class _RowTotal:
    amounts: dict[ReportColumn, Fraction] = field(default_factory=dict)
    gpu_seconds: Fraction = Fraction(0)
    device_seconds: int = 0
    slice_seconds: int = 0


_RowKey = tuple[tuple[str, ...], str]
"""Labels, and the charge kind of a separate line (empty for every other row)."""


def table(
    entries: Iterable[ReportEntry], quantum: Decimal, *, max_rows: int, sort_labels: Sequence[int] = ()
) -> ReportTable:
    """Build one row per set of labels, most expensive first: at most `max_rows`, and one row for the rest.

    `sort_labels`: indices of labels to sort rows by first, so that e.g. days are in order.
    """
    sums: dict[_RowKey, _RowTotal] = {}
    for entry in entries:
        found = sums.setdefault((entry.labels, "" if entry.carried else entry.kind.value), _RowTotal())
        column = column_of(entry.kind)
        found.amounts[column] = found.amounts.get(column, Fraction(0)) + entry.amount
        found.gpu_seconds += entry.gpu_seconds
        found.device_seconds += entry.device_seconds
        found.slice_seconds += entry.slice_seconds
    rows = _rounded_rows({key: sums[key] for key in sorted(sums)}, quantum)
    return ReportTable(_shown(rows, max_rows, sort_labels), _sum_of(rows, ()))


def hours(seconds: Mapping[tuple[str, ...], Fraction]) -> dict[tuple[str, ...], Decimal]:
    """Convert seconds by path to hours, rounded to hundredths such that they sum at every level."""
    return apportion_paths({path: s / _HOUR for path, s in seconds.items()}, HUNDREDTH)


def _rounded_rows(sums: Mapping[_RowKey, _RowTotal], quantum: Decimal) -> list[ReportRow]:
    amounts = apportion_paths(
        {
            (*labels, kind, column.value): found.amounts[column]
            for (labels, kind), found in sums.items()
            for column in ReportColumn
            if column in found.amounts
        },
        quantum,
    )
    _settle(sums, amounts, quantum)
    gpu = hours({(*labels, kind): found.gpu_seconds for (labels, kind), found in sums.items()})
    slices = hours({(*labels, kind): Fraction(found.slice_seconds) for (labels, kind), found in sums.items()})
    none = quantum * 0
    return [
        ReportRow(
            labels,
            ChargeKind(kind) if kind else None,
            gpu[*labels, kind],
            slices[*labels, kind],
            found.device_seconds,
            found.slice_seconds,
            {c: amounts.get((*labels, kind, c.value), none) for c in ReportColumn},
        )
        for (labels, kind), found in sums.items()
    ]


def _settle(
    sums: Mapping[_RowKey, _RowTotal], amounts: dict[tuple[str, ...], Decimal], quantum: Decimal
) -> None:
    """Move quanta between columns of a row, where the error is least, until the column totals are right.

    Only moves between columns in which the row has an amount: a row without overhead gets none.
    """
    exact = [sum((s.amounts.get(c, Fraction(0)) for s in sums.values()), Fraction(0)) for c in ReportColumn]
    shown = [sum((v for path, v in amounts.items() if path[-1] == c.value), _ZERO) for c in ReportColumn]
    wanted = apportion(exact, sum(shown, _ZERO), quantum)
    over = {c: int((t - w) / quantum) for c, t, w in zip(ReportColumn, shown, wanted, strict=True)}
    for over_column in ReportColumn:
        for under_column in ReportColumn:
            count = min(over[over_column], -over[under_column])
            if count <= 0:
                continue
            rows = [(k, s) for k, s in sums.items() if over_column in s.amounts and under_column in s.amounts]
            rows.sort(
                key=lambda row: _excess(row, amounts, under_column) - _excess(row, amounts, over_column)
            )
            for (labels, kind), _ in rows[:count]:
                amounts[*labels, kind, over_column.value] -= quantum
                amounts[*labels, kind, under_column.value] += quantum
                over[over_column] -= 1
                over[under_column] += 1


def _excess(
    row: tuple[_RowKey, _RowTotal], amounts: Mapping[tuple[str, ...], Decimal], column: ReportColumn
) -> Fraction:
    """Return the rounded amount minus the exact one."""
    (labels, kind), found = row
    return Fraction(amounts[*labels, kind, column.value]) - found.amounts[column]


def _shown(rows: Sequence[ReportRow], max_rows: int, sort_labels: Sequence[int]) -> tuple[ReportRow, ...]:
    """Sort and limit the rows. Separate lines are always shown: they are few and concern the whole fleet."""
    ranked = sorted((r for r in rows if r.kind is None), key=_by_amount)
    own = sorted((r for r in rows if r.kind is not None), key=_by_amount)
    first = sorted(ranked[:max_rows], key=lambda r: ([r.labels[i] for i in sort_labels], *_by_amount(r)))
    rest = ranked[max_rows:]
    others = [replace(_sum_of(rest, rest[0].labels), others=len(rest))] if rest else []
    others = [replace(row, labels=("",) * len(row.labels)) for row in others]
    return (*first, *others, *own)


def _by_amount(row: ReportRow) -> tuple[Decimal, Decimal, tuple[str, ...]]:
    return -row.total, -row.gpu_hours, row.labels


def _sum_of(rows: Sequence[ReportRow], labels: tuple[str, ...]) -> ReportRow:
    return ReportRow(
        labels,
        None,
        gpu_hours=sum((r.gpu_hours for r in rows), _ZERO),
        slice_hours=sum((r.slice_hours for r in rows), _ZERO),
        device_seconds=sum(r.device_seconds for r in rows),
        slice_seconds=sum(r.slice_seconds for r in rows),
        amounts={c: sum((r.amounts[c] for r in rows), _ZERO) for c in ReportColumn},
    )
