"""Authorize API requests: every route declares one access rule, and that object also enforces it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.params import Depends as DependsParam
from fastapi.routing import APIRoute
from pydantic import BaseModel

from fairway.api.bodies import TypedRequest
from fairway.api.forward import EngineServer
from fairway.api.load import RequestKind, RequestQueues
from fairway.api.problems import ApiError
from fairway.api.rate_limit import WrongTokenLimiter
from fairway.ledger import Ledger, LedgerBusy, LedgerUnreachable, Token
from fairway.model.access import Role
from fairway.model.errors import PermanentError
from fairway.services.tokens import SECRET_PREFIX, hash_secret

_MAX_SECRET_LENGTH = 128
_USE_NOTED_EVERY = timedelta(minutes=1)

log = structlog.get_logger("fairway.api")


class AccessRule:
    """The access rule of a route: public (`role` None), or for callers whose role includes `role`.

    An instance is the route's dependency, so a declared rule cannot differ from the enforced one.
    `max_body_bytes` allows authorized callers a larger body than the middleware's default. `kind` is what the
    request costs, if that does not follow from its method. `asks_engine`: a server without engines forwards
    it; so it does with every request of kind ENGINE.
    """

    def __init__(
        self,
        role: Role | None,
        max_body_bytes: int | None = None,
        kind: RequestKind | None = None,
        *,
        asks_engine: bool = False,
    ) -> None:
        self.role = role
        self.max_body_bytes = max_body_bytes
        self.kind = kind
        self.asks_engine = asks_engine or kind is RequestKind.ENGINE

    def __repr__(self) -> str:
        return f"Rule({self.role or 'public'})"

    def kind_of(self, request: Request) -> RequestKind:
        """Return what a request costs."""
        by_method = RequestKind.READ if request.method in ("GET", "HEAD") else RequestKind.WRITE
        return self.kind or by_method

    async def __call__(self, request: Request) -> None:
        if self.role is None or getattr(request.state, "passed", None) is self:
            return
        caller = await self.identify(request)
        request.state.caller = caller
        if not caller.role.may(self.role):
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                "RoleTooLow",
                f"token {caller.name} has the role {caller.role}, this needs {self.role}",
                f"ask an admin for a token:  fairway token create NAME --role {self.role}",
            )
        request.state.passed = self
        if self.max_body_bytes is not None:
            request.state.max_body_bytes = self.max_body_bytes

    def credentials_of(self, request: Request) -> Mapping[str, str]:
        """Return the headers that identify an authorized caller to another server of the same ledger."""
        return {"Authorization": request.headers["authorization"]}

    async def identify(self, request: Request) -> Token:
        """Return the token of the caller. Raises ApiError if there is none, or it is not valid."""
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise _unauthorized(
                "TokenMissing", "a token is required", "fairway context list  shows which token is used"
            )
        token = await find_token(request, secret)
        if token is None:
            raise _unauthorized(
                "TokenNotValid",
                "this token is unknown, expired or revoked",
                "fairway context list  shows which one is used;"
                " an admin creates new ones:  fairway token create",
            )
        if token.last_used_at is None or datetime.now(UTC) - token.last_used_at > _USE_NOTED_EVERY:
            ledger: Ledger = request.app.state.ledger
            try:
                await ledger.tokens.touch(token)
            except (LedgerUnreachable, LedgerBusy) as error:  # a read works on a read-only ledger
                log.warning("the use of a token was not noted", token=token.name, code=error.code)
        return token


class GuardedRoute(APIRoute):
    """A route that checks its rule first: FastAPI by itself would parse the body of an unknown caller."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            rule = rule_of(self)
            if rule is None:
                return await handle(request)
            queues: RequestQueues = request.app.state.queues
            kind = rule.kind_of(request)
            engine_server: EngineServer | None = request.app.state.engine_server if rule.asks_engine else None

            async def answer() -> Response:
                if engine_server is None:
                    return await handle(request)
                seconds = queues.by_kind[kind].limits.total_seconds
                return await engine_server.answer(request, rule.credentials_of(request), seconds)

            if request.method in ("GET", "HEAD"):
                async with queues.place(kind):  # before the ledger is asked who the caller is
                    await rule(request)
                    return await answer()
            queues.check(kind)
            await rule(request)
            model: object = self.body_field.field_info.annotation if self.body_field else None
            if isinstance(model, type) and issubclass(model, BaseModel):
                request = TypedRequest(request, model)
            await request.body()  # without a place: a slow client must not keep others from theirs
            async with queues.place(kind):
                return await answer()

        return guarded


def caller_of(request: Request) -> Token:
    """Return the token of the authorized caller; only for routes whose rule has a role."""
    caller: Token = request.state.caller
    return caller


def allow(
    role: Role | None,
    *,
    max_body_bytes: int | None = None,
    kind: RequestKind | None = None,
    asks_engine: bool = False,
) -> Sequence[DependsParam]:
    """Return the `dependencies=` of a route."""
    return [DependsParam(AccessRule(role, max_body_bytes, kind, asks_engine=asks_engine))]


PUBLIC = allow(None, kind=RequestKind.UNLIMITED)


def rule_of(route: object) -> AccessRule | None:
    """Return the rule of a route. Returns None if it has none, or several."""
    if not isinstance(route, APIRoute):
        return None
    rules = [d.dependency for d in route.dependencies if isinstance(d.dependency, AccessRule)]
    return rules[0] if len(rules) == 1 else None


def require_rules(app: FastAPI) -> None:
    """Raise PermanentError if a route of the app has no access rule.

    Mounts and included routers are rejected too: the routes inside them could not be checked here.
    """
    unguarded = [_name(route) for route in app.routes if rule_of(route) is None]
    if unguarded:
        raise PermanentError(
            "RouteWithoutRule",
            f"no access rule on {', '.join(unguarded)}",
            "give each route exactly one of dependencies=PUBLIC or dependencies=allow(Role.…)",
        )


def keep_engine_routes(app: FastAPI) -> None:
    """Drop every route but those that ask engines, and those of the server's own status."""

    def kept(rule: AccessRule | None) -> bool:
        return rule is not None and (rule.asks_engine or rule.kind is RequestKind.UNLIMITED)

    app.router.routes[:] = [route for route in app.routes if kept(rule_of(route))]


def _name(route: Any) -> str:
    methods = ",".join(sorted(getattr(route, "methods", None) or []))
    return f"{methods} {getattr(route, 'path', route)}".strip()


def limiter_of(request: Request) -> WrongTokenLimiter:
    """Return the server's limiter of look-ups, which tokens and session cookies share."""
    limiter: WrongTokenLimiter = request.app.state.token_limiter
    return limiter


async def find_token(request: Request, secret: str) -> Token | None:
    """Look up a bearer token. Returns None if it is unknown, expired or revoked.

    Raises ApiError if it is wrong and the caller's address sent too many such tokens.
    """
    limiter = limiter_of(request)
    digest = hash_secret(secret)
    ledger: Ledger = request.app.state.ledger
    token = None
    if secret.startswith(SECRET_PREFIX) and len(secret) <= _MAX_SECRET_LENGTH:
        async with limiter.looking_up(digest):
            token = await ledger.tokens.by_hash(digest)
    if token is None:
        limiter.record_wrong(request.client)
    else:
        limiter.record_valid(digest)
    return token


def _unauthorized(code: str, message: str, hint: str) -> ApiError:
    return ApiError(HTTPStatus.UNAUTHORIZED, code, message, hint, headers={"WWW-Authenticate": "Bearer"})
