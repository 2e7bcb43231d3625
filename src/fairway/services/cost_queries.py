"""Answer what callers ask about money, by their rights: reports, statements, exports, prices, budgets."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final, TypeVar

from fairway.cost.calendar import parse_month
from fairway.cost.focus.export import Correction
from fairway.ledger import Ledger, PricePointRow, Token, UsageFilter
from fairway.model.charge import Label, Span
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName
from fairway.services.charges import CachedCosts, Costs, calendar_of
from fairway.services.convert import budgets as convert_budgets
from fairway.services.convert import costs as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import FleetHistory, Fleets
from fairway.services.focus_export import focus_lines, month_corrections
from fairway.services.reports import PLACES, CostReports, ReportQuestion, window_of
from fairway.services.rights import check_sees_all, teams_seen, usage_filter
from fairway.services.statements import MonthStatements
from fairway.wire import budgets as budget_wire
from fairway.wire import costs as wire

_KINDS: Final = {
    "InvalidWindow": ErrorKind.INVALID,
    "UsageTooFine": ErrorKind.INVALID,
    "MonthNotOver": ErrorKind.CONFLICT,
    "MonthClosed": ErrorKind.CONFLICT,
    "MonthOpen": ErrorKind.CONFLICT,
}
"""What the caller can mend; everything else is the ledger's trouble."""

_EVENTS_READ: Final = 500

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class CostQuestion:
    """A question as somebody put it, before anybody looked whether it is theirs to ask."""

    window: str = "30d"
    by: tuple[Label, ...] = (Label.TEAM,)
    team: str | None = None
    user: str | None = None
    pool: str | None = None
    most: int = 1000


