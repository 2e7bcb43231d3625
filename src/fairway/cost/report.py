"""Charges gathered into the rows of a document, rounded once: rows and columns both sum to what is shown.

The grand total is rounded, then shared by the first label, within it by the second and so on, then by column:
so a team's total is the same in every document of a window, whatever else is told apart. Cents are then moved
within rows until a column's total is what it exactly is, rounded, too.
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
"""Of an hour: how exactly documents show time."""
_HOUR: Final = 3600
_ZERO: Final = Decimal(0)


class Column(StrEnum):
    """What amounts of a cost report are told apart by."""

    USAGE = "usage"
    IDLE = "idle"
    """Every kind of unused, commitments too."""
    OVERHEAD = "overhead"


def column_of(kind: ChargeKind) -> Column:
    """Where an amount of that kind stands."""
    match kind:
        case ChargeKind.USAGE:
            return Column.USAGE
        case ChargeKind.OVERHEAD:
            return Column.OVERHEAD
        case _:
            return Column.IDLE


@dataclass(frozen=True, slots=True)
class Entry:
    """One exact amount with the labels a document tells apart by."""

    labels: tuple[str, ...]
    kind: ChargeKind
    carried: bool
    """By somebody; otherwise it is a line of its own."""
    amount: Fraction
    gpu_seconds: Fraction = Fraction(0)
    """Of usage: slices by their part of the GPU."""
    device_seconds: int = 0
    slice_seconds: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A line as it is shown."""

    labels: tuple[str, ...]
    kind: ChargeKind | None
    """Of a line of its own."""
    gpu_hours: Decimal
    slice_hours: Decimal
    device_seconds: int
    slice_seconds: int
    amounts: Mapping[Column, Decimal]
    others: int = 0
    """How many rows that were too many to list are in it; 0: it is one row."""

    @property
    def total(self) -> Decimal:
        return sum(self.amounts.values(), _ZERO)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows and what they sum to."""

    rows: tuple[Row, ...]
    total: Row


@dataclass(slots=True)
class _Sum:
    amounts: dict[Column, Fraction] = field(default_factory=dict)
    gpu_seconds: Fraction = Fraction(0)
    device_seconds: int = 0
    slice_seconds: int = 0


_RowKey = tuple[tuple[str, ...], str]
"""Labels, and the kind of a line of its own."""


def table(entries: Iterable[Entry], quantum: Decimal, *, most: int, in_order: Sequence[int] = ()) -> Table:
    """One row for each set of labels, the dearest first, at most `most` and one for the rest.

    `in_order`: places of labels that rows are ordered by before that (days follow each other).
    """
    sums: dict[_RowKey, _Sum] = {}
    for entry in entries:
        found = sums.setdefault((entry.labels, "" if entry.carried else entry.kind.value), _Sum())
        column = column_of(entry.kind)
        found.amounts[column] = found.amounts.get(column, Fraction(0)) + entry.amount
        found.gpu_seconds += entry.gpu_seconds
        found.device_seconds += entry.device_seconds
        found.slice_seconds += entry.slice_seconds
    rows = _rounded_rows({key: sums[key] for key in sorted(sums)}, quantum)
    return Table(_shown(rows, most, in_order), _sum_of(rows, ()))


def hours(seconds: Mapping[tuple[str, ...], Fraction]) -> dict[tuple[str, ...], Decimal]:
    """Hours by path, to the hundredth, such that they sum at every level."""
    return apportion_paths({path: s / _HOUR for path, s in seconds.items()}, HUNDREDTH)


def _rounded_rows(sums: Mapping[_RowKey, _Sum], quantum: Decimal) -> list[Row]:
    amounts = apportion_paths(
        {
            (*labels, kind, column.value): found.amounts[column]
            for (labels, kind), found in sums.items()
            for column in Column
            if column in found.amounts
        },
        quantum,
    )
    _settle(sums, amounts, quantum)
    gpu = hours({(*labels, kind): found.gpu_seconds for (labels, kind), found in sums.items()})
    slices = hours({(*labels, kind): Fraction(found.slice_seconds) for (labels, kind), found in sums.items()})
    none = quantum * 0
    return [
        Row(
            labels,
            ChargeKind(kind) if kind else None,
            gpu[*labels, kind],
            slices[*labels, kind],
            found.device_seconds,
            found.slice_seconds,
            {c: amounts.get((*labels, kind, c.value), none) for c in Column},
        )
        for (labels, kind), found in sums.items()
    ]


def _settle(sums: Mapping[_RowKey, _Sum], amounts: dict[tuple[str, ...], Decimal], quantum: Decimal) -> None:
    """Move quanta between the columns of a row, where it errs least, until the columns' totals are right.

    Only between columns in which the row has something: a row without overhead gets none.
    """
    exact = [sum((s.amounts.get(c, Fraction(0)) for s in sums.values()), Fraction(0)) for c in Column]
    told = [sum((v for path, v in amounts.items() if path[-1] == c.value), _ZERO) for c in Column]
    wanted = apportion(exact, sum(told, _ZERO), quantum)
    over = {c: int((t - w) / quantum) for c, t, w in zip(Column, told, wanted, strict=True)}
    for much in Column:
        for little in Column:
            count = min(over[much], -over[little])
            if count <= 0:
                continue
            rows = [(k, s) for k, s in sums.items() if much in s.amounts and little in s.amounts]
            rows.sort(key=lambda row: _excess(row, amounts, little) - _excess(row, amounts, much))
            for (labels, kind), _ in rows[:count]:
                amounts[*labels, kind, much.value] -= quantum
                amounts[*labels, kind, little.value] += quantum
                over[much] -= 1
                over[little] += 1


def _excess(
    row: tuple[_RowKey, _Sum], amounts: Mapping[tuple[str, ...], Decimal], column: Column
) -> Fraction:
    """How much more is told than is exact."""
    (labels, kind), found = row
    return Fraction(amounts[*labels, kind, column.value]) - found.amounts[column]


def _shown(rows: Sequence[Row], most: int, in_order: Sequence[int]) -> tuple[Row, ...]:
    """Lines of their own are always shown: they are few, and what they say is about the fleet."""
    ranked = sorted((r for r in rows if r.kind is None), key=_dearest_first)
    own = sorted((r for r in rows if r.kind is not None), key=_dearest_first)
    first = sorted(ranked[:most], key=lambda r: ([r.labels[i] for i in in_order], *_dearest_first(r)))
    rest = ranked[most:]
    others = [replace(_sum_of(rest, rest[0].labels), others=len(rest))] if rest else []
    others = [replace(row, labels=("",) * len(row.labels)) for row in others]
    return (*first, *others, *own)


def _dearest_first(row: Row) -> tuple[Decimal, Decimal, tuple[str, ...]]:
    return -row.total, -row.gpu_hours, row.labels


def _sum_of(rows: Sequence[Row], labels: tuple[str, ...]) -> Row:
    return Row(
        labels,
        None,
        gpu_hours=sum((r.gpu_hours for r in rows), _ZERO),
        slice_hours=sum((r.slice_hours for r in rows), _ZERO),
        device_seconds=sum(r.device_seconds for r in rows),
        slice_seconds=sum(r.slice_seconds for r in rows),
        amounts={c: sum((r.amounts[c] for r in rows), _ZERO) for c in Column},
    )
