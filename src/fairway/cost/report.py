"""Group charges into the rows of a report. Every figure is rounded to millionths by itself.

`views.rounded` rounds them for people, so that the rows of a table sum to the totals shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final

from fairway.cost.rounding import millionths
from fairway.cost.unit_cost import NO_WORK, WorkDone, sum_work
from fairway.model.charge import ChargeKind

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
    work: WorkDone = NO_WORK
    """What the cost of a unit is computed from; of an entry without an amount."""


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
    work: WorkDone = NO_WORK

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
    work: list[WorkDone] = field(default_factory=list)

    def add(self, column: ReportColumn, entry: ReportEntry) -> None:
        self.amounts[column] = self.amounts.get(column, Fraction(0)) + entry.amount
        self.gpu_seconds += entry.gpu_seconds
        self.device_seconds += entry.device_seconds
        self.slice_seconds += entry.slice_seconds
        if entry.work is not NO_WORK:
            self.work.append(entry.work)

    def merge(self, other: _RowTotal) -> None:
        for column, amount in other.amounts.items():
            self.amounts[column] = self.amounts.get(column, Fraction(0)) + amount
        self.gpu_seconds += other.gpu_seconds
        self.device_seconds += other.device_seconds
        self.slice_seconds += other.slice_seconds
        self.work += other.work


_RowKey = tuple[tuple[str, ...], str]
"""Labels, and the charge kind of a separate line (empty for every other row)."""


def table(entries: Iterable[ReportEntry], *, max_rows: int, sort_labels: Sequence[int] = ()) -> ReportTable:
    """Build one row per set of labels, most expensive first: at most `max_rows`, and one row for the rest.

    `sort_labels`: indices of labels to sort rows by first, so that e.g. days are in order.
    """
    sums: dict[_RowKey, _RowTotal] = {}
    for entry in entries:
        found = sums.setdefault((entry.labels, "" if entry.carried else entry.kind.value), _RowTotal())
        found.add(column_of(entry.kind), entry)
    whole = _RowTotal()
    for found in sums.values():
        whole.merge(found)
    rows = [_row(labels, ChargeKind(kind) if kind else None, found) for (labels, kind), found in sums.items()]
    return ReportTable(_shown(rows, max_rows, sort_labels), _row((), None, whole))


def hours(seconds: Fraction | int) -> Decimal:
    """Convert seconds to hours, rounded to millionths."""
    return millionths(Fraction(seconds) / _HOUR)


def _row(labels: tuple[str, ...], kind: ChargeKind | None, found: _RowTotal) -> ReportRow:
    return ReportRow(
        labels,
        kind,
        hours(found.gpu_seconds),
        hours(found.slice_seconds),
        found.device_seconds,
        found.slice_seconds,
        {c: millionths(found.amounts.get(c, Fraction(0))) for c in ReportColumn},
        work=sum_work(found.work),
    )


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
        work=sum_work(r.work for r in rows),
    )
