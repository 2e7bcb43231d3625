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

COST_PLACES: Final = 6
"""Decimal places of a row's cost."""
FINE_DIGITS: Final = 20
"""Decimal places of sums in both passes; both round each charge the same way, so their sums agree."""
_STEP: Final = 10 ** (FINE_DIGITS - COST_PLACES)

Group = tuple[date, str, ChargeKind, ClusterName, Supply | None]
"""Month, team, kind, cluster and supply: one line of a month's statement."""


@dataclass(frozen=True, slots=True)
class ExportContext:
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

    context: ExportContext
    _sums: dict[Group, _GroupTotal] = field(default_factory=dict)

    def add(self, day: DayCharges) -> None:
        """Add the charges of a day."""
        month, place = day.day.replace(day=1), label_index(self.context, Label.TEAM)
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
        return sum(self._rounded().values(), Decimal(0))

    def carriers(self) -> dict[Group, Carry]:
        """Return a Carry for each group, which computes the amounts of its rows."""
        return {
            group: Carry(int(amount.scaleb(FINE_DIGITS)) - self._sums[group].fine, self._sums[group].size)
            for group, amount in self._rounded().items()
        }

    def _rounded(self) -> dict[Group, Decimal]:
        amounts = {
            group: sum((Fraction(n, d) for d, n in total.exact.items()), Fraction(0))
            for group, total in sorted(self._sums.items(), key=lambda item: _order(item[0]))
        }
        quantum = cent(self.context.fleet.currency)
        return apportion_paths(amounts, quantum)


@dataclass(slots=True)
class Carry:
    """A rounding carry that gives each row of a group its millionths, which sum to the group's total."""

    gap: int
    """The difference made by rounding the group, spread over its rows by size."""
    size: int
    running_sum: int = 0
    running_size: int = 0
    assigned: int = 0

    def next(self, fine: int) -> int:
        self.running_sum += fine
        self.running_size += abs(fine)
        spread = self.gap * self.running_size // self.size if self.size else 0
        upto = (2 * (self.running_sum + spread) + _STEP) // (2 * _STEP)
        amount, self.assigned = upto - self.assigned, upto
        return amount


def label_index(context: ExportContext, label: Label) -> int | None:
    return context.labels.index(label) if label in context.labels else None


def group_of(month: date, charge: Charge, team: int | None) -> Group:
    carried = charge.labels[team] if charge.labels and team is not None else ""
    return (month, carried, charge.kind, charge.cluster, charge.supply)


def _order(group: Group) -> tuple[date, str, str, str, str]:
    """Return a sort key with the order of a month's statement: the same rounding needs the same order."""
    month, team, kind, cluster, supply = group
    return (month, team, kind.value, cluster, "" if supply is None else str(supply))


def fine_of(amount: Fraction) -> int:
    return divided(amount.numerator * 10**FINE_DIGITS, amount.denominator)


def divided(number: int, by: int) -> int:
    """Divide and round to the nearest integer, half up."""
    return (2 * number + by) // (2 * by)
