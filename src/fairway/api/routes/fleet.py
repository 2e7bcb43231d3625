"""The routes of the fleet, of tokens and of the server itself; `dependencies` is the access rule of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from fairway import __version__
from fairway.api.auth import PUBLIC, allow, caller_of
from fairway.api.cursors import decode_cursor, encode_cursor
from fairway.api.description import description
from fairway.api.load import RequestKind
from fairway.api.problems import not_ready
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.errors import FairwayError
from fairway.model.labels import MAX_LABELS
from fairway.model.names import NAME_PATTERN
from fairway.model.observation import Health
from fairway.services import fleet_queries, loops, tokens
from fairway.services.fleets import Fleets
from fairway.services.rights import sees_all
from fairway.wire import fleet as wire

VIEWER = allow(Role.VIEWER)
METRICS = allow(Role.VIEWER, kind=RequestKind.UNLIMITED)
LOOPS = allow(Role.OPERATOR, kind=RequestKind.UNLIMITED)
ADMIN = allow(Role.ADMIN)

Item = TypeVar("Item")
Limit = Annotated[int, Query(ge=1, le=wire.MAX_PER_PAGE, description="most items on a page")]
Cursor = Annotated[str | None, Query(description="next_cursor of the page before")]
# PostgreSQL cannot store NUL in text, so no name contains it.
Name = Annotated[str | None, Query(max_length=253, pattern=r"^[^\x00]*$")]
LabelFilters = Annotated[
    list[Annotated[str, Query(max_length=200)]],
    Query(max_length=MAX_LABELS, description="only jobs with this label: KEY=VALUE; repeat it for several"),
]
TokenName = Annotated[str, Path(pattern=NAME_PATTERN)]

Responses = dict[int | str, dict[str, Any]]


def problems(descriptions: Mapping[int, str], base: Responses) -> Responses:
    """Return the `responses=` of a route: those of `base`, and a problem for each status described."""
    described: Responses = {s: {"model": wire.Problem, "description": d} for s, d in descriptions.items()}
    return {**base, **described}


PROBLEMS = problems(
    {
        401: "no token, or one that is not valid",
        403: "the token's role is too low",
        422: "the request is not valid",
        503: "the ledger does not answer; try again",
    },
    {},
)
_TOKEN_TAKEN = problems({409: "there is, or was, a token of that name"}, PROBLEMS)
_NO_TOKEN = problems({404: "there is no such token", 409: "it is the last admin's"}, PROBLEMS)


def add_fleet_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """Add the routes of clusters, pools and nodes."""

    @app.get("/v1/clusters", dependencies=VIEWER, responses=PROBLEMS, tags=["fleet"])
    async def list_clusters(limit: Limit = wire.PER_PAGE, cursor: Cursor = None) -> wire.Page[wire.Cluster]:
        """Every cluster of the fleet, by name. One that cannot be reached shows its last known state."""
        return page_of(await fleet_queries.list_clusters(ledger, fleets), lambda c: c.name, limit, cursor)

    @app.get("/v1/pools", dependencies=VIEWER, responses=PROBLEMS, tags=["fleet"])
    async def list_pools(
        cluster: Name = None, limit: Limit = wire.PER_PAGE, cursor: Cursor = None
    ) -> wire.Page[wire.Pool]:
        """Every pool of the fleet, by name, with its GPUs and slices."""
        rows = await fleet_queries.list_pools(ledger, fleets, cluster)
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
        rows = await fleet_queries.list_nodes(
            ledger, cluster=cluster, pool=pool, health=health, after=after, limit=limit + 1
        )
        return first_page(rows, limit, lambda node: (node.cluster, node.name))


def add_token_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """Add the routes of tokens."""

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
        return page_of(await tokens.list_tokens(ledger), lambda t: t.name, limit, cursor)

    @app.post("/v1/tokens", dependencies=ADMIN, responses=_TOKEN_TAKEN, tags=["access"], status_code=201)
    async def create_token(new: wire.NewToken, request: Request) -> wire.MadeToken:
        """Make a token. Its secret is in this answer and nowhere else, ever."""
        return await tokens.create_token(ledger, fleets, caller_of(request), new)

    @app.delete("/v1/tokens/{name}", dependencies=ADMIN, responses=_NO_TOKEN, tags=["access"])
    async def revoke_token(name: TokenName) -> wire.Token:
        """End a token's life at once. Revoking it again changes nothing."""
        return await tokens.revoke_token(ledger, name)

    @app.get("/v1/sessions", dependencies=ADMIN, responses=PROBLEMS, tags=["access"])
    async def list_sessions(
        user: Name = None, limit: Limit = wire.PER_PAGE, cursor: Cursor = None
    ) -> wire.Page[wire.Session]:
        """Who is signed in to the pages, by user; never their cookies."""
        return page_of(await tokens.list_sessions(ledger, user), lambda s: f"{s.user} {s.id}", limit, cursor)

    @app.delete("/v1/sessions", dependencies=ADMIN, responses=PROBLEMS, tags=["access"])
    async def revoke_sessions(
        user: Annotated[str, Query(min_length=1, max_length=253, pattern=r"^[^\x00]*$")],
    ) -> wire.EndedSessions:
        """Sign a user out of every browser at once: their role and groups are read at the next sign-in."""
        return await tokens.revoke_sessions(ledger, user)


def add_status_routes(app: FastAPI, ledger: Ledger, fleets: Fleets, registry: CollectorRegistry) -> None:
    """Add the routes of health, loops, metrics and the OpenAPI document."""

    @app.get("/v1/loops", dependencies=LOOPS, responses=PROBLEMS, tags=["server"])
    async def list_loops() -> wire.Page[wire.Loop]:
        """Every loop of Fairway's servers: which server runs it, and how it is doing."""
        return wire.Page(items=await loops.list_loops(ledger, fleets, registry))

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
        dependencies=METRICS,
        responses={401: PROBLEMS[401], 503: PROBLEMS[503]},
        tags=["server"],
        response_class=PlainTextResponse,
    )
    async def metrics(request: Request) -> Response:
        """For Prometheus, which sends the token by `authorization.credentials_file`.

        Budgets are for those who see all costs: a viewer's token is.
        """
        shown = registry if sees_all(caller_of(request)) else _WithoutBudgets(registry)
        return Response(generate_latest(shown), media_type=CONTENT_TYPE_LATEST)

    @app.get("/openapi.json", dependencies=PUBLIC, include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        return description(app)


class _WithoutBudgets(Collector):
    """The metrics of a registry without those of budgets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[MetricFamily]:
        return (
            family for family in self._registry.collect() if not family.name.startswith("fairway_budget_")
        )


def page_of(rows: list[Item], key: Callable[[Item], str], limit: int, cursor: str | None) -> wire.Page[Item]:
    """Return a page of a list that is short enough to be read completely: clusters, pools, tokens."""
    if cursor is not None:
        (after,) = decode_cursor(cursor, 1)
        rows = [row for row in rows if key(row) > after]
    return first_page(rows, limit, lambda row: (key(row),))


def first_page(rows: Sequence[Item], limit: int, key: Callable[[Item], tuple[str, ...]]) -> wire.Page[Item]:
    """Return the first `limit` rows as a page; one more row than that means that there is a next page."""
    return wire.Page(
        items=list(rows[:limit]),
        next_cursor=encode_cursor(*key(rows[limit - 1])) if len(rows) > limit else None,
    )
