"""Compute an objective's error budget at past times from its counts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fairway.model.slo import Slo
from fairway.policy.slo import NO_COUNTS, Counts, Slots


@dataclass(frozen=True, slots=True)
class BudgetPoint:
    """An objective at a past time."""

    at: float
    counts: Counts
    """Since the point before."""
    budget_left: float | None
    """Over the window that ended then; None: nothing was counted in it."""


def budget_points(slo: Slo, slots: Slots, first: float, last: float, points: int) -> Iterator[BudgetPoint]:
    """Yield the error budget at even distances from `first` to `last`. Linear in slots and points."""
    ordered = sorted(slots.items())
    allowed = float(1 - slo.target)
    entered = left = good = bad = 0
    for number in range(points):
        at = last if number == points - 1 else first + (last - first) * number / max(1, points - 1)
        new = NO_COUNTS
        while entered < len(ordered) and ordered[entered][0] <= at:
            counts = ordered[entered][1]
            good, bad, entered = good + counts.good, bad + counts.bad, entered + 1
            new = new + counts
        while left < entered and ordered[left][0] < at - slo.window_seconds:
            good, bad, left = good - ordered[left][1].good, bad - ordered[left][1].bad, left + 1
        total = good + bad
        yield BudgetPoint(at, new if number else NO_COUNTS, 1 - bad / (total * allowed) if total else None)
