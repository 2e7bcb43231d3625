"""The route of budgets: how each stands, whom it holds, what happened to it."""

from __future__ import annotations

from fastapi import FastAPI, Request

from fairway.api.auth import caller_of
from fairway.api.routes.fleet import PROBLEMS, VIEWER
from fairway.services.cost_queries import CostQueries
from fairway.wire import budgets as wire


def add_budget_routes(app: FastAPI, costs: CostQueries) -> None:
    """How budgets stand."""

    @app.get("/v1/budgets", dependencies=VIEWER, responses=PROBLEMS, tags=["cost"])
    async def list_budgets(request: Request) -> wire.Budgets:
        """What is spent of each budget, how fast, and what is held for it. Members see their own teams'."""
        return await costs.budgets(caller_of(request))