class CostQueries:
    """Answers a caller as far as they may know; raises RequestError with a hint for what they may not."""

    def __init__(self, ledger: Ledger, fleets: Fleets, *, quick: bool = False) -> None:
        """`quick`: for those who ask again and again; what runs may count only up to some seconds ago."""
        self._ledger = ledger
        self._fleets = fleets
        history = FleetHistory(ledger, fleets)
        self._costs = CachedCosts(ledger, history) if quick else Costs(ledger, history)
        self._reports = CostReports(self._costs)
        self._closing = MonthStatements(ledger, self._costs)

    async def fleet(self) -> Fleet:
        """What was applied last, or, before anything was, what the server was given."""
        fleet = await self._fleets.in_force()
        if not fleet.name:
            raise RequestError(
                ErrorKind.NOT_FOUND,
                "NoFleet",
                "there is no fleet yet, so nothing has a price",
                "give one:  fairway apply -f fleet.yaml",
            )
        return fleet

    async def cost(self, caller: Token, asked: CostQuestion) -> wire.CostReport:
        """What usage cost, with shares of what nobody used and of overhead."""
        fleet, question, said = await self._question(caller, asked)
        return convert.cost(fleet, question, await _answered(self._reports.cost(fleet, question)), said)

    async def usage(self, caller: Token, asked: CostQuestion) -> wire.UsageReport:
        """What was held."""
        fleet, question, said = await self._question(caller, asked)
        return convert.usage(fleet, question, await _answered(self._reports.usage(fleet, question)), said)

    async def waste(self, caller: Token, asked: CostQuestion) -> wire.WasteReport:
        """What nobody used: nobody's, so everybody may see it."""
        fleet, question, said = await self._question(caller, asked)
        _check_places(question)
        return convert.waste(fleet, question, await _answered(self._reports.waste(fleet, question)), said)

    async def cost_by_day(
        self, caller: Token, asked: CostQuestion, label: Label | None
    ) -> tuple[wire.CostReport, wire.CostReport]:
        """What was asked, and the same by a label of few names and day, from one look."""
        fleet, question, said = await self._question(caller, asked)
        told, daily = await _answered(self._reports.cost_by_day(fleet, question, label))
        over_time = replace(question, by=_daily(label))
        return convert.cost(fleet, question, told, said), convert.cost(fleet, over_time, daily, said)

    async def usage_by_day(
        self, caller: Token, asked: CostQuestion, label: Label | None
    ) -> tuple[wire.UsageReport, wire.UsageReport]:
        """As `cost_by_day`, without money."""
        fleet, question, said = await self._question(caller, asked)
        told, daily = await _answered(self._reports.usage_by_day(fleet, question, label))
        over_time = replace(question, by=_daily(label))
        return convert.usage(fleet, question, told, said), convert.usage(fleet, over_time, daily, said)

    async def waste_by_day(
        self, caller: Token, asked: CostQuestion
    ) -> tuple[wire.WasteReport, wire.WasteReport]:
        """What nobody used, and the same by day."""
        fleet, question, said = await self._question(caller, asked)
        _check_places(question)
        told, daily = await _answered(self._reports.waste_by_day(fleet, question))
        over_time = replace(question, by=_daily(None))
        return convert.waste(fleet, question, told, said), convert.waste(fleet, over_time, daily, said)

    async def capacity(self, caller: Token, asked: CostQuestion) -> wire.CapacityReport:
        """What was there, used or not: a whole bill, which tells what others spent."""
        fleet, question, _ = await self._question(caller, asked)
        check_sees_all(caller, fleet)
        found, days = await _answered(self._reports.capacity(fleet, question))
        return convert.capacity(fleet, found, days)

    async def statements(self, caller: Token, month: str, team: str | None) -> wire.Statements:
        """A month's charges by team."""
        fleet = await self.fleet()
        which = usage_filter(caller, fleet, team or None, None, None)
        found = await _answered(self._closing.statement(fleet, _month(month)))
        return convert.statements(fleet, found, teams_seen(caller, fleet), which.teams)

    async def close(self, caller: Token, month: str) -> wire.Statements:
        """Keep a month as it is told now, for good; who may do so, the route's rule says."""
        fleet = await self.fleet()
        found = await _answered(self._closing.close(fleet, _month(month), caller.name))
        return convert.statements(fleet, found, None, None)

    async def focus(self, caller: Token, window: str, team: str | None) -> AsyncIterator[str]:
        """Charges as FOCUS rows, CSV, in pieces.

        What can go wrong goes wrong before the first piece: after it, all that is left is to break off.
        """
        fleet = await self.fleet()
        which = usage_filter(caller, fleet, team or None, None, None)
        lines = self._focus(fleet, window, which)
        return _after(await _answered(anext(lines)), lines)

    async def prices(self) -> wire.Prices:
        """Read what each pool costs today."""
        fleet = await self.fleet()
        now = int(time.time())
        points = await self._ledger.prices.points([p.name for p in fleet.pools], Span(now, now + 1))
        return convert.prices(fleet, calendar_of(fleet).day_of(now), points)

    async def keep_price_points(
        self, caller: Token, pool: str, asked: wire.PricePointsRequest
    ) -> wire.StoredPricePoints:
        """Add to a pool's price series. A point of a moment that has one takes its place."""
        fleet = await self.fleet()
        usage_filter(caller, fleet, None, None, pool)
        points = [PricePointRow(PoolName(pool), p.at, p.per_gpu_hour) for p in asked.points]
        kept = await _answered(self._ledger.prices.keep(points, by=caller.name))
        return wire.StoredPricePoints(pool=pool, kept=kept)

    async def budgets(self, caller: Token) -> budget_wire.Budgets:
        """Read what is spent of each budget the caller may see, how fast, and what is held for it."""
        fleet = await self._fleets.in_force()
        standings = await self._ledger.budgets.standings()
        events = await self._ledger.budgets.events(team=None, before=None, limit=_EVENTS_READ)
        seen = teams_seen(caller, fleet)
        return convert_budgets.budgets(fleet, standings, events, int(time.time()), seen)

    async def _focus(self, fleet: Fleet, text: str, which: UsageFilter) -> AsyncIterator[str]:
        window = window_of(fleet, text)
        corrections: tuple[Correction, ...] = ()
        if re.fullmatch(wire.MONTH_PATTERN, text):
            corrections = await month_corrections(self._closing, fleet, window.first, which, window.now)
        async for piece in focus_lines(self._costs, fleet, window, which, corrections):
            yield piece

    async def _question(
        self, caller: Token, asked: CostQuestion
    ) -> tuple[Fleet, ReportQuestion, dict[str, Any]]:
        """The fleet, the question as far as it is the caller's to ask, and what documents say of that."""
        fleet = await self.fleet()
        names = {"team": asked.team or None, "user": asked.user or None, "pool": asked.pool or None}
        which = usage_filter(caller, fleet, names["team"], names["user"], names["pool"])
        seen = teams_seen(caller, fleet)
        said = {**names, "of_teams": None if seen is None else sorted(seen)}
        return fleet, ReportQuestion(asked.window, tuple(dict.fromkeys(asked.by)), which, asked.most), said


def _daily(label: Label | None) -> tuple[Label, ...]:
    return (Label.DAY,) if label is None else (label, Label.DAY)


def _check_places(question: ReportQuestion) -> None:
    """Raise RequestError for a label that what nobody used cannot have."""
    if wrong := [label.value for label in question.by if label not in PLACES]:
        raise RequestError(
            ErrorKind.INVALID,
            "InvalidRequest",
            f"by: nobody used it, so it has no {' and no '.join(wrong)}",
            f"by is any of {', '.join(PLACES)}",
        )


async def _answered(answer: Awaitable[Found]) -> Found:
    """What was asked for, or why not as the caller may know it."""
    try:
        return await answer
    except PermanentError as error:
        if error.code not in _KINDS:
            raise
        raise RequestError.wrap(_KINDS[error.code], error) from error


def _month(text: str) -> date:
    try:
        return parse_month(text)
    except PermanentError as error:
        raise RequestError.wrap(ErrorKind.INVALID, error) from error


async def _after(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for piece in rest:
        yield piece
