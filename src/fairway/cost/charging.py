"""Usage × price, and who carries what nobody used. Exact; a window is the sum of its days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairway.cost.calendar import Calendar
from fairway.cost.rates import RateSpan, hourly_pools, rate_spans
from fairway.model.charge import CapacitySum, Charge, Label, Span, UsageSum
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName

__all__ = ["RateSpan", "charges", "hourly_pools", "rate_spans", "unused", "usage_charges"]


def usage_charges(
    fleet: Fleet,
    calendar: Calendar,
    window: Span,
    rates: Mapping[PoolName, Sequence[RateSpan]],
    usage: Sequence[UsageSum],
    labels: Sequence[Label],
) -> tuple[Charge, ...]:
    """Usage × price alone: no shares, nothing of what was unused. `rates` need not be cut by day.

    One charge for each supply and label; its span is the day if `labels` tell days, else the window.
    """
    raise NotImplementedError


def unused(
    fleet: Fleet,
    calendar: Calendar,
    window: Span,
    capacity: Sequence[CapacitySum],
    rates: Mapping[PoolName, Sequence[RateSpan]],
    usage: Sequence[UsageSum],
) -> tuple[Charge, ...]:
    """What nobody used and what it cost, by day and supply, whoever carries it: labels are None.

    `usage` of everyone, with whatever labels; `rates` cut by day.
    """
    raise NotImplementedError


def charges(
    fleet: Fleet,
    calendar: Calendar,
    window: Span,
    capacity: Sequence[CapacitySum],
    rates: Mapping[PoolName, Sequence[RateSpan]],
    usage: Sequence[UsageSum],
    labels: Sequence[Label],
    *,
    everyone: Sequence[UsageSum] | None = None,
) -> tuple[Charge, ...]:
    """All that the window cost, and who carries it: usage, what was unused, commitments, overhead.

    They sum to capacity × price + overhead. `labels` are those of `usage`. If `usage` is only of some,
    `everyone` is all usage of the same spans, with whatever labels (none will do): shares are of the whole,
    and the charges are of those some, beside the lines that nobody carries. One charge for each kind, supply
    and label; its span is the day if `labels` tell days, else the window.
    """
    raise NotImplementedError
