"""The pages on which a person confirms a sign-in of the command line.

The person has to have signed in with their organisation a short time ago. Confirming needs the form's secret,
as everything does that changes something. See `services.logins`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import structlog
from fastapi import Request, Response
from starlette.responses import RedirectResponse

from fairway.api.auth import caller_of, limiter_of
from fairway.services import logins
from fairway.services.errors import RequestError
from fairway.web.context import PageContext
from fairway.web.sessions import PAGE, form_of

log = structlog.get_logger("fairway.web")

_LISTENER: Final = "http://127.0.0.1:{port}/?code={code}"


def add_login_pages(site: PageContext) -> None:
    """Add the pages. Does nothing if no provider is configured."""
    site.app.state.has_oidc = site.settings.oidc_issuer is not None
    if not site.app.state.has_oidc:
        return
    app, pages, ledger = site.app, site.pages, site.ledger

    @app.get("/login", dependencies=PAGE, include_in_schema=False)
    async def show_login(request: Request) -> Response:
        """Ask for the code, or if the command line opened this page, for confirmation."""
        code = request.query_params.get("request", "")
        if not logins.is_fresh_sign_in(caller_of(request)):
            here = f"/login?request={quote(code)}" if code else "/login"
            return RedirectResponse(f"/sign-in/oidc?next={quote(here, safe='')}", HTTPStatus.SEE_OTHER)
        if not code:
            return pages.show(request, "login.html", {"asked": None})
        found = await logins.find_login(ledger, code, by_link=True)
        return pages.show(request, "login.html", {"asked": found, "code": logins.shown_code(found.user_code)})

    @app.post("/login", dependencies=PAGE, include_in_schema=False)
    async def enter_code(request: Request) -> Response:
        """Find the sign-in of a code that the person has typed, and ask for confirmation."""
        typed = (await form_of(request)).get("code", "")
        try:
            found = await logins.find_login(ledger, typed, by_link=False)
        except RequestError:
            limiter_of(request).record_wrong(request.client)
            raise
        return pages.show(request, "login.html", {"asked": found, "code": logins.shown_code(found.user_code)})

    @app.post("/login/allow", dependencies=PAGE, include_in_schema=False)
    async def allow(request: Request) -> Response:
        """Confirm: the command line gets a token of this person."""
        caller, typed = caller_of(request), (await form_of(request)).get("code", "")
        found, code = await logins.allow_login(ledger, site.fleets, caller, typed)
        log.info("the command line signed in", user=caller.user, role=caller.role, host=found.host)
        address = _LISTENER.format(port=found.port, code=code) if code else ""
        response = pages.show(request, "login-done.html", {"allowed": True, "address": address})
        if address:
            # Not a redirect: browsers check those of a form against the policy `form-action 'self'`.
            response.headers["Refresh"] = f"0; url={address}"
            response.headers["Cache-Control"] = "no-store"
        return response

    @app.post("/login/refuse", dependencies=PAGE, include_in_schema=False)
    async def refuse(request: Request) -> Response:
        """Refuse: the command line is told so."""
        await logins.refuse_login(ledger, (await form_of(request)).get("code", ""))
        return pages.show(request, "login-done.html", {"allowed": False, "address": ""})
