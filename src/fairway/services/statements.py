"""Compute the statements of months, close months for good, and correct closed ones in later statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Final

from fairway.cost.calendar import calendar_of, next_month
from fairway.cost.corrections import StatementAmount, correction, statement_amounts
from fairway.ledger import ClosedCharge, ClosedMonth, Ledger
from fairway.model.charge import Label
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.model.price import cent
from fairway.services.charges import Costs, or_now

MAX_CORRECTED: Final = 24
"""Closed months that are recomputed for corrections: older ones are final."""


@dataclass(frozen=True, slots=True)
class StatementEntry:
    """One line of a month's statement."""

    used_in: date
    """First day of the month of the usage; an earlier month in a correction."""
    billed: StatementAmount


@dataclass(frozen=True, slots=True)
class Statement:
    """All charges of a month."""

    month: date
    currency: str
    timezone: str
    lines: tuple[StatementEntry, ...]
    closed: ClosedMonth | None
    over: bool

    @property
    def total(self) -> Decimal:
        return sum((line.billed.amount for line in self.lines), Decimal(0))


class MonthStatements:
    """Computes statements of open months, and stores and reads those of closed ones."""

    def __init__(self, ledger: Ledger, costs: Costs) -> None:
        self._ledger = ledger
        self._costs = costs

    async def statement(self, fleet: Fleet, month: date, now: int | None = None) -> Statement:
        """Return a closed month as stored; an open one as of now, with corrections if it is the next."""
        now = or_now(now)
        closed = {m.month: m for m in await self._ledger.months.all()}
        if month in closed:
            return await self._stored(closed[month])
        lines = [StatementEntry(month, amount) for amount in await self.recomputed(fleet, month, now)]
        if closed and month == next_month(max(closed)):
            lines += await self._corrections(fleet, sorted(closed)[-MAX_CORRECTED:], closed, now)
        over = calendar_of(fleet).month_end(month) <= now
        return Statement(month, fleet.currency, fleet.cost.timezone, tuple(lines), None, over)

    async def close(self, fleet: Fleet, month: date, by: str, now: int | None = None) -> Statement:
        """Close a month with its statement as of now. Raises MonthClosed, MonthOpen or MonthNotOver."""
        now = or_now(now)
        open_ = await self.statement(fleet, month, now)
        if not open_.over:
            raise PermanentError(
                "MonthNotOver",
                f"{month:%Y-%m} is not over in {fleet.cost.timezone}",
                "close it when it is; what it has cost so far:  fairway report chargeback --month "
                f"{month:%Y-%m}",
            )
        charges = [_closed_charge(line) for line in open_.lines]
        await self._ledger.months.close(
            month, charges, by=by, currency=fleet.currency, timezone=fleet.cost.timezone
        )
        return await self.statement(fleet, month, now)

    async def _stored(self, closed: ClosedMonth) -> Statement:
        rows = await self._ledger.months.charges(month=closed.month)
        lines = tuple(StatementEntry(charge.used_in, _statement_amount(charge)) for _, charge in rows)
        return Statement(closed.month, closed.currency, closed.timezone, lines, closed, over=True)

    async def recomputed(self, fleet: Fleet, month: date, now: int) -> tuple[StatementAmount, ...]:
        """Compute the lines of a month as if it were not closed."""
        labels = (Label.TEAM,)
        charges = await self._costs.charges(fleet, calendar_of(fleet).month_span(month), labels, now=now)
        return statement_amounts(charges, labels, cent(fleet.currency))

    async def _corrections(
        self, fleet: Fleet, months: Sequence[date], closed: dict[date, ClosedMonth], now: int
    ) -> list[StatementEntry]:
        """Compute closed months again, less everything billed for them so far."""
        found: list[StatementEntry] = []
        for month in months:
            if closed[month].currency != fleet.currency:
                continue  # amounts of two currencies have no difference
            then = replace(fleet, cost=replace(fleet.cost, timezone=closed[month].timezone))
            rows = await self._ledger.months.charges(used_in=month)
            billed = [_statement_amount(charge) for _, charge in rows]
            recomputed = await self.recomputed(then, month, now)
            found += [StatementEntry(month, amount) for amount in correction(recomputed, billed)]
        return found


def _closed_charge(line: StatementEntry) -> ClosedCharge:
    a = line.billed
    team = TeamName(a.team) if a.team else None
    return ClosedCharge(line.used_in, a.kind, a.cluster, a.supply, team, a.device_seconds, a.amount)


def _statement_amount(charge: ClosedCharge) -> StatementAmount:
    return StatementAmount(
        charge.kind, charge.cluster, charge.supply, charge.team or "", charge.device_seconds, charge.amount
    )
