"""Read reports, statements, exports, prices and budgets, limited to what each caller may see."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, TypeVar

from fairway.cost.calendar import calendar_of, parse_month
from fairway.cost.focus.export import Billed, Correction
from fairway.cost.spot_prices import price_jump
from fairway.ledger import Ledger, PricePointRow, Token, UsageFilter
from fairway.model.charge import Dimension, JobLabel, Label, Span
from fairway.model.cost_unit import CostDivisor, parse_divisor
from fairway.model.errors import PermanentError
from fairway.model.fleet import Capacity, Fleet
from fairway.model.labels import OTHER_VALUE
from fairway.model.names import PoolName
from fairway.services.charges import CachedCosts, Costs
from fairway.services.commitments import commitment_uses
from fairway.services.convert import budgets as convert_budgets
from fairway.services.convert import costs as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleet_history import FleetHistory
from fairway.services.fleets import Fleets, with_raised_budgets
from fairway.services.focus_export import focus_lines, month_corrections
from fairway.services.labels import of_labels
from fairway.services.reports import (
    PLACE_LABELS,
    CostReports,
    IdleHolder,
    ReportQuery,
    ReportResult,
    daily_labels,
    window_of,
)
from fairway.services.rights import no_such_pool, require_sees_all, sees_all, usage_filter, visible_teams
from fairway.services.spending import FORECAST_LABELS
from fairway.services.statement_documents import StatementDocuments
from fairway.services.statements import MonthStatements
from fairway.services.work_done import UNCOUNTED
from fairway.wire import budgets as budget_wire
from fairway.wire import costs as wire
from fairway.wire.fleet import zulu

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
    by: tuple[Dimension, ...] = (Label.TEAM,)
    team: str | None = None
    user: str | None = None
    pool: str | None = None
    project: str | None = None
    labels: tuple[str, ...] = ()
    """As `experiment=e12`."""
    max_rows: int = 1000
    per: str | None = None
    """What the cost is divided by, too, as `1000:steps` or `label:experiment`."""


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
        self._history = FleetHistory(ledger, fleets)
        self._costs = CachedCosts(ledger, self._history) if quick else Costs(ledger, self._history)
        self._reports = CostReports(self._costs)
        self._statements = MonthStatements(ledger, self._costs)
        self._documents = StatementDocuments(ledger, self._statements, self._costs, fleets)

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
        found = await _result(self._reports.cost(fleet, query))
        notes = await self._divisor_notes(query.per, found)
        return convert.cost(fleet, query, found, {**common, "notes": notes})

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
        if Label.OUTCOME in query.by:
            raise RequestError(
                ErrorKind.INVALID,
                "InvalidRequest",
                "by: what GPUs did is not stored by outcome",
                "report usage and report cost have outcomes",
            )
        found = await _result(self._reports.efficiency(fleet, query))
        return convert.efficiency(fleet, query, found, common)

    async def idle_holders(self, caller: Token, request: CostRequest) -> IdleHolders:
        """Return who held most idle GPU time, at most `max_rows`, of the teams that the caller may see."""
        fleet, query, common = await self._query(caller, request)
        found = await _result(self._reports.idle_holders(fleet, query, request.max_rows))
        return IdleHolders(tuple(found), common["of_teams"])

    async def cost_by_day(
        self, caller: Token, request: CostRequest, label: Dimension | None
    ) -> tuple[wire.CostReport, wire.CostReport]:
        """Report the cost as requested, and by `label` and day, from one read of the ledger."""
        fleet, query, common = await self._query(caller, request)
        found, daily = await _result(self._reports.cost_by_day(fleet, query, label))
        by_day = replace(query, by=daily_labels(label))
        common["notes"] = await self._divisor_notes(query.per, found)
        return convert.cost(fleet, query, found, common), convert.cost(fleet, by_day, daily, common)

    async def usage_by_day(
        self, caller: Token, request: CostRequest, label: Dimension | None
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

    async def commitments(self, caller: Token, request: CostRequest) -> wire.CommitmentReport:
        """Report what became of each commitment; only for callers who may see what others spent."""
        fleet, query, _ = await self._query(caller, request)
        require_sees_all(caller, fleet)
        uses = commitment_uses(self._costs, fleet, query.window, request.pool or None)
        return convert.commitments(fleet, *await _result(uses))

    async def statements(self, caller: Token, month: str, team: str | None) -> wire.Statements:
        """Read the charges of a month by team."""
        fleet = await self.fleet()
        which = await self._filter(caller, fleet, team or None, None, None)
        found = await _result(self._statements.statement(fleet, _month(fleet, month)))
        return convert.statements(fleet, found, visible_teams(caller, fleet), which.teams)

    async def document(self, caller: Token, month: str, team: str | None) -> wire.StatementDocument:
        """Render the statements of the teams that the caller may see, with every amount explained."""
        fleet = await self.fleet()
        which = usage_filter(caller, fleet, team or None, None, None)
        first = _month(fleet, month)
        html = await _result(self._documents.render(fleet, first, which.teams))
        name = "-".join(filter(None, ("statement", f"{first:%Y-%m}", team)))
        return wire.StatementDocument(name=f"{name}.html", html=html)

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
        which = await self._filter(caller, fleet, team or None, None, None)
        lines = self._focus(fleet, window, which)
        return _after(await _result(anext(lines)), lines)

    async def prices(self) -> wire.Prices:
        """Read today's price of each pool."""
        fleet = await self.fleet()
        now = int(time.time())
        spot = [p.name for p in fleet.pools if p.capacity is Capacity.SPOT]
        points = await self._ledger.prices.points(spot, Span(now, now + 1))
        return convert.prices(fleet, calendar_of(fleet).day_of(now), points)

    async def keep_price_points(
        self, caller: Token, pool: str, request: wire.PricePointsRequest
    ) -> wire.StoredPricePoints:
        """Add points to a pool's price series. A point replaces an earlier one of the same time.

        Raises RequestError for a pool that is not bought on a spot market, and for a price that differs by
        more than half from the one before it, unless the request allows it.
        """
        fleet = await self.fleet()
        usage_filter(caller, fleet, None, None, pool)
        capacity = next(p.capacity for p in fleet.pools if p.name == pool)
        if capacity is not Capacity.SPOT:
            raise RequestError(
                ErrorKind.CONFLICT,
                "NotASpotPool",
                f"{pool} has capacity: {capacity.value}, and only spot capacity has market prices",
                f"fairway price list  shows the pools; the price of {pool} is in the fleet file",
            )
        prices = {p.at: p.per_gpu_hour for p in request.points}
        if not request.allow_jumps:
            await self._require_no_jump(PoolName(pool), prices, fleet.currency)
        points = [PricePointRow(PoolName(pool), at, price) for at, price in prices.items()]
        return wire.StoredPricePoints(pool=pool, kept=await self._ledger.prices.add(points, by=caller.name))

    async def price_points(
        self, pool: str, *, until: datetime | None, history: bool, limit: int
    ) -> wire.PricePoints:
        """List the price series of a pool, also of one that has left the fleet, newest first."""
        fleet = await self.fleet()
        found = await self._ledger.prices.stored(PoolName(pool), limit=limit, until=until, history=history)
        if not found and pool not in {p.name for p in fleet.pools}:
            raise no_such_pool(pool)
        return convert.price_points(fleet, pool, found)

    async def withdraw_price_points(
        self, caller: Token, pool: str, start: datetime, until: datetime | None
    ) -> wire.WithdrawnPricePoints:
        """Withdraw the points from `start` until before `until`; None: all from then on.

        The route checks that the caller may. Any pool can have points to withdraw: it may have been a spot
        pool, or have left the fleet.
        """
        count = await self._ledger.prices.withdraw(PoolName(pool), start, until, by=caller.name)
        if not count:
            raise RequestError(
                ErrorKind.NOT_FOUND,
                "NoPricePoints",
                f"{pool} has no spot price from {zulu(start)}{f' until {zulu(until)}' if until else ' on'}",
                f"fairway price points {pool}  lists them with their times",
            )
        return wire.WithdrawnPricePoints(pool=pool, withdrawn=count)

    async def _require_no_jump(
        self, pool: PoolName, prices: Mapping[datetime, Decimal], currency: str
    ) -> None:
        window = Span(int(min(prices).timestamp()), int(max(prices).timestamp()) + 1)
        stored = (await self._ledger.prices.points([pool], window)).get(pool, ())
        jump = price_jump(stored, prices)
        if jump is not None:
            before, after = jump.before, jump.after
            raise RequestError(
                ErrorKind.CONFLICT,
                "PriceJump",
                f"{after.per_gpu_hour} {currency} at {zulu(after.at)} differs by more than half from "
                f"{before.per_gpu_hour} at {zulu(before.at)}; no price of this request was stored",
                f"check the pool ({pool}), the currency and the unit; if it is right, add --allow-jumps",
            )

    async def budgets(self, caller: Token) -> budget_wire.Budgets:
        """Read the state of each budget that the caller may see: spending, rate, hold and events."""
        now = int(time.time())
        fleet = await with_raised_budgets(await self._fleets.in_force(), self._ledger, now)
        statuses = await self._ledger.budgets.statuses()
        events = await self._ledger.budgets.events(team=None, before=None, limit=_MAX_EVENTS)
        visible = visible_teams(caller, fleet)
        return convert_budgets.budgets(fleet, statuses, events, now, visible)

    async def first_day(self) -> date | None:
        """Return the first day with usage or capacity; None: there is none yet."""
        return await self._ledger.months.first_day()

    async def forecasts(self, caller: Token, label: Label) -> budget_wire.Forecasts:
        """Read what each team or project that the caller may see will have spent when the month ends."""
        fleet = await self.fleet()
        if label not in FORECAST_LABELS:
            raise RequestError(
                ErrorKind.INVALID,
                "InvalidRequest",
                f"by: there are no forecasts by {label}",
                f"by is any of {', '.join(FORECAST_LABELS)}",
            )
        return convert_budgets.forecasts(
            fleet, label, await self._ledger.forecasts.by(label), visible_teams(caller, fleet)
        )

    async def _focus(self, fleet: Fleet, text: str, which: UsageFilter) -> AsyncIterator[str]:
        window = window_of(fleet, text)
        corrections: tuple[Correction, ...] = ()
        billed: Billed | None = None
        if window.is_month:
            settled = month_corrections(self._statements, fleet, window.first, which.teams, window.now)
            corrections, billed = await settled
        async for piece in focus_lines(self._costs, fleet, window, which.teams, corrections, billed):
            yield piece

    async def _query(self, caller: Token, request: CostRequest) -> tuple[Fleet, ReportQuery, dict[str, Any]]:
        """Return the fleet, the query limited to what the caller may see, and the fields of all reports."""
        fleet = await self.fleet()
        names = {"team": request.team or None, "user": request.user or None, "pool": request.pool or None}
        labels = of_labels(request.labels)
        which = replace(
            await self._filter(caller, fleet, names["team"], names["user"], names["pool"]),
            projects=frozenset({request.project}) if request.project else None,
            labels=labels,
        )
        visible = visible_teams(caller, fleet)
        of_teams = None if visible is None else sorted(visible)
        common = {**names, "project": request.project or None, "labels": dict(labels), "of_teams": of_teams}
        by = tuple(dict.fromkeys(request.by))
        per = _divisor(request.per, by) if request.per else None
        return fleet, ReportQuery(request.window, by, which, request.max_rows, per), common

    async def _divisor_notes(self, per: CostDivisor | None, found: ReportResult) -> list[str]:
        """Return what a reader of a cost per unit or label value should know."""
        if per is None:
            return []
        work = found.table.total.work
        if isinstance(per, JobLabel):
            if OTHER_VALUE in work.values:
                return [f"{OTHER_VALUE} counts as one {per.key}: the fleet had too many new ones in 30 days"]
            unset = (
                f"no job has the label {per.key} here: cost.labels of the fleet file lists those that count"
            )
            return [] if work.values else [unset]
        if work.units:
            return []
        known = [name for name in await self._ledger.units.names() if name != per.name]
        others = f"; jobs of this fleet count {', '.join(known)}" if known else ""
        return [
            f"no job here reported {per.name}{others}. Jobs report with:  fairway count JOB {per.name}=TOTAL"
        ]

    async def _filter(
        self, caller: Token, fleet: Fleet, team: str | None, user: str | None, pool: str | None
    ) -> UsageFilter:
        """Build a filter limited to what the caller may see, also of teams and pools that left the fleet.

        A team selects itself and the teams inside it at the time of each charge. Raises RequestError.
        """
        teams, pools = {t.name for t in fleet.teams}, {p.name for p in fleet.pools}
        removed = None
        if team is not None and team not in teams:
            name = (await self._history.teams(fleet)).get(team)
            if name in teams:
                team = name  # it was renamed
            elif name is not None and sees_all(caller):
                removed = name
        known = pool is None or pool in pools or pool not in await self._history.pools(fleet)
        which = usage_filter(caller, fleet, None if removed else team, user, pool if known else None)
        if not known:
            which = replace(which, pools=frozenset({PoolName(pool or "")}))
        return which if team is None else replace(which, teams=frozenset({removed or team}))


def _divisor(text: str, by: tuple[Dimension, ...]) -> CostDivisor:
    """Parse what the cost is divided by. Raises RequestError."""
    per = parse_divisor(text)
    if per is None:
        raise RequestError(
            ErrorKind.INVALID,
            "InvalidRequest",
            f"per: {text[:100]!r} is neither a unit nor a label",
            "use a unit that jobs report (steps), a number of it (1000:steps), or label:KEY",
        )
    if not isinstance(per, JobLabel) and (wrong := [label.value for label in by if label in UNCOUNTED]):
        raise RequestError(
            ErrorKind.INVALID,
            "InvalidRequest",
            f"per: {per.name} are not stored by {' or '.join(wrong)}",
            f"group by something else than {' and '.join(sorted(UNCOUNTED))}",
        )
    return per


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
