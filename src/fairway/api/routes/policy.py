"""The routes of policy: plan, apply, adopt, history, drift, teams, nudges, render, import."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request, Response
from pydantic import BaseModel

from fairway.api.auth import allow, caller_of
from fairway.api.cursors import decode_cursor, decode_number
from fairway.api.routes.fleet import PROBLEMS, VIEWER, Cursor, Limit, Name, first_of, page_of
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.services import policy_actions, policy_queries
from fairway.services.fleets import Fleets
from fairway.services.policy_queries import PolicyParts
from fairway.wire import policy as wire
from fairway.wire.fleet import PER_PAGE, Page

OPERATOR = allow(Role.OPERATOR)
OPERATOR_WITH_FLEET = allow(Role.OPERATOR, most_body_bytes=wire.MOST_FLEET_BYTES)

Number = Annotated[int, Path(ge=1, lt=10**18)]

_NOT_FOUND: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    404: {**PROBLEMS[422], "description": "there is no such thing"},
}
_ENGINE: dict[int | str, dict[str, Any]] = {
    **_NOT_FOUND,
    502: {**PROBLEMS[422], "description": "the cluster did not answer, or refused"},
}


def add_plan_routes(app: FastAPI, ledger: Ledger, fleets: Fleets, parts: PolicyParts) -> None:
    """What a fleet file would change, and the order to change it."""

    @app.post(
        "/v1/plans",
        dependencies=OPERATOR_WITH_FLEET,
        responses=_NOT_FOUND,
        tags=["policy"],
        response_model=wire.Plan,
    )
    async def make_plan(asked: wire.PlanRequest, request: Request) -> Response:
        """Say what a fleet file would change on each cluster. Nothing is changed."""
        return await _large(await policy_queries.planned(parts, fleets, caller_of(request), asked))

    @app.post(
        "/v1/applies",
        dependencies=OPERATOR_WITH_FLEET,
        responses=_NOT_FOUND,
        tags=["policy"],
        status_code=202,
    )
    async def start_apply(asked: wire.ApplyRequest, request: Request) -> wire.Apply:
        """Make a planned fleet so. The answer comes at once; follow it at /v1/applies/{number}.

        A cluster whose fingerprint is another one by then is refused and stays as it is.
        """
        return await policy_actions.start_apply(parts, ledger, fleets, caller_of(request), asked)

    @app.post(
        "/v1/adoptions",
        dependencies=OPERATOR_WITH_FLEET,
        responses=_NOT_FOUND,
        tags=["policy"],
        status_code=202,
    )
    async def start_adoption(asked: wire.AdoptionRequest, request: Request) -> wire.Apply:
        """Put Fairway's mark on objects that have none, and change nothing else of them."""
        return await policy_actions.start_adoption(ledger, fleets, caller_of(request), asked)

    @app.post("/v1/renders", dependencies=OPERATOR_WITH_FLEET, responses=_NOT_FOUND, tags=["policy"])
    async def render(asked: wire.RenderRequest, request: Request) -> wire.Rendered:
        """The files a Slurm cluster needs beside its policy. Nothing is changed."""
        return await policy_queries.rendered(parts, fleets, caller_of(request), asked)

    @app.post("/v1/imports", dependencies=OPERATOR, responses=_ENGINE, tags=["policy"])
    async def import_policy(asked: wire.ImportRequest) -> wire.Imported:
        """An existing cluster as a fleet file. Nothing is changed."""
        return await policy_queries.imported(parts, fleets, asked)


def add_history_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """What was applied, by whom, and what became of it since."""

    @app.get("/v1/applies", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_applies(
        cluster: Name = None, limit: Limit = PER_PAGE, cursor: Cursor = None
    ) -> Page[wire.Apply]:
        """Applies, the newest first, without their changes."""
        before = decode_number(cursor)
        rows = await policy_queries.list_applies(ledger, cluster=cluster, before=before, limit=limit + 1)
        return first_of(rows, limit, lambda apply: (str(apply.id),))

    @app.get(
        "/v1/applies/{number}",
        dependencies=VIEWER,
        responses=_NOT_FOUND,
        tags=["policy"],
        response_model=wire.ApplyDetail,
    )
    async def show_apply(number: Number) -> Response:
        """One apply with every change, before and after."""
        return await _large(await policy_queries.apply_detail(ledger, fleets, number))

    @app.get("/v1/applies/{number}/progress", dependencies=VIEWER, responses=_NOT_FOUND, tags=["policy"])
    async def show_progress(number: Number) -> wire.Apply:
        """One apply without its changes: cheap enough to ask again and again."""
        return await policy_queries.apply_progress(ledger, number)

    @app.get("/v1/drift", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_drift(
        cluster: Name = None, limit: Limit = PER_PAGE, cursor: Cursor = None
    ) -> Page[wire.Drift]:
        """What differs from what was last applied, by cluster and object."""
        after = None
        if cursor is not None:
            a, b, c, d = decode_cursor(cursor, 4)
            after = (a, b, c, d)
        rows = await policy_queries.list_drift(ledger, cluster=cluster, after=after, limit=limit + 1)
        return first_of(rows, limit, lambda drift: (drift.cluster, drift.kind, drift.name, drift.field))

    @app.get("/v1/nudges", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_nudges(
        cluster: Name = None, limit: Limit = PER_PAGE, cursor: Cursor = None
    ) -> Page[wire.Nudge]:
        """Pushes that were given to engines, the newest first."""
        before = decode_number(cursor)
        rows = await policy_queries.list_nudges(ledger, cluster=cluster, before=before, limit=limit + 1)
        return first_of(rows, limit, lambda nudge: (str(nudge.id),))

    @app.get("/v1/teams", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_teams(limit: Limit = PER_PAGE, cursor: Cursor = None) -> Page[wire.Team]:
        """The teams as last applied, each below its parent."""
        return page_of(await policy_queries.list_teams(fleets), policy_queries.team_key, limit, cursor)


async def _large(made: BaseModel) -> Response:
    """An answer that may take a second of work to write: others are answered meanwhile."""
    body = await asyncio.to_thread(made.model_dump_json)
    return Response(body, media_type="application/json")
