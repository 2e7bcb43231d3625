"""The part of a team's page that requests, approves and denies raises of its budget."""

from __future__ import annotations

from datetime import date
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import Path, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from fairway.api.auth import caller_of
from fairway.cost.budget_text import money_text, period_text
from fairway.ledger import Token
from fairway.model.access import Role
from fairway.model.budget import RaiseState
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.services.budget_raises import BudgetRaises, may_request
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.rights import person_of
from fairway.web.context import PageContext
from fairway.web.sessions import form_of, page_allow
from fairway.wire import budget_raises as wire

MAX_RAISES: Final = 20
PAGE_LEAD: Final = page_allow(Role.LEAD)
Number = Annotated[int, Path(ge=1, lt=10**18)]
_DECISIONS: Final = {"approve": RaiseState.APPROVED, "deny": RaiseState.DENIED}


async def raise_values(
    raises: BudgetRaises, caller: Token, fleet: Fleet, team: TeamName, period: date | None
) -> dict[str, Any]:
    """Return the raises of a team in its budget's period, and whether the caller may request one.

    `period` is the first day of the period; None: the team has no budget.
    """
    found = await raises.requests(caller, team, all_states=True, limit=MAX_RAISES)
    own = [one for one in found.raises if one.period == period]
    is_open = any(one.state == "requested" for one in own)
    may = period is not None and may_request(person_of(caller, fleet), team)
    return {
        "raises": own,
        "raise_waits": is_open,
        "may_raise": may and not is_open,
        "raise_amount": lambda one: f"{money_text(one.amount, like=one.amount)} {one.currency}",
        "raise_period": lambda one: period_text(one.period, one.every),
    }


def add_raise_forms(site: PageContext, raises: BudgetRaises) -> None:
    """Add the forms that request and decide raises."""
    app = site.app

    @app.post("/teams/{team}/raises", dependencies=PAGE_LEAD, include_in_schema=False)
    async def request_raise(request: Request, team: str) -> Response:
        """Request a raise, and go back to the team's page."""
        form = await form_of(request)
        try:
            amount = form.get("amount", "").replace(",", "").strip()
            wanted = wire.RaiseRequest.model_validate(
                {"team": team, "amount": amount, "reason": form.get("reason", "")}
            )
        except ValidationError as error:
            raise _invalid(error) from None
        await raises.request(caller_of(request), wanted)
        return _back(team)

    @app.post("/teams/{team}/raises/{number}", dependencies=PAGE_LEAD, include_in_schema=False)
    async def decide_raise(request: Request, team: str, number: Number) -> Response:
        """Approve or deny a request, and go back to the team's page."""
        form = await form_of(request)
        state = _DECISIONS.get(form.get("decision", ""))
        try:
            decision = wire.RaiseDecision(comment=form.get("comment", ""))
        except ValidationError as error:
            raise _invalid(error) from None
        if state is None:
            raise RequestError(
                ErrorKind.INVALID,
                "InvalidRequest",
                "decision: is neither approve nor deny",
                "load the page again and repeat it",
            )
        await raises.decide(caller_of(request), number, state, decision)
        return _back(team)


def _back(team: str) -> Response:
    return RedirectResponse(f"/teams/{quote(team)}#raises", status_code=HTTPStatus.SEE_OTHER)


def _invalid(error: ValidationError) -> RequestError:
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(map(str, fault["loc"]))
    return RequestError(
        ErrorKind.INVALID,
        "InvalidRaise",
        f"{field}: {fault['msg']}",
        "go back, enter an amount such as 5000 and what the money is for, and send it again",
    )
