"""The routes of signing in from the command line: begin, ask whether it was confirmed, sign out."""

from __future__ import annotations

import hashlib
from http import HTTPStatus

from fastapi import FastAPI, Request

from fairway.api.auth import allow, caller_of, limiter_of
from fairway.api.problems import ApiError
from fairway.api.rate_limit import AddressLimiter
from fairway.api.routes.fleet import PROBLEMS, VIEWER, problems
from fairway.ledger import Ledger, TooManyLogins
from fairway.services import logins
from fairway.wire import fleet as fleet_wire
from fairway.wire import logins as wire

_PUBLIC = allow(None)

_BEGIN = problems(
    {409: "the server has no OpenID Connect sign-in", 422: "the request is not valid", 429: "too many"}, {}
)
_REDEEM = problems(
    {404: "unknown, refused, used or expired", 422: "the request is not valid", 429: "too many wrong ones"},
    {},
)
_LOG_OUT = problems({409: "the token was not created by a sign-in"}, PROBLEMS)


def add_login_routes(app: FastAPI, ledger: Ledger) -> None:
    """Add the routes. Beginning and redeeming are public: who asks has no token yet."""
    begun = AddressLimiter(max_level=30, each_seconds=5.0)

    @app.post("/v1/logins", dependencies=_PUBLIC, responses=_BEGIN, tags=["access"], status_code=201)
    async def begin_login(body: wire.NewLogin, request: Request) -> wire.Login:
        """Begin a sign-in of the command line, which a person confirms in a browser within ten minutes."""
        if not getattr(request.app.state, "has_oidc", False):
            raise ApiError(
                HTTPStatus.CONFLICT,
                "NoSignIn",
                "this server has no OpenID Connect sign-in, so the command line cannot sign in there",
                "ask an admin for a token, then:  fairway context add NAME --url URL --token-file FILE",
            )
        if not begun.admits(request.client):
            raise _too_many()
        try:
            return await logins.begin_login(ledger, body)
        except TooManyLogins:
            raise _too_many() from None

    @app.post("/v1/logins/redeem", dependencies=_PUBLIC, responses=_REDEEM, tags=["access"])
    async def redeem_login(body: wire.LoginRedemption, request: Request) -> wire.LoginResult:
        """Return the token of a confirmed sign-in: once. Until then ask again."""
        limiter = limiter_of(request)
        async with limiter.looking_up(hashlib.sha256(body.verifier.encode()).digest()):
            found = await logins.redeem_login(ledger, body)
        if found is None:
            limiter.record_wrong(request.client)
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                "LoginEnded",
                "the sign-in was refused, was used already, or took longer than ten minutes",
                "begin again:  fairway login",
            )
        return found

    @app.post("/v1/logout", dependencies=VIEWER, responses=_LOG_OUT, tags=["access"])
    async def log_out(request: Request) -> fleet_wire.Token:
        """Revoke the token of this request, if `fairway login` created it."""
        return await logins.log_out(ledger, caller_of(request))


def _too_many() -> ApiError:
    return ApiError(
        HTTPStatus.TOO_MANY_REQUESTS,
        "TooManyLogins",
        "too many sign-ins are in progress",
        "try again in some minutes",
        headers={"Retry-After": "60"},
    )
