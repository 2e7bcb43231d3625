"""Who may call what: every route carries one Rule, and the Rule it declares is the code that enforces it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.params import Depends as DependsParam
from fastapi.routing import APIRoute

from fairway.api.problems import ApiError
from fairway.api.rate_limit import WrongTokens
from fairway.ledger import Ledger, Token
from fairway.model.access import Role
from fairway.model.errors import PermanentError
from fairway.services.tokens import SECRET_PREFIX, hash_secret

_LONGEST_SECRET = 128
_USE_NOTED_EVERY = timedelta(minutes=1)


class Rule:
    """Who may use a route: everybody (`role` None) or those whose role covers `role`.

    An instance is the route's dependency, so a declared rule cannot differ from the enforced one.
    `most_body_bytes` lets those it lets through send more than the edge allows to everybody.
    """

    def __init__(self, role: Role | None, most_body_bytes: int | None = None) -> None:
        self.role = role
        self.most_body_bytes = most_body_bytes

    def __repr__(self) -> str:
        return f"Rule({self.role or 'public'})"

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
        if self.most_body_bytes is not None:
            request.state.most_body_bytes = self.most_body_bytes

    async def identify(self, request: Request) -> Token:
        """Who asks; raises ApiError."""
        return await _by_token(request)


class GuardedRoute(APIRoute):
    """Asks the rule before anything else: FastAPI by itself would parse a stranger's body first."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            rule = rule_of(self)
            if rule is not None:
                await rule(request)
            return await handle(request)

        return guarded


def caller_of(request: Request) -> Token:
    """The token behind this request; only for routes whose rule names a role."""
    caller: Token = request.state.caller
    return caller


def allow(role: Role | None, *, most_body_bytes: int | None = None) -> Sequence[DependsParam]:
    """The `dependencies=` of a route."""
    return [DependsParam(Rule(role, most_body_bytes))]


PUBLIC = allow(None)


def rule_of(route: object) -> Rule | None:
    """The rule a route carries, if it does."""
    if not isinstance(route, APIRoute):
        return None
    rules = [d.dependency for d in route.dependencies if isinstance(d.dependency, Rule)]
    return rules[0] if len(rules) == 1 else None


def require_rules(app: FastAPI) -> None:
    """Refuse an app with a route that forgot to say who may use it.

    Mounts and included routers are refused too: what is inside them could not be checked here.
    """
    bare = [_name(route) for route in app.routes if rule_of(route) is None]
    if bare:
        raise PermanentError(
            "RouteWithoutRule",
            f"no access rule on {', '.join(bare)}",
            "give each route exactly one of dependencies=PUBLIC or dependencies=allow(Role.…)",
        )


def _name(route: Any) -> str:
    methods = ",".join(sorted(getattr(route, "methods", None) or []))
    return f"{methods} {getattr(route, 'path', route)}".strip()


async def token_of(request: Request, secret: str) -> Token | None:
    """The token somebody shows; None: it is none, or no longer. Raises ApiError if they tried too often."""
    guesses: WrongTokens = request.app.state.guesses
    digest = hash_secret(secret)
    guesses.check(request, digest)
    ledger: Ledger = request.app.state.ledger
    plausible = secret.startswith(SECRET_PREFIX) and len(secret) <= _LONGEST_SECRET
    found = await ledger.tokens.by_hash(digest) if plausible else None
    if found is None:
        guesses.note_wrong(request)
    else:
        guesses.note_good(digest)
    return found


async def _by_token(request: Request) -> Token:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise _unauthorized(
            "TokenMissing", "this needs a token", "fairway context list  shows which token is used"
        )
    found = await token_of(request, secret)
    if found is None:
        raise _unknown()
    ledger: Ledger = request.app.state.ledger
    if found.last_used_at is None or datetime.now(UTC) - found.last_used_at > _USE_NOTED_EVERY:
        await ledger.tokens.touch(found)
    return found


def _unknown() -> ApiError:
    return _unauthorized(
        "TokenNotValid",
        "this token is unknown, expired or revoked",
        "fairway context list  shows which one is used; an admin makes new ones:  fairway token create",
    )


def _unauthorized(code: str, message: str, hint: str) -> ApiError:
    return ApiError(HTTPStatus.UNAUTHORIZED, code, message, hint, headers={"WWW-Authenticate": "Bearer"})
