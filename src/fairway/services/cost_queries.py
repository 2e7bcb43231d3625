"""Read reports, statements, exports, prices and budgets, limited to what each caller may see."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final, TypeVar

from fairway.cost.calendar import calendar_of, parse_month
from fairway.cost.focus.export import Correction
from fairway.ledger import Ledger, PricePointRow, Token, UsageFilter
from fairway.model.charge import Label, Span
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName
from fairway.services.charges import CachedCosts, Costs
from fairway.services.convert import budgets as convert_budgets
from fairway.services.convert import costs as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import FleetHistory, Fleets
from fairway.services.focus_export import focus_lines, month_corrections
from fairway.services.reports import (
    PLACE_LABELS,
    CostReports,
    IdleHolder,
    ReportQuery,
    daily_labels,
    window_of,
)
from fairway.services.rights import require_sees_all, usage_filter, visible_teams
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
"""Errors that the caller can correct, by code; all others are internal."""

_MAX_EVENTS: Final = 500

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CostRequest:
    """The parameters of a report as requested, before the caller's rights are checked."""

    window: str = "30d"
    by: tuple[Label, ...] = (Label.TEAM,)
    team: str | None = None
    user: str | None = None
    pool: str | None = None
    max_rows: int = 1000


@dataclass(frozen=True, slots=True)
class IdleHolders:
    """Who held most idle GPU time."""

    rows: tuple[IdleHolder, ...]
    of_teams: list[str] | None
    """The caller sees only these; None: all."""


