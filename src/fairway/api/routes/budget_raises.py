"""The routes of raises of team budgets: request, list, approve and deny."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Path, Query, Request

from fairway.api.auth import allow, caller_of
from fairway.api.routes.fleet import PROBLEMS, VIEWER, Name, problems
from fairway.model.access import Role
from fairway.model.budget import RaiseState
from fairway.services.budget_raises import MAX_LISTED, BudgetRaises
from fairway.wire import budget_raises as wire

LEAD = allow(Role.LEAD)
Number = Annotated[int, Path(ge=1, lt=10**18)]

_LIST = problems({403: "it is not your team", 404: "there is no such team"}, PROBLEMS)
_REQUEST = problems(
    {
        403: "the token's role is too low, or it is not your team",
        404: "there is no such team",
        409: "the team has no budget of its own, or an open request",
    },
    PROBLEMS,
)
_DECIDE = problems(
    {
        403: "you may not decide it",
        404: "there is no such request of a team that you may see",
        409: "it is decided already, or its period has ended",
    },
    PROBLEMS,
)


def add_budget_raise_routes(app: FastAPI, raises: BudgetRaises) -> None:
    """Add the routes of raises."""

    @app.get("/v1/budget-raises", dependencies=VIEWER, responses=_LIST, tags=["cost"])
    async def list_budget_raises(
        request: Request,
        team: Name = None,
        all_states: Annotated[
            bool, Query(alias="all", description="also those that are decided or expired")
        ] = False,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 100,
    ) -> wire.BudgetRaises:
        """List requests to raise a team's budget, newest first. Members see those of their own teams."""
        return await raises.requests(caller_of(request), team or None, all_states=all_states, limit=limit)

    @app.post("/v1/budget-raises", dependencies=LEAD, responses=_REQUEST, tags=["cost"], status_code=201)
    async def request_budget_raise(request: Request, wanted: wire.RaiseRequest) -> wire.BudgetRaise:
        """Request to raise a team's budget until its current period ends. One request is open at a time."""
        return await raises.request(caller_of(request), wanted)

    @app.post("/v1/budget-raises/{number}/approve", dependencies=LEAD, responses=_DECIDE, tags=["cost"])
    async def approve_budget_raise(
        request: Request, number: Number, decision: wire.RaiseDecision
    ) -> wire.BudgetRaise:
        """Approve a request. The raise counts at once and ends with the period; holds are lifted in seconds.

        Operators may approve any. A lead may approve those of others for teams below their own, if a team of
        theirs above it has a budget that holds its jobs.
        """
        return await raises.decide(caller_of(request), number, RaiseState.APPROVED, decision)

    @app.post("/v1/budget-raises/{number}/deny", dependencies=LEAD, responses=_DECIDE, tags=["cost"])
    async def deny_budget_raise(
        request: Request, number: Number, decision: wire.RaiseDecision
    ) -> wire.BudgetRaise:
        """Deny a request. Whoever requested it may do so, too, and withdraws it."""
        return await raises.decide(caller_of(request), number, RaiseState.DENIED, decision)
