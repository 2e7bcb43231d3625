"""The routes of money: reports, statements and closing them, FOCUS files, prices."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, date, datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import StreamingResponse

from fairway.api import cost_known as known
from fairway.api import cost_wire as wire
from fairway.api.access import allow, caller_of
from fairway.api.cost_rights import check_sees_all, teams_seen, usage_filter
from fairway.api.fleets import Fleets
from fairway.api.problems import ApiError
from fairway.api.routes import PROBLEMS, VIEWER, Name
from fairway.control.closing import Closing
from fairway.control.cost_reports import PLACES, CostReports, Question, window_of
from fairway.control.costs import Costs, calendar_of
from fairway.control.exporting import focus_lines, month_corrections
from fairway.control.fleet_history import FleetHistory
from fairway.cost.focus import Correction
from fairway.cost.window import parse_month
from fairway.ledger import Ledger, PricePointRow, UsageFilter
from fairway.model.access import Role
from fairway.model.charge import Label, Span
from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.model.names import NAME_PATTERN, PoolName

MOST_POINTS_BYTES: Final = 4 * 1024 * 1024
OPERATOR = allow(Role.OPERATOR)
OPERATOR_WITH_POINTS = allow(Role.OPERATOR, most_body_bytes=MOST_POINTS_BYTES)

_REPORT: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    403: {**PROBLEMS[403], "description": "the token's role is too low, or it is not your team's money"},
    404: {**PROBLEMS[422], "description": "there is no such team or pool, or no fleet yet"},
}
_CLOSE: dict[int | str, dict[str, Any]] = {
    **_REPORT,
    409: {**PROBLEMS[422], "description": "it is closed already, not over, or an earlier month is open"},
}
_FOCUS: dict[int | str, dict[str, Any]] = {
    **_REPORT,
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}, "description": "FOCUS rows as CSV"},
}

WindowText = Annotated[
    str,
    Query(
        pattern=wire.WINDOW_PATTERN,
        max_length=22,
        description="30d, 2026-10, 2026-10-15, or 2026-10-01..2026-10-15 with both days",
    ),
]
By = Annotated[list[Label], Query(min_length=1, max_length=8, description="what rows are told apart by")]
Places = Annotated[list[Label], Query(min_length=1, max_length=8, description="pool, cluster, slice, day")]
Most = Annotated[
    int, Query(ge=1, le=wire.MOST_ROWS, description="most rows; what is beyond is summed up in one")
]
Month = Annotated[str, Path(pattern=wire.MONTH_PATTERN, max_length=7, examples=["2026-10"])]
PoolPath = Annotated[str, Path(pattern=NAME_PATTERN, max_length=40)]

Found = TypeVar("Found")

_STATUSES: Final = {
    "InvalidWindow": HTTPStatus.UNPROCESSABLE_ENTITY,
    "UsageTooFine": HTTPStatus.UNPROCESSABLE_ENTITY,
    "MonthNotOver": HTTPStatus.CONFLICT,
    "MonthClosed": HTTPStatus.CONFLICT,
    "MonthOpen": HTTPStatus.CONFLICT,
}
"""What is the asker's to mend; everything else is the ledger's trouble."""


def add_report_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """What was used, what it cost, what nobody used."""
    reports = CostReports(Costs(ledger, FleetHistory(ledger, fleets)))

    async def asked(
        request: Request, by: list[Label], window: str, most: int, **only: str | None
    ) -> tuple[Fleet, Question, dict[str, Any]]:
        fleet = await _fleet(fleets)
        caller = caller_of(request)
        names = {key: only.get(key) or None for key in ("team", "user", "pool")}
        which = usage_filter(caller, fleet, names["team"], names["user"], names["pool"])
        seen = teams_seen(caller, fleet)
        said = {**names, "of_teams": None if seen is None else sorted(seen)}
        return fleet, Question(window, tuple(dict.fromkeys(by)), which, most), said

    @app.get("/v1/reports/cost", dependencies=VIEWER, responses=_REPORT, tags=["cost"])
    async def report_cost(
        request: Request,
        window: WindowText = "30d",
        by: By = [Label.TEAM],  # noqa: B006 - FastAPI copies it
        team: Name = None,
        user: Name = None,
        pool: Name = None,
        most: Most = 1000,
    ) -> wire.CostReport:
        """What usage cost, with shares of what nobody used and of overhead. Rows sum to the total."""
        fleet, question, said = await asked(request, by, window, most, team=team, user=user, pool=pool)
        return known.cost(fleet, question, await _answered(reports.cost(fleet, question)), said)

    @app.get("/v1/reports/usage", dependencies=VIEWER, responses=_REPORT, tags=["cost"])
    async def report_usage(
        request: Request,
        window: WindowText = "30d",
        by: By = [Label.TEAM],  # noqa: B006
        team: Name = None,
        user: Name = None,
        pool: Name = None,
        most: Most = 1000,
    ) -> wire.UsageReport:
        """What was held: GPU-hours with slices by their part, and slices as they are."""
        fleet, question, said = await asked(request, by, window, most, team=team, user=user, pool=pool)
        return known.usage(fleet, question, await _answered(reports.usage(fleet, question)), said)

    @app.get("/v1/reports/waste", dependencies=VIEWER, responses=_REPORT, tags=["cost"])
    async def report_waste(
        request: Request,
        window: WindowText = "30d",
        by: Places = [Label.POOL],  # noqa: B006
        pool: Name = None,
        most: Most = 1000,
    ) -> wire.WasteReport:
        """What nobody used, by why, and what it cost."""
        fleet, question, said = await asked(request, by, window, most, pool=pool)
        if wrong := [label.value for label in question.by if label not in PLACES]:
            raise ApiError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "InvalidRequest",
                f"by: nobody used it, so it has no {' and no '.join(wrong)}",
                f"by is any of {', '.join(PLACES)}",
            )
        return known.waste(fleet, question, await _answered(reports.waste(fleet, question)), said)

    @app.get("/v1/reports/capacity", dependencies=VIEWER, responses=_REPORT, tags=["cost"])
    async def report_capacity(
        request: Request, window: WindowText = "30d", pool: Name = None
    ) -> wire.CapacityReport:
        """What was there, used or not, by day and pool: what a provider would bill."""
        fleet, question, _ = await asked(request, [Label.POOL], window, 1, pool=pool)
        check_sees_all(caller_of(request), fleet)
        found, days = await _answered(reports.capacity(fleet, question))
        return known.capacity(fleet, found, days)


def add_statement_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """Months, and closing them."""
    closing = Closing(ledger, Costs(ledger, FleetHistory(ledger, fleets)))

    @app.get("/v1/statements/{month}", dependencies=VIEWER, responses=_REPORT, tags=["cost"])
    async def show_statements(request: Request, month: Month, team: Name = None) -> wire.Statements:
        """A month's charges by team. A closed month is shown as it was told."""
        fleet, caller = await _fleet(fleets), caller_of(request)
        which = usage_filter(caller, fleet, team or None, None, None)
        found = await _answered(closing.statement(fleet, _month(month)))
        return known.statements(fleet, found, teams_seen(caller, fleet), which.teams)

    @app.post("/v1/statements/{month}/close", dependencies=OPERATOR, responses=_CLOSE, tags=["cost"])
    async def close_month(request: Request, month: Month) -> wire.Statements:
        """Keep a month as it is told now, for good. What is found later lands in the next."""
        fleet, caller = await _fleet(fleets), caller_of(request)
        found = await _answered(closing.close(fleet, _month(month), caller.name))
        return known.statements(fleet, found, None, None)