class CostQueries:
    """Reads costs for a caller. Raises RequestError with a hint if they may not see them."""

    def __init__(self, ledger: Ledger, fleets: Fleets, *, quick: bool = False) -> None:
        """`quick` is for callers that poll: running jobs may count only up to some seconds ago."""
        self._ledger = ledger
        self._fleets = fleets
        history = FleetHistory(ledger, fleets)
        self._costs = CachedCosts(ledger, history) if quick else Costs(ledger, history)
        self._reports = CostReports(self._costs)
        self._statements = MonthStatements(ledger, self._costs)

    async def fleet(self) -> Fleet:
        """Read the fleet applied last, or the newest one before the first apply."""
        fleet = await self._fleets.in_force()
        if not fleet.name:
            raise RequestError(
                ErrorKind.NOT_FOUND,
                "NoFleet",
                "there is no fleet yet, so there are no prices",
                "apply one:  fairway apply -f fleet.yaml",
            )
        return fleet

    async def cost(self, caller: Token, request: CostRequest) -> wire.CostReport:
        """Report the cost of usage, with shares of unused capacity and overhead."""
        fleet, query, common = await self._query(caller, request)
        return convert.cost(fleet, query, await _result(self._reports.cost(fleet, query)), common)

    async def usage(self, caller: Token, request: CostRequest) -> wire.UsageReport:
        """Report usage without amounts."""
        fleet, query, common = await self._query(caller, request)
        return convert.usage(fleet, query, await _result(self._reports.usage(fleet, query)), common)

    async def waste(self, caller: Token, request: CostRequest) -> wire.WasteReport:
        """Report unused capacity, which every caller may see."""
        fleet, query, common = await self._query(caller, request)
        _check_places(query)
        return convert.waste(fleet, query, await _result(self._reports.waste(fleet, query)), common)

    async def efficiency(self, caller: Token, request: CostRequest) -> wire.EfficiencyReport:
        """Report what the GPUs did that were held."""
        fleet, query, common = await self._query(caller, request)
        found = await _result(self._reports.efficiency(fleet, query))
        return convert.efficiency(fleet, query, found, common)

    async def idle_holders(self, caller: Token, request: CostRequest) -> IdleHolders:
        """Return who held most idle GPU time, at most `max_rows`, of the teams that the caller may see."""
        fleet, query, common = await self._query(caller, request)
        found = await _result(self._reports.idle_holders(fleet, query, request.max_rows))
        return IdleHolders(tuple(found), common["of_teams"])

    async def cost_by_day(
        self, caller: Token, request: CostRequest, label: Label | None
    ) -> tuple[wire.CostReport, wire.CostReport]:
        """Report the cost as requested, and by `label` and day, from one read of the ledger."""
        fleet, query, common = await self._query(caller, request)
        found, daily = await _result(self._reports.cost_by_day(fleet, query, label))
        by_day = replace(query, by=daily_labels(label))
        return convert.cost(fleet, query, found, common), convert.cost(fleet, by_day, daily, common)

    async def usage_by_day(
        self, caller: Token, request: CostRequest, label: Label | None
    ) -> tuple[wire.UsageReport, wire.UsageReport]:
        """Report usage as `cost_by_day` does, without amounts."""
        fleet, query, common = await self._query(caller, request)
        found, daily = await _result(self._reports.usage_by_day(fleet, query, label))
        by_day = replace(query, by=daily_labels(label))
        return convert.usage(fleet, query, found, common), convert.usage(fleet, by_day, daily, common)

    async def waste_by_day(
        self, caller: Token, request: CostRequest
    ) -> tuple[wire.WasteReport, wire.WasteReport]:
        """Report unused capacity as requested, and by day."""
        fleet, query, common = await self._query(caller, request)
        _check_places(query)
        found, daily = await _result(self._reports.waste_by_day(fleet, query))
        by_day = replace(query, by=daily_labels(None))
        return convert.waste(fleet, query, found, common), convert.waste(fleet, by_day, daily, common)

    async def capacity(self, caller: Token, request: CostRequest) -> wire.CapacityReport:
        """Report all capacity, used or not; only for callers who may see what others spent."""
        fleet, query, _ = await self._query(caller, request)
        require_sees_all(caller, fleet)
        window, days = await _result(self._reports.capacity(fleet, query))
        return convert.capacity(fleet, window, days)

    async def statements(self, caller: Token, month: str, team: str | None) -> wire.Statements:
        """Read the charges of a month by team."""
        fleet = await self.fleet()
        which = usage_filter(caller, fleet, team or None, None, None)
        found = await _result(self._statements.statement(fleet, _month(fleet, month)))
        return convert.statements(fleet, found, visible_teams(caller, fleet), which.teams)

    async def close(self, caller: Token, month: str) -> wire.Statements:
        """Close a month with its statement as of now. The route checks that the caller may."""
        fleet = await self.fleet()
        found = await _result(self._statements.close(fleet, _month(fleet, month), caller.name))
        return convert.statements(fleet, found, None, None)

    async def focus(self, caller: Token, window: str, team: str | None) -> AsyncIterator[str]:
        """Export charges as FOCUS rows: CSV, in pieces.

        Errors are raised before the first piece is returned: after it, a response can only be broken off.
        """
        fleet = await self.fleet()
        which = usage_filter(caller, fleet, team or None, None, None)
        lines = self._focus(fleet, window, which)
        return _after(await _result(anext(lines)), lines)

    async def prices(self) -> wire.Prices:
        """Read today's price of each pool."""
        fleet = await self.fleet()
        now = int(time.time())
        points = await self._ledger.prices.points([p.name for p in fleet.pools], Span(now, now + 1))
        return convert.prices(fleet, calendar_of(fleet).day_of(now), points)

    async def keep_price_points(
        self, caller: Token, pool: str, request: wire.PricePointsRequest
    ) -> wire.StoredPricePoints:
        """Add points to a pool's price series. A point replaces an earlier one of the same time."""
        fleet = await self.fleet()
        usage_filter(caller, fleet, None, None, pool)
        points = [PricePointRow(PoolName(pool), p.at, p.per_gpu_hour) for p in request.points]
        stored = await _result(self._ledger.prices.add(points, by=caller.name))
        return wire.StoredPricePoints(pool=pool, kept=stored)

    async def budgets(self, caller: Token) -> budget_wire.Budgets:
        """Read the state of each budget that the caller may see: spending, rate, hold and events."""
        fleet = await self._fleets.in_force()
        statuses = await self._ledger.budgets.statuses()
        events = await self._ledger.budgets.events(team=None, before=None, limit=_MAX_EVENTS)
        visible = visible_teams(caller, fleet)
        return convert_budgets.budgets(fleet, statuses, events, int(time.time()), visible)

    async def _focus(self, fleet: Fleet, text: str, which: UsageFilter) -> AsyncIterator[str]:
        window = window_of(fleet, text)
        corrections: tuple[Correction, ...] = ()
        if window.is_month:
            corrections = await month_corrections(self._statements, fleet, window.first, which, window.now)
        async for piece in focus_lines(self._costs, fleet, window, which, corrections):
            yield piece

    async def _query(self, caller: Token, request: CostRequest) -> tuple[Fleet, ReportQuery, dict[str, Any]]:
        """Return the fleet, the query limited to what the caller may see, and the fields of all reports."""
        fleet = await self.fleet()
        names = {"team": request.team or None, "user": request.user or None, "pool": request.pool or None}
        which = usage_filter(caller, fleet, names["team"], names["user"], names["pool"])
        visible = visible_teams(caller, fleet)
        common = {**names, "of_teams": None if visible is None else sorted(visible)}
        by = tuple(dict.fromkeys(request.by))
        return fleet, ReportQuery(request.window, by, which, request.max_rows), common


def _check_places(query: ReportQuery) -> None:
    """Raise RequestError for a label that unused capacity cannot have."""
    if wrong := [label.value for label in query.by if label not in PLACE_LABELS]:
        raise RequestError(
            ErrorKind.INVALID,
            "InvalidRequest",
            f"by: unused capacity has no {' and no '.join(wrong)}",
            f"by is any of {', '.join(PLACE_LABELS)}",
        )


async def _result(pending: Awaitable[Result]) -> Result:
    """Await a result, and convert errors that the caller can correct to RequestError."""
    try:
        return await pending
    except PermanentError as error:
        if error.code not in _KINDS:
            raise
        raise RequestError.wrap(_KINDS[error.code], error) from error


def _month(fleet: Fleet, text: str) -> date:
    """Parse a month such as `2026-10` or `last-month`. Raises RequestError for any other window."""
    try:
        window = window_of(fleet, text)
        return window.first if window.is_month else parse_month(text)
    except PermanentError as error:
        raise RequestError.wrap(ErrorKind.INVALID, error) from error


async def _after(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for piece in rest:
        yield piece
