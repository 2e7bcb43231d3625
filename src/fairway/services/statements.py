"""Compute the statements of months, close months for good, and correct closed ones in later statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Final

from fairway.cost.calendar import calendar_of, next_month
from fairway.cost.corrections import PATH_SEPARATOR, StatementAmount, correction, statement_amounts
from fairway.cost.fleet_history import TeamPath
from fairway.ledger import ClosedCharge, ClosedMonth, Ledger
from fairway.model.charge import Label
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.model.price import cent, money_text
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
        lines, closed = await self.settled(fleet, month, now)
        if closed is not None:
            return Statement(month, closed.currency, closed.timezone, lines, closed, over=True)
        own = [StatementEntry(month, amount) for amount in await self._recomputed(fleet, month, now)]
        over = calendar_of(fleet).month_end(month) <= now
        return Statement(month, fleet.currency, fleet.cost.timezone, (*own, *lines), None, over)

    async def settled(
        self, fleet: Fleet, month: date, now: int
    ) -> tuple[tuple[StatementEntry, ...], ClosedMonth | None]:
        """Return the lines of a closed month; of an open one, its corrections of earlier months."""
        closed = {m.month: m for m in await self._ledger.months.all()}
        if month in closed:
            return await self._stored(fleet, closed[month], now), closed[month]
        if not closed or month != next_month(max(closed)):
            return (), None
        return tuple(await self._corrections(fleet, closed, now)), None

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
        notices = [statement_notice(open_, team) for team in sorted({c.team for c in charges if c.team})]
        await self._ledger.months.close(
            month, charges, by=by, currency=fleet.currency, timezone=fleet.cost.timezone, notices=notices
        )
        return await self.statement(fleet, month, now)

    async def _stored(self, fleet: Fleet, closed: ClosedMonth, now: int) -> tuple[StatementEntry, ...]:
        lines: list[StatementEntry] = []
        rows = await self._ledger.months.charges(month=closed.month)
        for used_in in dict.fromkeys(charge.used_in for _, charge in rows):
            of_month = [charge for _, charge in rows if charge.used_in == used_in]
            lines += [StatementEntry(used_in, a) for a in await self._billed(fleet, used_in, of_month, now)]
        return tuple(lines)

    async def _recomputed(self, fleet: Fleet, month: date, now: int) -> tuple[StatementAmount, ...]:
        """Compute the lines of a month as if it were not closed."""
        charges = await self._costs.by_path(fleet, calendar_of(fleet).month_span(month), now)
        labelled = [replace(charge, labels=(PATH_SEPARATOR.join(path),)) for path, charge in charges]
        return statement_amounts(labelled, (Label.TEAM,), cent(fleet.currency))

    async def corrections_by_team(
        self, fleet: Fleet, first: date, until: date, now: int
    ) -> Mapping[TeamName, Decimal]:
        """Return what is corrected for each team; corrections count for those that it was inside of, too."""
        found: dict[TeamName, Decimal] = {}
        for entry in await self.corrections(fleet, first, until, now):
            for team in (*entry.billed.inside, TeamName(entry.billed.team)):
                found[team] = found.get(team, Decimal(0)) + entry.billed.amount
        return found

    async def corrections(self, fleet: Fleet, first: date, until: date, now: int) -> Sequence[StatementEntry]:
        """Return what statements from month `first` until before `until` correct of months before `first`."""
        closed = {m.month: m for m in await self._ledger.months.all()}
        entries: list[StatementEntry] = []
        for month, stored in closed.items():
            if first <= month < until and stored.currency == fleet.currency:
                entries += await self._stored(fleet, stored, now)
        if closed and first <= next_month(max(closed)) < until:
            entries += await self._corrections(fleet, closed, now, before=first)
        return [entry for entry in entries if entry.used_in < first]

    async def _corrections(
        self, fleet: Fleet, closed: Mapping[date, ClosedMonth], now: int, before: date = date.max
    ) -> list[StatementEntry]:
        """Compute closed months again, less everything billed for them so far."""
        found: list[StatementEntry] = []
        for month in sorted(closed)[-MAX_CORRECTED:]:
            if closed[month].currency != fleet.currency or month >= before:
                continue  # amounts of two currencies have no difference
            then = replace(fleet, cost=replace(fleet.cost, timezone=closed[month].timezone))
            rows = await self._ledger.months.charges(used_in=month)
            billed = await self._billed(then, month, [charge for _, charge in rows], now)
            recomputed = await self._recomputed(then, month, now)
            found += [StatementEntry(month, amount) for amount in correction(recomputed, billed)]
        return found

    async def _billed(
        self, fleet: Fleet, month: date, charges: Sequence[ClosedCharge], now: int
    ) -> list[StatementAmount]:
        """Return what was billed for a month, under the names that teams have now."""
        held = await self._costs.held(fleet, calendar_of(fleet).month_span(month), now)
        paths = {raw: path for part in held for raw, path in part.paths.items()}
        return [_statement_amount(charge, paths) for charge in charges]


def statement_notice(found: Statement, team: TeamName) -> Notice:
    """Return the notice that a month was closed, to which the team's statement is attached."""
    total = sum((line.billed.amount for line in found.lines if line.billed.team == team), Decimal(0))
    month, money = f"{found.month:%Y-%m}", money_text(total, found.currency)
    return Notice(
        NoticeKind.STATEMENT,
        f"statement/{month}/{team}",
        f"statement of {team} for {month}: {money}",
        f"{month} is closed. {team} is charged {money}.\n"
        f"hint: fairway report chargeback --month {month} --team {team}",
        team,
        month=found.month,
    )


def _closed_charge(line: StatementEntry) -> ClosedCharge:
    a = line.billed
    team = TeamName(a.team) if a.team else None
    return ClosedCharge(line.used_in, a.kind, a.cluster, a.supply, team, a.device_seconds, a.amount, a.inside)


def _statement_amount(charge: ClosedCharge, paths: Mapping[str, TeamPath]) -> StatementAmount:
    path = paths.get(charge.team or "", (charge.team,) if charge.team else ())
    inside = path[:-1]
    if charge.inside is not None:
        inside = tuple(paths[above][-1] if above in paths else above for above in charge.inside)
    team = path[-1] if path else ""
    return StatementAmount(
        charge.kind, charge.cluster, charge.supply, team, charge.device_seconds, charge.amount, inside
    )
