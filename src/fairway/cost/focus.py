"""Charges as rows of FOCUS, the FinOps Open Cost and Usage Specification. Amounts sum to the report's cents.

Two passes over the same charges, a day at a time, so that a year's rows never stand in memory:
`Totals` first, then `rows`. `export` does both for charges that are in memory anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING

from fairway.cost.focus_columns import COLUMNS
from fairway.model.charge import Charge, ChargeKind, Label
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName, TeamName
from fairway.model.team import Supply

if TYPE_CHECKING:
    from fairway.cost.calendar import Calendar  # type: ignore[import-not-found]

__all__ = ["COLUMNS", "Book", "Correction", "DayCharges", "Row", "Totals", "export", "rows"]

Row = tuple[str, ...]
"""One text a column, as CSV has it; empty: null."""


@dataclass(frozen=True, slots=True)
class Book:
    """What charges are told by."""

    fleet: Fleet
    calendar: Calendar
    labels: tuple[Label, ...] = (Label.TEAM, Label.USER, Label.PRIORITY)
    """What the charges' labels are, in their order."""


@dataclass(frozen=True, slots=True)
class DayCharges:
    """All charges of one day: `cost.charging.charges` for a window of that day."""

    day: date
    charges: Sequence[Charge]


@dataclass(frozen=True, slots=True)
class Correction:
    """What a closed month should have been more (or less), told in a later month."""

    kind: ChargeKind
    cluster: ClusterName
    supply: Supply | None
    team: TeamName | None
    used_in: date
    """First day of the month it is about."""
    told_in: date
    """First day of the month that tells it."""
    amount: Decimal


@dataclass(slots=True)
class Totals:
    """First pass: what each group of rows comes to, so that the second can make its parts sum to cents."""

    book: Book
    _sums: dict[tuple[str, ...], list[int]] = field(default_factory=dict)

    def add(self, day: DayCharges) -> None:
        """Take a day in."""
        raise NotImplementedError


def rows(totals: Totals, days: Iterable[DayCharges], corrections: Iterable[Correction] = ()) -> Iterator[Row]:
    """Second pass: a row for each day, pool, slice, kind and whoever the labels tell apart."""
    raise NotImplementedError


def export(book: Book, days: Sequence[DayCharges], corrections: Iterable[Correction] = ()) -> Iterator[Row]:
    """Both passes."""
    totals = Totals(book)
    for day in days:
        totals.add(day)
    return rows(totals, days, corrections)
