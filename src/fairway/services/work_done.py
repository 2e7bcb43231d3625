"""Read what the cost of a report is divided by: units that jobs reported, or the values of a label."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from fractions import Fraction
from typing import Final

from fairway.cost.report import ReportEntry
from fairway.cost.unit_cost import WorkDone
from fairway.ledger import UsageFilter
from fairway.model.charge import ChargeKind, Dimension, JobLabel, Label
from fairway.model.cost_unit import CostDivisor
from fairway.services.charges import Costs, PricedWindow

UNCOUNTED: Final = frozenset({Label.NAME, Label.OUTCOME, Label.SERVICE})
"""Dimensions that sums of units do not have: they are kept by day and job class."""


async def work_entries(
    costs: Costs,
    parts: Sequence[PricedWindow],
    per: CostDivisor,
    by: tuple[Dimension, ...],
    which: UsageFilter,
) -> list[ReportEntry]:
    """Return entries without an amount, with the units or label values of each set of labels.

    `by` has no dimension of UNCOUNTED, unless `per` is a label.
    """
    found: list[ReportEntry] = []
    if isinstance(per, JobLabel):
        for each in parts:
            priced = each if Label.DAY in by else each.over_days()
            for row in await costs.usage(priced, (*by, per), which):
                *labels, value = row.labels
                if value and row.device_seconds > 0:
                    found.append(_entry(tuple(labels), WorkDone(values=frozenset({value}))))
        return found
    for part, days in _days(parts):
        sums = await costs.units(part, days, per.name, by, which)
        found += [_entry(each.labels, WorkDone(each.units)) for each in sums]
    return found


def _days(parts: Sequence[PricedWindow]) -> list[tuple[PricedWindow, tuple[date, date]]]:
    """Return the first and last day of each part. A day that two parts share is the later one's."""
    found: list[tuple[PricedWindow, tuple[date, date]]] = []
    end: date | None = None
    for priced in reversed(parts):
        first = priced.calendar.day_of(priced.span.start)
        last = priced.calendar.day_of(priced.span.end - 1)
        if end is not None and last >= end:
            last = end - timedelta(days=1)
        if first <= last:
            found.append((priced, (first, last)))
            end = first
    return found


def _entry(labels: tuple[str, ...], work: WorkDone) -> ReportEntry:
    return ReportEntry(labels, ChargeKind.USAGE, carried=True, amount=Fraction(0), work=work)
