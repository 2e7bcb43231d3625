"""The routes of policy: plan, apply, adopt, history, drift, teams, nudges, render, import."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import FastAPI, Path, Request, Response
from pydantic import BaseModel

from fairway.api import policy_known as known
from fairway.api import policy_wire as wire
from fairway.api.access import allow, caller_of
from fairway.api.cursors import decode_cursor, decode_number
from fairway.api.fleets import Fleets
from fairway.api.policy_answers import (
    PolicyParts,
    apply_detail,
    checked,
    cluster_of,
    fleet_of,
    no_such_apply,
    planned,
    require_known_connections,
)
from fairway.api.problems import ApiError
from fairway.api.routes import PROBLEMS, VIEWER, Cursor, Limit, Name, first_of, page_of
from fairway.api.wire import PER_PAGE, Page
from fairway.files import fleet_digest
from fairway.ledger import Ledger
from fairway.ledger.policy_records import Apply
from fairway.model.access import Role
from fairway.model.errors import FairwayError
from fairway.model.fleet import EngineKind
from fairway.policy.objects import ObjectKey

__all__ = ["MOST_FLEET_BYTES", "PolicyParts", "add_history_routes", "add_plan_routes"]

MOST_FLEET_BYTES: Final = 4 * 1024 * 1024
"""A fleet of a thousand teams is past the edge's limit; JSON makes of a character six at most."""

OPERATOR = allow(Role.OPERATOR)
OPERATOR_WITH_FLEET = allow(Role.OPERATOR, most_body_bytes=MOST_FLEET_BYTES)

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
    async def make_plan(asked: wire.AskedPlan, request: Request) -> Response:
        """Say what a fleet file would change on each cluster. Nothing is changed."""
        return await _large(await planned(parts, fleets, caller_of(request), asked))

    @app.post(
        "/v1/applies",
        dependencies=OPERATOR_WITH_FLEET,
        responses=_NOT_FOUND,
        tags=["policy"],
        status_code=202,
    )
    async def start_apply(asked: wire.AskedApply, request: Request) -> wire.Apply:
        """Make a planned fleet so. The answer comes at once; follow it at /v1/applies/{number}.

        A cluster whose fingerprint is another one by then is refused and stays as it is.
        """
        fleet = fleet_of(await checked(parts, asked))
        await require_known_connections(caller_of(request), fleet, fleets)
        fingerprints = {cluster_of(fleet, name): mark for name, mark in asked.fingerprints.items()}
        number = await ledger.queue_apply(
            asked.fleet,
            fleet_digest(asked.fleet),
            fingerprints,
            force=asked.force,
            by=caller_of(request).name,
        )
        return known.apply(await _apply(ledger, number))

    @app.post(
        "/v1/adoptions",
        dependencies=OPERATOR_WITH_FLEET,
        responses=_NOT_FOUND,
        tags=["policy"],
        status_code=202,
    )
    async def start_adoption(asked: wire.AskedAdoption, request: Request) -> wire.Apply:
        """Put Fairway's mark on objects that have none, and change nothing else of them."""
        cluster = cluster_of(await fleets.current(), asked.cluster)
        keys = [ObjectKey(o.kind, o.name) for o in asked.objects]
        number = await ledger.queue_adoption(cluster, keys, by=caller_of(request).name)
        return known.apply(await _apply(ledger, number))

    @app.post("/v1/renders", dependencies=OPERATOR_WITH_FLEET, responses=_NOT_FOUND, tags=["policy"])
    async def render(asked: wire.AskedRender, request: Request) -> wire.Rendered:
        """The files a Slurm cluster needs beside its policy. Nothing is changed."""
        fleet = fleet_of(await checked(parts, asked))
        await require_known_connections(caller_of(request), fleet, fleets)
        cluster = cluster_of(fleet, asked.cluster)
        if fleet.cluster(cluster).engine is not EngineKind.SLURM:
            raise ApiError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "NotSlurm",
                f"{cluster} is not a Slurm cluster: it needs no files beside its policy",
                "fairway get clusters  shows each one's engine",
            )
        return wire.Rendered(cluster=cluster, files=dict(await parts.render(fleet, cluster)))

    @app.post("/v1/imports", dependencies=OPERATOR, responses=_ENGINE, tags=["policy"])
    async def import_policy(asked: wire.AskedImport) -> wire.Imported:
        """An existing cluster as a fleet file. Nothing is changed."""
        fleet = await fleets.current()
        try:
            return await parts.import_policy(fleet, cluster_of(fleet, asked.cluster))
        except ApiError:
            raise
        except FairwayError as error:
            raise ApiError(HTTPStatus.BAD_GATEWAY, error.code, error.message, error.hint) from error


def add_history_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """What was applied, by whom, and what became of it since."""

    @app.get("/v1/applies", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_applies(
        cluster: Name = None, limit: Limit = PER_PAGE, cursor: Cursor = None
    ) -> Page[wire.Apply]:
        """Applies, the newest first, without their changes."""
        rows = await ledger.applies(cluster=cluster, before=decode_number(cursor), limit=limit + 1)
        return first_of(rows, limit, show=known.apply, key=lambda row: (str(row.id),))

    @app.get(
        "/v1/applies/{number}",
        dependencies=VIEWER,
        responses=_NOT_FOUND,
        tags=["policy"],
        response_model=wire.ApplyDetail,
    )
    async def show_apply(number: Number) -> Response:
        """One apply with every change, before and after."""
        return await _large(await apply_detail(ledger, fleets, number))

    @app.get("/v1/applies/{number}/progress", dependencies=VIEWER, responses=_NOT_FOUND, tags=["policy"])
    async def show_progress(number: Number) -> wire.Apply:
        """One apply without its changes: cheap enough to ask again and again."""
        return known.apply(await _apply(ledger, number))

    @app.get("/v1/drift", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_drift(
        cluster: Name = None, limit: Limit = PER_PAGE, cursor: Cursor = None
    ) -> Page[wire.Drift]:
        """What differs from what was last applied, by cluster and object."""
        after = None
        if cursor is not None:
            a, b, c, d = decode_cursor(cursor, 4)
            after = (a, b, c, d)
        rows = await ledger.drift(cluster=cluster, after=after, limit=limit + 1)
        return first_of(
            rows,
            limit,
            show=known.drift,
            key=lambda row: (row.cluster, row.entry.key.kind, row.entry.key.name, row.entry.field),
        )

    @app.get("/v1/nudges", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_nudges(
        cluster: Name = None, limit: Limit = PER_PAGE, cursor: Cursor = None
    ) -> Page[wire.Nudge]:
        """Pushes that were given to engines, the newest first."""
        rows = await ledger.nudges(cluster=cluster, before=decode_number(cursor), limit=limit + 1)
        return first_of(rows, limit, show=known.nudge, key=lambda row: (str(row.id),))

    @app.get("/v1/teams", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_teams(limit: Limit = PER_PAGE, cursor: Cursor = None) -> Page[wire.Team]:
        """The teams as last applied, each below its parent."""
        fleet = await fleets.applied()
        return page_of(known.teams(fleet) if fleet else [], known.team_key, limit, cursor)


async def _large(made: BaseModel) -> Response:
    """An answer that may take a second of work to write: others are answered meanwhile."""
    body = await asyncio.to_thread(made.model_dump_json)
    return Response(body, media_type="application/json")


async def _apply(ledger: Ledger, number: int) -> Apply:
    """An apply without its changes."""
    found = await ledger.applies(before=number + 1, limit=1)
    if not found or found[0].id != number:
        raise no_such_apply(number)
    return found[0]
