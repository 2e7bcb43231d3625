"""Stream charges as a FOCUS file a day at a time, so that a year takes no more memory than a day.

`cost.focus` is synchronous. It runs in a thread and reads each day from the ledger when it gets there.
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
from fairway.cost.csv_cells import escape_row
from fairway.cost.focus.export import COLUMNS, Billed, Correction, DayCharges, ExportContext, Row, rows
from fairway.model.charge import LABEL_PREFIX, Charge, Dimension, JobLabel, Label, Span
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.services.charges import Costs
from fairway.services.statements import MonthStatements

_LABELS: Final = (
    Label.TEAM, Label.USER, Label.PRIORITY, Label.KIND, Label.SERVICE, Label.PROJECT,
)  # fmt: skip
_ROWS_PER_PIECE: Final = 2000
_READ_SECONDS: Final = 240.0
"""Time limit for reading a few days."""
_MAX_CHARGES: Final = 5000
"""Charges below which more days are read together."""


def dimensions(fleet: Fleet) -> tuple[Dimension, ...]:
    """Return what rows are split by: the labels of jobs are those that the fleet keeps for cost."""
    return (*_LABELS, *(JobLabel(f"{LABEL_PREFIX}{key}") for key in fleet.cost.labels))


@dataclass(frozen=True, slots=True)
class LazyDayCharges:
    """An iterable of the days of a window that reads their charges on demand."""

    costs: Costs
    fleet: Fleet
    window: Window
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
        period, labels = Span(days[0].start, days[-1].end), dimensions(self.fleet)
        by: tuple[Dimension, ...] = (*labels, Label.DAY)
        found: list[DayCharges] = []
        for held, charges in await self.costs.itemised(self.fleet, period, by, self.window.now):
            by_span: dict[Span, list[Charge]] = {}
            for charge in charges:
                named = None if charge.labels is None else charge.labels[: len(labels)]
                by_span.setdefault(charge.span, []).append(replace(charge, labels=named))
            found += [
                DayCharges(span, held.fleet, by_span[span], held.current_paths) for span in sorted(by_span)
            ]
        return found


async def focus_lines(
    costs: Costs,
    fleet: Fleet,
    window: Window,
    teams: frozenset[str] | None = None,
    corrections: Iterable[Correction] = (),
    billed: Billed | None = None,
) -> AsyncIterator[str]:
    """Yield the file in pieces, the header line first.

    All charges are read, also for some teams alone: their lines are rounded as part of the whole.
    """
    days = LazyDayCharges(costs, fleet, window, asyncio.get_running_loop())
    yield _text([COLUMNS])
    context = ExportContext(fleet, calendar_of(fleet), dimensions(fleet), teams)
    exported = rows(context, days, tuple(corrections), billed)
    while piece := await asyncio.to_thread(lambda: list(islice(exported, _ROWS_PER_PIECE))):
        yield _text(piece)


async def month_corrections(
    statements: MonthStatements, fleet: Fleet, month: date, teams: frozenset[str] | None, now: int
) -> tuple[tuple[Correction, ...], Billed | None]:
    """Read a month's corrections of earlier months, and its own amounts if it is closed."""
    lines, closed = await statements.settled(fleet, month, now)
    corrections = tuple(
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
        if line.used_in != month and (teams is None or line.billed.is_of(teams))
    )
    if not closed:
        return corrections, None
    return corrections, {
        (a.team, a.kind, a.cluster, a.supply, a.inside): a.amount
        for a in (line.billed for line in lines if line.used_in == month)
    }


def _text(lines: Iterable[Row]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(escape_row, lines))
    return out.getvalue()
