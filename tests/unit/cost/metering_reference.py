"""What is true of an attempt, less what is written of it, is what is still to be written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from fairway.cost.calendar import Calendar
from fairway.model.usage import AttemptUsage, UsagePiece


def difference(
    metered: AttemptUsage | None, truth: AttemptUsage | None, calendar: Calendar
) -> list[UsagePiece]:
    """The rows to add so that those of an attempt sum up to `truth`, when they sum up to `metered` now.

    As few as can be: what both say is left alone. Where the holder changed, all is taken back and added
    again, for rows are summed by holder. None, or nothing between start and end: nothing held.
    """
    if metered is not None and truth is not None and metered.holder == truth.holder:
        return list(_of_one_holder(truth.holder, metered, truth, calendar))
    rows: list[UsagePiece] = []
    if metered is not None:
        rows += _cut(metered.holder, metered.start, metered.end, -metered.devices, calendar)
    if truth is not None:
        rows += _cut(truth.holder, truth.start, truth.end, truth.devices, calendar)
    return rows


def _of_one_holder(
    holder: int, metered: AttemptUsage, truth: AttemptUsage, calendar: Calendar
) -> Iterator[UsagePiece]:
    edges = sorted({metered.start, metered.end, truth.start, truth.end})
    for start, end in pairwise(edges):
        yield from _cut(holder, start, end, _held(truth, start) - _held(metered, start), calendar)


def _held(holding: AttemptUsage, at: int) -> int:
    return holding.devices if holding.start <= at < holding.end else 0


def _cut(holder: int, start: int, end: int, devices: int, calendar: Calendar) -> Iterator[UsagePiece]:
    while devices and start < end:
        hour = calendar.hour_span(start)
        until = min(end, hour.end)
        yield UsagePiece(hour.start, holder, start, until, devices)
        start = until