def add_export_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """Files for other people's tools."""
    costs = Costs(ledger, FleetHistory(ledger, fleets))
    closing = Closing(ledger, costs)

    @app.get(
        "/v1/exports/focus",
        dependencies=VIEWER,
        responses=_FOCUS,
        tags=["cost"],
        response_class=StreamingResponse,
    )
    async def export_focus(
        request: Request, window: WindowText = "30d", team: Name = None
    ) -> StreamingResponse:
        """Charges as FOCUS rows, CSV, a day at a time: any window in little memory."""
        fleet, caller = await _fleet(fleets), caller_of(request)
        which = usage_filter(caller, fleet, team or None, None, None)
        lines = _focus(fleet, window, which)
        # What can go wrong goes wrong before the first line: after it, all that is left is to break off.
        first = await _answered(anext(lines))
        return StreamingResponse(_after(first, lines), media_type="text/csv; charset=utf-8")

    async def _focus(fleet: Fleet, text: str, which: UsageFilter) -> AsyncIterator[str]:
        window = window_of(fleet, text)
        corrections: tuple[Correction, ...] = ()
        if re.fullmatch(wire.MONTH_PATTERN, text):
            corrections = await month_corrections(closing, fleet, window.first, which, window.now)
        async for piece in focus_lines(costs, fleet, window, which, corrections):
            yield piece


def add_price_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """What capacity costs."""

    @app.get("/v1/prices", dependencies=VIEWER, responses=_REPORT, tags=["cost"])
    async def list_prices() -> wire.Prices:
        """What each pool costs today."""
        fleet = await _fleet(fleets)
        now = int(datetime.now(UTC).timestamp())
        points = await ledger.price_points([p.name for p in fleet.pools], Span(now, now + 1))
        return known.prices(fleet, calendar_of(fleet).day_of(now), points)

    @app.put(
        "/v1/pools/{pool}/price-points", dependencies=OPERATOR_WITH_POINTS, responses=_REPORT, tags=["cost"]
    )
    async def keep_price_points(
        request: Request, pool: PoolPath, asked: wire.AskedPricePoints
    ) -> wire.KeptPricePoints:
        """Add to a pool's price series. A point of a moment that has one takes its place."""
        fleet = await _fleet(fleets)
        usage_filter(caller_of(request), fleet, None, None, pool)
        points = [PricePointRow(PoolName(pool), p.at, p.per_gpu_hour) for p in asked.points]
        kept = await _answered(ledger.keep_price_points(points, by=caller_of(request).name))
        return wire.KeptPricePoints(pool=pool, kept=kept)


async def _fleet(fleets: Fleets) -> Fleet:
    """What was applied last, or, before anything was, what the server was given."""
    fleet = await fleets.applied() or await fleets.current()
    if not fleet.name:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            "NoFleet",
            "there is no fleet yet, so nothing has a price",
            "give one:  fairway apply -f fleet.yaml",
        )
    return fleet


def _month(text: str) -> date:
    try:
        return parse_month(text)
    except PermanentError as error:
        raise ApiError(HTTPStatus.UNPROCESSABLE_ENTITY, error.code, error.message, error.hint) from error


async def _answered(answer: Awaitable[Found]) -> Found:
    """What was asked for, or why not as the caller may know it."""
    try:
        return await answer
    except PermanentError as error:
        if error.code not in _STATUSES:
            raise
        raise ApiError(_STATUSES[error.code], error.code, error.message, error.hint) from error


async def _after(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for piece in rest:
        yield piece
