"""Compute the totals of groups of FOCUS rows in cents, and the amounts of their rows in millionths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Final

from fairway.cost.calendar import Calendar
from fairway.cost.rounding import apportion_paths
from fairway.model.charge import Charge, ChargeKind, Label
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.model.price import cent
from fairway.model.team import Supply

MICRO: Final = 6
"""Decimal places of a row's cost."""
FINE: Final = 20
"""Decimal places of sums in both passes; both round each charge the same way, so their sums agree."""
_STEP: Final = 10 ** (FINE - MICRO)

Group = tuple[date, str, ChargeKind, ClusterName, Supply | None]
"""Month, team, kind, cluster and supply: one line of a month's statement."""


@dataclass(frozen=True, slots=True)
class Book:
    """The fleet, calendar and labels that an export uses."""

    fleet: Fleet
    calendar: Calendar
    labels: tuple[Label, ...] = (Label.TEAM, Label.USER, Label.PRIORITY)
    """The labels of the charges, in order."""


@dataclass(frozen=True, slots=True)
class DayCharges:
    """All charges of one day, from `cost.charges.charges` for a window of that day."""

    day: date
    charges: Sequence[Charge]


@dataclass(slots=True)
class _GroupTotal:
    """The sum of a group, exact by denominator: there are few of those, and adding integers is fast."""

    exact: dict[int, int] = field(default_factory=dict)
    fine: int = 0
    size: int = 0


@dataclass(slots=True)
class Totals:
    """The totals of each group of rows (first pass), so that the second pass can make rows sum to cents."""

    book: Book
    _sums: dict[Group, _GroupTotal] = field(default_factory=dict)

    def add(self, day: DayCharges) -> None:
        """Add the charges of a day."""
        month, place = day.day.replace(day=1), place_of(self.book, Label.TEAM)
        for charge in day.charges:
            group = self._sums.setdefault(group_of(month, charge, place), _GroupTotal())
            amount = charge.amount
            group.exact[amount.denominator] = group.exact.get(amount.denominator, 0) + amount.numerator
            fine = fine_of(amount)
            group.fine += fine
            group.size += abs(fine)

    @property
    def total(self) -> Decimal:
        """Return the sum of all rows, without corrections."""
        return sum(self._told().values(), Decimal(0))

    def carriers(self) -> dict[Group, Carry]:
        """Return a Carry for each group, which computes the amounts of its rows."""
        told = self._told()
        found = {}
        for group, amount in told.items():
            kept = self._sums[group]
            gap = int(amount.scaleb(FINE)) - kept.fine
            found[group] = Carry(gap, kept.size)
        return found

    def _told(self) -> dict[Group, Decimal]:
        amounts = {
            group: sum((Fraction(n, d) for d, n in kept.exact.items()), Fraction(0))
            for group, kept in sorted(self._sums.items(), key=lambda item: _order(item[0]))
        }
        quantum = cent(self.book.fleet.currency)
        return {(p[0], p[1], p[2], p[3], p[4]): a for p, a in apportion_paths(amounts, quantum).items()}


@dataclass(slots=True)
class Carry:
    """A rounding carry that gives each row of a group its millionths, which sum to the group's total."""

    gap: int
    """The difference made by rounding the group, spread over its rows by size."""
    size: int
    so_far: int = 0
    size_so_far: int = 0
    given: int = 0

    def next(self, fine: int) -> int:
        self.so_far += fine
        self.size_so_far += abs(fine)
        spread = self.gap * self.size_so_far // self.size if self.size else 0
        upto = (2 * (self.so_far + spread) + _STEP) // (2 * _STEP)
        amount, self.given = upto - self.given, upto
        return amount


def place_of(book: Book, label: Label) -> int | None:
    return book.labels.index(label) if label in book.labels else None


def group_of(month: date, charge: Charge, team: int | None) -> Group:
    carried = charge.labels[team] if charge.labels and team is not None else ""
    return (month, carried, charge.kind, charge.cluster, charge.supply)


def _order(group: Group) -> tuple[date, str, str, str, str]:
    """Return a sort key with the order of a month's statement: the same rounding needs the same order."""
    month, team, kind, cluster, supply = group
    return (month, team, kind.value, cluster, "" if supply is None else str(supply))


def fine_of(amount: Fraction) -> int:
    return divided(amount.numerator * 10**FINE, amount.denominator)


def divided(number: int, by: int) -> int:
    """Divide and round to the nearest integer, half up."""
    return (2 * number + by) // (2 * by)
