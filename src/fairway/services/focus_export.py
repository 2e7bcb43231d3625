"""Charges as a FOCUS file, written as it is read: a day at a time, so a year takes as much memory as a day.

`cost.focus` is plain code that goes over the days twice. It runs in a thread of its own and asks for each day
when it gets there; nothing is asked for ahead.
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

from fairway.cost.calendar import Window
from fairway.cost.corrections import correction
from fairway.cost.csv_cells import plain
from fairway.cost.focus.export import COLUMNS, Book, Correction, DayCharges, Row, Totals, rows
from fairway.ledger import UsageFilter
from fairway.model.charge import Charge, Label, Span
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.services.charges import EVERYBODY, Costs, calendar_of
from fairway.services.statements import MonthStatements, StatementEntry

LABELS: Final = (Label.TEAM, Label.USER, Label.PRIORITY)
_ROWS_AT_ONCE: Final = 2000
_READ_SECONDS: Final = 240.0
"""How long a few days may take to be read."""
_FEW: Final = 5000
"""Charges of days that are read together."""


@dataclass(frozen=True, slots=True)
class Days:
    """The days of a window, read when they are asked for; goes round as often as anybody likes."""

    costs: Costs
    fleet: Fleet
    window: Window
    which: UsageFilter
    loop: asyncio.AbstractEventLoop

    def __iter__(self) -> Iterator[DayCharges]:
        """Only outside the loop's own thread: it waits for the loop."""
        days, at, many = calendar_of(self.fleet).days(self.window.span), 0, 1
        while at < len(days):
            asked = asyncio.run_coroutine_threadsafe(self._charges(days[at : at + many]), self.loop)
            found = asked.result(_READ_SECONDS)
            yield from found
            at += many
            # Quiet days are read together, busy ones alone: what is held in memory stays about the same.
            many = many * 2 if sum(len(day.charges) for day in found) < _FEW else max(1, many // 4)

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
    """The file in pieces, its heading first."""
    loop = asyncio.get_running_loop()
    days = Days(costs, fleet, window, which, loop)
    yield _text([COLUMNS])
    made = await asyncio.to_thread(_rows, fleet, days, tuple(corrections))
    while piece := await asyncio.to_thread(lambda: list(islice(made, _ROWS_AT_ONCE))):
        yield _text(piece)


async def month_corrections(
    closing: MonthStatements, fleet: Fleet, month: date, which: UsageFilter, now: int
) -> tuple[Correction, ...]:
    """What makes the file of a month sum to its statement.

    What the statement corrects of earlier months; and of a closed one what is now known to differ from what
    was told: that is in a later month's statement, and must not be in two files.
    """
    statement = await closing.statement(fleet, month, now)
    lines = [line for line in statement.lines if line.used_in != month]
    if statement.closed is not None:
        told = [line.told for line in statement.lines if line.used_in == month]
        again = await closing.recomputed(fleet, month, now)
        lines += [StatementEntry(month, difference) for difference in correction(told, again)]
    return tuple(
        Correction(
            kind=line.told.kind,
            cluster=line.told.cluster,
            supply=line.told.supply,
            team=TeamName(line.told.team) if line.told.team else None,
            used_in=line.used_in,
            told_in=month,
            amount=line.told.amount,
        )
        for line in lines
        if which.teams is None or line.told.team in which.teams
    )


def _rows(fleet: Fleet, days: Days, corrections: Sequence[Correction]) -> Iterator[Row]:
    totals = Totals(Book(fleet, calendar_of(fleet), LABELS))
    for day in days:
        totals.add(day)
    return rows(totals, days, corrections)


def _text(lines: Iterable[Row]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(plain, line) for line in lines)
    return out.getvalue()
