"""The routes: each reads, makes wire types of it, and says by its `dependencies` who may call it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fairway import __version__
from fairway.api import known, wire
from fairway.api.access import PUBLIC, allow, caller_of, hash_secret, new_secret
from fairway.api.cursors import decode_cursor, encode_cursor
from fairway.api.description import description
from fairway.api.fleets import Fleets
from fairway.api.problems import ApiError, not_ready
from fairway.ledger import LastAdmin, Ledger, Token, TokenNameTaken
from fairway.model.access import Role
from fairway.model.errors import FairwayError
from fairway.model.names import NAME_PATTERN, UserName
from fairway.model.observation import Health

VIEWER = allow(Role.VIEWER)
ADMIN = allow(Role.ADMIN)

Item = TypeVar("Item")
Row = TypeVar("Row")
Limit = Annotated[int, Query(ge=1, le=wire.MOST_PER_PAGE, description="most items on a page")]
Cursor = Annotated[str | None, Query(description="next_cursor of the page before")]
# PostgreSQL has no text with a NUL in it, so no name has one either.
Name = Annotated[str | None, Query(max_length=253, pattern=r"^[^\x00]*$")]
TokenName = Annotated[str, Path(pattern=NAME_PATTERN)]

_PROBLEM: dict[str, Any] = {"model": wire.Problem}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {**_PROBLEM, "description": "no token, or one that is not valid"},
    403: {**_PROBLEM, "description": "the token's role is too low"},
    422: {**_PROBLEM, "description": "the request is not valid"},
    503: {**_PROBLEM, "description": "the ledger does not answer; try again"},
}

_TOKEN_TAKEN: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    409: {**_PROBLEM, "description": "there is, or was, a token of that name"},
}
_NO_TOKEN: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    404: {**_PROBLEM, "description": "there is no such token"},
    409: {**_PROBLEM, "description": "it is the last admin's"},
}


def add_fleet_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """What the fleet has and how it is."""

    async def read() -> known.Known:
        return known.Known(
            fleet=await fleets.current(),
            clusters={s.cluster: s for s in await ledger.clusters()},
            pools=await ledger.pools(),
            now=datetime.now(UTC),
        )

    @app.get("/v1/clusters", dependencies=VIEWER, responses=PROBLEMS, tags=["fleet"])
    async def list_clusters(limit: Limit = wire.PER_PAGE, cursor: Cursor = None) -> wire.Page[wire.Cluster]:
        """Every cluster of the fleet, by name. One that cannot be reached shows its last known state."""
        return page_of(known.clusters(await read()), lambda c: c.name, limit, cursor)

    @app.get("/v1/pools", dependencies=VIEWER, responses=PROBLEMS, tags=["fleet"])
    async def list_pools(
        cluster: Name = None, limit: Limit = wire.PER_PAGE, cursor: Cursor = None
    ) -> wire.Page[wire.Pool]:
        """Every pool of the fleet, by name, with its GPUs and slices."""
        rows = [p for p in known.pools(await read()) if cluster is None or p.cluster == cluster]
        return page_of(rows, lambda p: p.name, limit, cursor)

    @app.get("/v1/nodes", dependencies=VIEWER, responses=PROBLEMS, tags=["fleet"])
    async def list_nodes(
        cluster: Name = None,
        pool: Name = None,
        health: Health | None = None,
        limit: Limit = wire.PER_PAGE,
        cursor: Cursor = None,
    ) -> wire.Page[wire.Node]:
        """Nodes by cluster and name."""
        after = None
        if cursor is not None:
            after_cluster, after_name = decode_cursor(cursor, 2)
            after = (after_cluster, after_name)
        states = {s.cluster: s for s in await ledger.clusters()}
        rows = await ledger.nodes(cluster=cluster, pool=pool, health=health, after=after, limit=limit + 1)
        now = datetime.now(UTC)
        return first_of(
            rows,
            limit,
            show=lambda row: known.node(row, states.get(row.cluster), now),
            key=lambda row: (row.cluster, row.name),
        )


def add_token_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """Who may use this API."""

    @app.get("/v1/whoami", dependencies=VIEWER, responses=PROBLEMS, tags=["access"])
    async def whoami(request: Request) -> wire.Whoami:
        """Who the server takes you for."""
        caller = caller_of(request)
        return wire.Whoami(
            name=caller.name,
            role=caller.role,
            user=caller.user,
            expires_at=caller.expires_at,
            server_version=__version__,
            fleet=(await fleets.current()).name or None,
        )

    @app.get("/v1/tokens", dependencies=ADMIN, responses=PROBLEMS, tags=["access"])
    async def list_tokens(limit: Limit = wire.PER_PAGE, cursor: Cursor = None) -> wire.Page[wire.Token]:
        """Every token ever made, by name; never their secrets."""
        rows = [wire.Token(**_token(t)) for t in await ledger.tokens()]
        return page_of(rows, lambda t: t.name, limit, cursor)

    @app.post("/v1/tokens", dependencies=ADMIN, responses=_TOKEN_TAKEN, tags=["access"], status_code=201)
    async def create_token(new: wire.NewToken, request: Request) -> wire.MadeToken:
        """Make a token. Its secret is in this answer and nowhere else, ever."""
        secret = new_secret()
        expires_at = None
        if new.expires_in_seconds is not None:
            expires_at = datetime.now(UTC) + timedelta(seconds=new.expires_in_seconds)
        try:
            made = await ledger.create_token(
                new.name,
                new.role,
                hash_secret(secret),
                caller_of(request).name,
                expires_at,
                user=UserName(new.user) if new.user else None,
            )
        except TokenNameTaken as error:
            raise ApiError(HTTPStatus.CONFLICT, error.code, error.message, error.hint) from error
        return wire.MadeToken(**_token(made), secret=secret)

    @app.delete("/v1/tokens/{name}", dependencies=ADMIN, responses=_NO_TOKEN, tags=["access"])
    async def revoke_token(name: TokenName) -> wire.Token:
        """End a token's life at once. Revoking it again changes nothing."""
        try:
            revoked = await ledger.revoke_token(name)
        except LastAdmin as error:
            raise ApiError(HTTPStatus.CONFLICT, error.code, error.message, error.hint) from error
        if revoked is None:
            raise ApiError(
                HTTPStatus.NOT_FOUND, "NoSuchToken", f"there is no token called {name}", "fairway token list"
            )
        return wire.Token(**_token(revoked))


