"""Compute what a job's reported totals add to its counts, and the cost of a unit. Pure.

A job reports totals since it began. One that restarts from a checkpoint reports lower totals than before: the
highest total counts, so work that is done twice is counted once, and its cost is part of the cost of a unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fairway.cost.rounding import millionths


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What a cost is divided by: units that jobs counted, or the distinct values of a label."""

    units: int = 0
    values: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        return self.units + len(self.values)


NO_WORK: Final = WorkDone()


def sum_work(parts: Iterable[WorkDone]) -> WorkDone:
    """Sum units, and unite values: one that several parts have counts once."""
    units = 0
    values: set[str] = set()
    for part in parts:
        units += part.units
        values |= part.values
    return WorkDone(units, frozenset(values))


def added_units(stored: Mapping[str, int], reported: Mapping[str, int]) -> dict[str, int]:
    """Return by how much the reported totals exceed the stored ones; units that add nothing are left out."""
    more = {unit: total - stored.get(unit, 0) for unit, total in reported.items()}
    return {unit: added for unit, added in more.items() if added > 0}


def cost_per(total: Decimal, count: int, size: int = 1) -> Decimal | None:
    """Divide a cost by a count, in lots of `size`, rounded for machines. Returns None if nothing counts.

    >>> cost_per(Decimal("912.000000"), 1_200_000, 1000)
    Decimal('0.760000')
    """
    return millionths(Fraction(total) * size / count) if count else None
