"""Stream charges as a FOCUS file a day at a time, so that a year takes no more memory than a day.

`cost.focus` is synchronous and iterates over the days twice. It runs in a thread and reads each day from the
ledger when it gets there, none ahead.
"""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import islice
from typing import Final

from fairway.cost.calendar import Window, calendar_of
from fairway.cost.corrections import correction
from fairway.cost.csv_cells import escape_cell
from fairway.cost.focus.export import COLUMNS, Correction, DayCharges, ExportContext, Row, Totals, rows
from fairway.ledger import UsageFilter
from fairway.model.charge import Charge, Label, Span
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.services.charges import EVERYBODY, Costs
from fairway.services.statements import MonthStatements, StatementEntry

LABELS: Final = (Label.TEAM, Label.USER, Label.PRIORITY, Label.KIND, Label.SERVICE)
_ROWS_PER_PIECE: Final = 2000
_READ_SECONDS: Final = 240.0
"""Time limit for reading a few days."""
_MAX_CHARGES: Final = 5000
"""Charges below which more days are read together."""


@dataclass(frozen=True, slots=True)
class LazyDayCharges:
    """An iterable of the days of a window that reads their charges on demand, in every iteration again."""

    costs: Costs
    fleet: Fleet
    window: Window
    which: UsageFilter
    loop: asyncio.AbstractEventLoop

    def __iter__(self) -> Iterator[DayCharges]:
        """Wait for the event loop for each read; must not run in the loop's own thread."""
        days, at, count = calendar_of(self.fleet).days(self.window.span), 0, 1
        while at < len(days):
            reading = asyncio.run_coroutine_threadsafe(self._charges(days[at : at + count]), self.loop)
            found = reading.result(_READ_SECONDS)
            yield from found
            at += count
            # Quiet days are read together, busy ones alone: the memory used stays about the same.
            few = sum(len(day.charges) for day in found) < _MAX_CHARGES
            count = count * 2 if few else max(1, count // 4)

    async def _charges(self, days: Sequence[Span]) -> list[DayCharges]:
        calendar = calendar_of(self.fleet)
        period = Span(days[0].start, days[-1].end)
        labels = (*LABELS, Label.DAY)
        by_day: dict[int, list[Charge]] = {day.start: [] for day in days}
        for charge in await self.costs.charges(self.fleet, period, labels, self.which, self.window.now):
            named = None if charge.labels is None else charge.labels[: len(LABELS)]
            by_day[charge.span.start].append(replace(charge, labels=named))
        return [DayCharges(calendar.day_of(start), charges) for start, charges in by_day.items()]


async def focus_lines(
    costs: Costs,
    fleet: Fleet,
    window: Window,
    which: UsageFilter = EVERYBODY,
    corrections: Iterable[Correction] = (),
) -> AsyncIterator[str]:
    """Yield the file in pieces, the header line first."""
    loop = asyncio.get_running_loop()
    days = LazyDayCharges(costs, fleet, window, which, loop)
    yield _text([COLUMNS])
    exported = await asyncio.to_thread(_rows, fleet, days, tuple(corrections))
    while piece := await asyncio.to_thread(lambda: list(islice(exported, _ROWS_PER_PIECE))):
        yield _text(piece)


async def month_corrections(
    statements: MonthStatements, fleet: Fleet, month: date, which: UsageFilter, now: int
) -> tuple[Correction, ...]:
    """Compute the corrections that make the file of a month sum to its statement.

    They are the statement's corrections of earlier months, and for a closed month the difference between its
    statement and its charges as computed now: a later month's statement has that, and must have it alone.
    """
    statement = await statements.statement(fleet, month, now)
    lines = [line for line in statement.lines if line.used_in != month]
    if statement.closed is not None:
        billed = [line.billed for line in statement.lines if line.used_in == month]
        recomputed = await statements.recomputed(fleet, month, now)
        lines += [StatementEntry(month, difference) for difference in correction(billed, recomputed)]
    return tuple(
        Correction(
            kind=line.billed.kind,
            cluster=line.billed.cluster,
            supply=line.billed.supply,
            team=TeamName(line.billed.team) if line.billed.team else None,
            used_in=line.used_in,
            billed_in=month,
            amount=line.billed.amount,
        )
        for line in lines
        if which.teams is None or line.billed.team in which.teams
    )


def _rows(fleet: Fleet, days: LazyDayCharges, corrections: Sequence[Correction]) -> Iterator[Row]:
    totals = Totals(ExportContext(fleet, calendar_of(fleet), LABELS))
    for day in days:
        totals.add(day)
    return rows(totals, days, corrections)


def _text(lines: Iterable[Row]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(escape_cell, line) for line in lines)
    return out.getvalue()