def add_own_routes(app: FastAPI, ledger: Ledger, registry: CollectorRegistry) -> None:
    """How the server itself is."""

    @app.get("/healthz", dependencies=PUBLIC, tags=["server"])
    async def healthz() -> wire.Status:
        """The process answers."""
        return wire.Status(status="ok")

    @app.get("/readyz", dependencies=PUBLIC, responses={503: PROBLEMS[503]}, tags=["server"])
    async def readyz() -> wire.Status:
        """The ledger answers and its tables are current."""
        try:
            await ledger.ready()
        except FairwayError as error:
            raise not_ready(error) from error
        return wire.Status(status="ready")

    @app.get(
        "/metrics",
        dependencies=VIEWER,
        responses={401: PROBLEMS[401], 503: PROBLEMS[503]},
        tags=["server"],
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        """For Prometheus, which sends the token by `authorization.credentials_file`."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/openapi.json", dependencies=PUBLIC, include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        return description(app)


def page_of(rows: list[Item], key: Callable[[Item], str], limit: int, cursor: str | None) -> wire.Page[Item]:
    """A page of a list that is short enough to be read whole: clusters, pools, tokens."""
    if cursor is not None:
        (after,) = decode_cursor(cursor, 1)
        rows = [row for row in rows if key(row) > after]
    return first_of(rows, limit, show=lambda row: row, key=lambda row: (key(row),))


def first_of(
    rows: Sequence[Row], limit: int, *, show: Callable[[Row], Item], key: Callable[[Row], tuple[str, ...]]
) -> wire.Page[Item]:
    """A page of rows of which one more than `limit` was asked for: that one tells whether more follow."""
    return wire.Page(
        items=[show(row) for row in rows[:limit]],
        next_cursor=encode_cursor(*key(rows[limit - 1])) if len(rows) > limit else None,
    )


def _token(token: Token) -> dict[str, Any]:
    return {
        "name": token.name,
        "role": token.role,
        "user": token.user,
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "last_used_at": token.last_used_at,
    }
