"""The routes of costs: reports, monthly statements, FOCUS files, prices, budgets."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.responses import StreamingResponse

from fairway.api.auth import allow, caller_of
from fairway.api.load import RequestKind
from fairway.api.routes.fleet import PROBLEMS, VIEWER, LabelFilters, Name, Responses, problems
from fairway.cost.calendar import WINDOW_WORDS
from fairway.model.access import Role
from fairway.model.charge import Label
from fairway.model.names import NAME_PATTERN
from fairway.services.cost_queries import CostQueries, CostRequest
from fairway.wire import budgets as budget_wire
from fairway.wire import costs as wire
from fairway.wire.fleet import MAX_PER_PAGE, GivenMoment

MAX_POINTS_BYTES: Final = 4 * 1024 * 1024
OPERATOR = allow(Role.OPERATOR)
REPORT = allow(Role.VIEWER, kind=RequestKind.REPORT)
OPERATOR_WITH_POINTS = allow(Role.OPERATOR, max_body_bytes=MAX_POINTS_BYTES)

_REPORT = problems(
    {
        403: "the token's role is too low, or it is not your team's money",
        404: "there is no such team or pool, or no fleet yet",
    },
    PROBLEMS,
)
_CLOSE = problems({409: "it is closed already, not over, or an earlier month is open"}, _REPORT)
_FOCUS: Responses = {
    **_REPORT,
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}, "description": "FOCUS rows as CSV"},
}

WindowText = Annotated[
    str,
    Query(
        max_length=200,
        description=f"30d, 2026-10, 2026-10-15, 2026-10-01..2026-10-15 (both days included), "
        f"or one of {', '.join(WINDOW_WORDS)}",
        examples=["30d"],
    ),
]
By = Annotated[
    list[wire.GroupedBy], Query(min_length=1, max_length=8, description="what rows are grouped by")
]
Places = Annotated[list[Label], Query(min_length=1, max_length=8, description="pool, cluster, slice, day")]
Most = Annotated[
    int, Query(ge=1, le=wire.MAX_ROWS, description="most rows; what is beyond is summed up in one")
]
Month = Annotated[str, Path(pattern=wire.MONTH_PATTERN, max_length=7, examples=["2026-10"])]
MonthText = Annotated[
    str,
    Path(max_length=200, description="a month, this-month or last-month", examples=["2026-10"]),
]
PoolPath = Annotated[str, Path(pattern=NAME_PATTERN, max_length=40)]
BeforeMoment = Annotated[GivenMoment | None, Query(description="only prices before this time")]


def _cost_request(
    window: WindowText = "30d",
    by: By = [Label.TEAM],  # noqa: B006 - FastAPI copies it
    team: Name = None,
    user: Name = None,
    pool: Name = None,
    project: Name = None,
    label: LabelFilters = [],  # noqa: B006
    most: Most = 1000,
) -> CostRequest:
    return CostRequest(window, tuple(by), team, user, pool, project, tuple(label), most)


CostParams = Annotated[CostRequest, Depends(_cost_request)]
Per = Annotated[
    str | None,
    Query(
        max_length=100,
        description="also divide the cost by a unit that jobs report, by a number of units, or by the number "
        "of distinct values of a label",
        examples=["steps", "1000:steps", "label:experiment"],
    ),
]


def add_report_routes(app: FastAPI, costs: CostQueries) -> None:
    """Add the routes of reports: cost, usage, waste, efficiency and capacity."""

    @app.get("/v1/reports/cost", dependencies=REPORT, responses=_REPORT, tags=["cost"])
    async def report_cost(request: Request, params: CostParams, per: Per = None) -> wire.CostReport:
        """Report cost by the requested groups, with shares of waste and overhead. Rows sum to the total.

        With `per`, also the cost of a unit of work, or of each value of a label.
        """
        return await costs.cost(caller_of(request), replace(params, per=per or None))

    @app.get("/v1/reports/usage", dependencies=REPORT, responses=_REPORT, tags=["cost"])
    async def report_usage(request: Request, params: CostParams) -> wire.UsageReport:
        """Report usage: GPU-hours, with slices counted by their part of a GPU, and slice-hours."""
        return await costs.usage(caller_of(request), params)

    @app.get("/v1/reports/waste", dependencies=REPORT, responses=_REPORT, tags=["cost"])
    async def report_waste(
        request: Request,
        window: WindowText = "30d",
        by: Places = [Label.POOL],  # noqa: B006
        pool: Name = None,
        most: Most = 1000,
    ) -> wire.WasteReport:
        """Report waste by cause, with its cost."""
        return await costs.waste(caller_of(request), CostRequest(window, tuple(by), pool=pool, max_rows=most))

    @app.get("/v1/reports/efficiency", dependencies=REPORT, responses=_REPORT, tags=["cost"])
    async def report_efficiency(request: Request, params: CostParams) -> wire.EfficiencyReport:
        """Report efficiency: GPU time that was busy, poorly used, idle or not measured, and energy."""
        return await costs.efficiency(caller_of(request), params)

    @app.get("/v1/reports/capacity", dependencies=REPORT, responses=_REPORT, tags=["cost"])
    async def report_capacity(
        request: Request, window: WindowText = "30d", pool: Name = None
    ) -> wire.CapacityReport:
        """Report capacity by day and pool, used or not, as a provider would bill it."""
        return await costs.capacity(
            caller_of(request), CostRequest(window, (Label.POOL,), pool=pool, max_rows=1)
        )

    @app.get("/v1/reports/commitments", dependencies=REPORT, responses=_REPORT, tags=["cost"])
    async def report_commitments(
        request: Request, window: WindowText = "30d", pool: Name = None
    ) -> wire.CommitmentReport:
        """Report coverage, utilisation, break-even and savings of each commitment in force in the window."""
        return await costs.commitments(caller_of(request), CostRequest(window, (Label.POOL,), pool=pool))

    @app.get("/v1/reports/forecast", dependencies=VIEWER, responses=_REPORT, tags=["cost"])
    async def report_forecast(
        request: Request, by: Annotated[Label, Query(description="team, project")] = Label.TEAM
    ) -> budget_wire.Forecasts:
        """Report what each team, with those inside it, or project will have spent when the month ends.

        Projects span teams: only callers who see all costs get them.
        """
        return await costs.forecasts(caller_of(request), by)


def add_statement_routes(app: FastAPI, costs: CostQueries) -> None:
    """Add the routes of monthly statements and of the FOCUS export."""

    @app.get("/v1/statements/{month}", dependencies=REPORT, responses=_REPORT, tags=["cost"])
    async def show_statements(request: Request, month: MonthText, team: Name = None) -> wire.Statements:
        """Return the charges of a month by team. A closed month is returned as it was closed."""
        return await costs.statements(caller_of(request), month, team)

    @app.get("/v1/statements/{month}/document", dependencies=REPORT, responses=_REPORT, tags=["cost"])
    async def show_statement_document(
        request: Request, month: MonthText, team: Name = None
    ) -> wire.StatementDocument:
        """Return the statements of a month as one HTML file that explains each amount."""
        return await costs.document(caller_of(request), month, team)

    @app.post("/v1/statements/{month}/close", dependencies=OPERATOR, responses=_CLOSE, tags=["cost"])
    async def close_month(request: Request, month: Month) -> wire.Statements:
        """Close a month: its charges no longer change. Later corrections go to the next month."""
        return await costs.close(caller_of(request), month)

    @app.get(
        "/v1/exports/focus",
        dependencies=REPORT,
        responses=_FOCUS,
        tags=["cost"],
        response_class=StreamingResponse,
    )
    async def export_focus(
        request: Request, window: WindowText = "30d", team: Name = None
    ) -> StreamingResponse:
        """Charges as FOCUS rows, CSV, a day at a time: any window in little memory."""
        pieces = await costs.focus(caller_of(request), window, team)
        return StreamingResponse(pieces, media_type="text/csv; charset=utf-8")


def add_price_routes(app: FastAPI, costs: CostQueries) -> None:
    """Add the routes of prices and budgets."""

    @app.get("/v1/prices", dependencies=VIEWER, responses=_REPORT, tags=["cost"])
    async def list_prices() -> wire.Prices:
        """What each pool costs today."""
        return await costs.prices()

    @app.put(
        "/v1/pools/{pool}/price-points", dependencies=OPERATOR_WITH_POINTS, responses=_REPORT, tags=["cost"]
    )
    async def keep_price_points(
        request: Request, pool: PoolPath, points: wire.PricePointsRequest
    ) -> wire.StoredPricePoints:
        """Add to a pool's price series. A point of a moment that has one takes its place."""
        return await costs.keep_price_points(caller_of(request), pool, points)

    @app.get("/v1/pools/{pool}/price-points", dependencies=VIEWER, responses=_REPORT, tags=["cost"])
    async def list_price_points(
        pool: PoolPath,
        until: BeforeMoment = None,
        history: Annotated[bool, Query(description="also prices that were replaced or withdrawn")] = False,
        limit: Annotated[int, Query(ge=1, le=MAX_PER_PAGE)] = 100,
    ) -> wire.PricePoints:
        """List a pool's price series, newest first, with who stored each price and when."""
        return await costs.price_points(pool, until=until, history=history, limit=limit)

    @app.delete("/v1/pools/{pool}/price-points", dependencies=OPERATOR, responses=_REPORT, tags=["cost"])
    async def withdraw_price_points(
        request: Request,
        pool: PoolPath,
        start: Annotated[GivenMoment, Query(description="the time of the first price to withdraw")],
        until: BeforeMoment = None,
    ) -> wire.WithdrawnPricePoints:
        """Withdraw prices. They no longer apply, also to the past; the history keeps them."""
        return await costs.withdraw_price_points(caller_of(request), pool, start, until)

    @app.get("/v1/budgets", dependencies=VIEWER, responses=PROBLEMS, tags=["cost"])
    async def list_budgets(request: Request) -> budget_wire.Budgets:
        """What is spent of each budget, how fast, and what is held for it. Members see their own teams'."""
        return await costs.budgets(caller_of(request))
