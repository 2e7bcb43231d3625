"""Months: what is charged for one, closing it for good, and what later turns out to have been different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Final

from fairway.cost.calendar import next_month
from fairway.cost.corrections import StatementAmount, correction, told
from fairway.ledger import ClosedCharge, ClosedMonth, Ledger
from fairway.model.charge import Label
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.model.price import cent
from fairway.services.charges import Costs, calendar_of, second

LOOKED_BACK: Final = 24
"""Closed months that are computed again for corrections: older ones stay as they are."""


@dataclass(frozen=True, slots=True)
class StatementEntry:
    """One amount of a month's statement."""

    used_in: date
    """First day of the month it is about; an earlier one in a correction."""
    told: StatementAmount


@dataclass(frozen=True, slots=True)
class Statement:
    """All that is charged for a month."""

    month: date
    currency: str
    timezone: str
    lines: tuple[StatementEntry, ...]
    closed: ClosedMonth | None
    over: bool

    @property
    def total(self) -> Decimal:
        return sum((line.told.amount for line in self.lines), Decimal(0))


class MonthStatements:
    """Statements of months, open and closed."""

    def __init__(self, ledger: Ledger, costs: Costs) -> None:
        self._ledger = ledger
        self._costs = costs

    async def statement(self, fleet: Fleet, month: date, now: int | None = None) -> Statement:
        """A closed month as it was told; an open one as it is now, with corrections if it is the next."""
        now = second(now)
        closed = {m.month: m for m in await self._ledger.months.all()}
        if month in closed:
            return await self._as_told(closed[month])
        lines = [StatementEntry(month, t) for t in await self.recomputed(fleet, month, now)]
        if closed and month == next_month(max(closed)):
            lines += await self._corrections(fleet, sorted(closed)[-LOOKED_BACK:], closed, now)
        over = calendar_of(fleet).month_end(month) <= now
        return Statement(month, fleet.currency, fleet.cost.timezone, tuple(lines), None, over)

    async def close(self, fleet: Fleet, month: date, by: str, now: int | None = None) -> Statement:
        """Keep a month as it is told now, for good. Raises MonthClosed, MonthOpen, or that it is not over."""
        now = second(now)
        open_ = await self.statement(fleet, month, now)
        if not open_.over:
            raise PermanentError(
                "MonthNotOver",
                f"{month:%Y-%m} is not over in {fleet.cost.timezone}",
                "close it when it is; what it has cost so far:  fairway report chargeback --month "
                f"{month:%Y-%m}",
            )
        kept = [_closed_charge(line) for line in open_.lines]
        await self._ledger.months.close(
            month, kept, by=by, currency=fleet.currency, timezone=fleet.cost.timezone
        )
        return await self.statement(fleet, month, now)

    async def _as_told(self, closed: ClosedMonth) -> Statement:
        rows = await self._ledger.months.charges(month=closed.month)
        lines = tuple(StatementEntry(charge.used_in, _told(charge)) for _, charge in rows)
        return Statement(closed.month, closed.currency, closed.timezone, lines, closed, over=True)

    async def recomputed(self, fleet: Fleet, month: date, now: int) -> tuple[StatementAmount, ...]:
        """A month as it would be told if it were not closed."""
        labels = (Label.TEAM,)
        made = await self._costs.charges(fleet, calendar_of(fleet).month_span(month), labels, now=now)
        return told(made, labels, cent(fleet.currency))

    async def _corrections(
        self, fleet: Fleet, months: Sequence[date], closed: dict[date, ClosedMonth], now: int
    ) -> list[StatementEntry]:
        """What closed months are now known to have been, less all that was told of them."""
        found: list[StatementEntry] = []
        for month in months:
            if closed[month].currency != fleet.currency:
                continue  # amounts of two currencies have no difference
            then = replace(fleet, cost=replace(fleet.cost, timezone=closed[month].timezone))
            before = [_told(charge) for _, charge in await self._ledger.months.charges(used_in=month)]
            again = await self.recomputed(then, month, now)
            found += [StatementEntry(month, t) for t in correction(again, before)]
        return found


def _closed_charge(line: StatementEntry) -> ClosedCharge:
    t = line.told
    team = TeamName(t.team) if t.team else None
    return ClosedCharge(line.used_in, t.kind, t.cluster, t.supply, team, t.device_seconds, t.amount)


def _told(charge: ClosedCharge) -> StatementAmount:
    return StatementAmount(
        charge.kind, charge.cluster, charge.supply, charge.team or "", charge.device_seconds, charge.amount
    )
