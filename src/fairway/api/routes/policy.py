"""The routes of policy: plan, apply, adopt, history, drift, teams, interventions, render, import."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import FastAPI, Path, Request, Response
from pydantic import BaseModel

from fairway.api.auth import allow, caller_of
from fairway.api.cursors import decode_cursor, decode_number
from fairway.api.load import RequestKind
from fairway.api.routes.fleet import PROBLEMS, VIEWER, Cursor, Limit, Name, first_page, page_of, problems
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.services import policy as policy_services
from fairway.services import revisions
from fairway.services.convert.policy import team_key
from fairway.services.fleets import Fleets
from fairway.services.policy import PolicyServices
from fairway.wire import policy as wire
from fairway.wire.fleet import PER_PAGE, Page

ADMIN = allow(Role.ADMIN)
OPERATOR = allow(Role.OPERATOR)
OPERATOR_WITH_FLEET = allow(Role.OPERATOR, max_body_bytes=wire.MAX_FLEET_BYTES, kind=RequestKind.ENGINE)
OPERATOR_ASKS_ENGINE = allow(Role.OPERATOR, kind=RequestKind.ENGINE)
ADMIN_ASKS_ENGINE = allow(Role.ADMIN, kind=RequestKind.ENGINE)

Number = Annotated[int, Path(ge=1, lt=10**18)]

_NOT_FOUND = problems({404: "there is no such thing"}, PROBLEMS)
_ENGINE = problems({502: "the cluster did not answer, or refused"}, _NOT_FOUND)


def add_plan_routes(app: FastAPI, ledger: Ledger, fleets: Fleets, parts: PolicyServices) -> None:
    """Add the routes that plan, apply, adopt, render and import."""

    @app.post(
        "/v1/plans",
        dependencies=OPERATOR_WITH_FLEET,
        responses=_NOT_FOUND,
        tags=["policy"],
        response_model=wire.Plan,
    )
    async def make_plan(body: wire.PlanRequest, request: Request) -> Response:
        """Say what a fleet file would change on each cluster. Nothing is changed."""
        return await _large_response(
            await policy_services.plan_fleet_file(parts, ledger, fleets, caller_of(request), body)
        )

    @app.post(
        "/v1/applies",
        dependencies=OPERATOR_WITH_FLEET,
        responses=_NOT_FOUND,
        tags=["policy"],
        status_code=202,
    )
    async def start_apply(body: wire.ApplyRequest, request: Request) -> wire.Apply:
        """Make a planned fleet so. The answer comes at once; follow it at /v1/applies/{number}.

        A cluster whose fingerprint is another one by then is refused and stays as it is.
        """
        return await policy_services.start_apply(parts, ledger, fleets, caller_of(request), body)

    @app.post(
        "/v1/adoptions",
        dependencies=OPERATOR_WITH_FLEET,
        responses=_NOT_FOUND,
        tags=["policy"],
        status_code=202,
    )
    async def start_adoption(body: wire.AdoptionRequest, request: Request) -> wire.Apply:
        """Put Fairway's mark on objects that have none, and change nothing else of them."""
        return await policy_services.start_adoption(ledger, fleets, caller_of(request), body)

    @app.post("/v1/leaves/plan", dependencies=ADMIN_ASKS_ENGINE, responses=_NOT_FOUND, tags=["policy"])
    async def plan_leaving(body: wire.LeaveRequest) -> wire.Plan:
        """Say what the return of a cluster to its state before Fairway changes. Nothing is changed."""
        return await policy_services.plan_leaving(parts, ledger, fleets, body)

    @app.post(
        "/v1/leaves", dependencies=ADMIN_ASKS_ENGINE, responses=_NOT_FOUND, tags=["policy"], status_code=202
    )
    async def leave(body: wire.LeaveRequest, request: Request) -> wire.Apply:
        """Return a cluster to its state before Fairway. Follow it at /v1/applies/{number}."""
        return await policy_services.start_leaving(ledger, fleets, caller_of(request), body)

    @app.post("/v1/releases", dependencies=ADMIN, responses=_NOT_FOUND, tags=["policy"], status_code=202)
    async def release_all(body: wire.ReleaseRequest, request: Request) -> wire.Apply:
        """Lift every guard of a cluster until the next apply. Follow it at /v1/applies/{number}."""
        return await policy_services.start_release(ledger, fleets, caller_of(request), body)

    @app.post("/v1/renders", dependencies=OPERATOR_WITH_FLEET, responses=_NOT_FOUND, tags=["policy"])
    async def render(body: wire.RenderRequest, request: Request) -> wire.Rendered:
        """The files a Slurm cluster needs beside its policy. Nothing is changed."""
        return await policy_services.render_files(parts, fleets, caller_of(request), body)

    @app.post("/v1/imports", dependencies=OPERATOR_ASKS_ENGINE, responses=_ENGINE, tags=["policy"])
    async def import_policy(body: wire.ImportRequest) -> wire.Imported:
        """An existing cluster as a fleet file. Nothing is changed."""
        return await policy_services.import_fleet_file(parts, fleets, body)


def add_history_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """Add the routes of applies, drift, interventions and teams."""

    @app.get("/v1/applies", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_applies(
        cluster: Name = None, limit: Limit = PER_PAGE, cursor: Cursor = None
    ) -> Page[wire.Apply]:
        """Applies, the newest first, without their changes."""
        before = decode_number(cursor)
        rows = await policy_services.list_applies(ledger, cluster=cluster, before=before, limit=limit + 1)
        return first_page(rows, limit, lambda apply: (str(apply.id),))

    @app.get(
        "/v1/applies/{number}",
        dependencies=VIEWER,
        responses=_NOT_FOUND,
        tags=["policy"],
        response_model=wire.ApplyDetail,
    )
    async def show_apply(number: Number, request: Request) -> Response:
        """One apply with every change, before and after; budgets of other teams are left out."""
        detail = await policy_services.apply_detail(ledger, fleets, caller_of(request), number)
        return await _large_response(detail)

    @app.get("/v1/applies/{number}/progress", dependencies=VIEWER, responses=_NOT_FOUND, tags=["policy"])
    async def show_progress(number: Number) -> wire.Apply:
        """One apply without its changes: cheap enough to ask again and again."""
        return await policy_services.apply_progress(ledger, number)

    @app.get("/v1/stopped-applies", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_stopped(limit: Limit = PER_PAGE, cursor: Cursor = None) -> Page[wire.StoppedApply]:
        """Applies that stopped before their end and that no later one has finished, by cluster."""
        return page_of(await policy_services.list_stopped(ledger), lambda s: s.cluster, limit, cursor)

    @app.get("/v1/fleet", dependencies=OPERATOR, responses=_NOT_FOUND, tags=["policy"])
    async def show_fleet() -> wire.FleetFile:
        """The fleet file as last applied; before the first apply, the newest."""
        return await revisions.fleet_file(ledger, None)

    @app.get("/v1/revisions", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_revisions(limit: Limit = PER_PAGE, cursor: Cursor = None) -> Page[wire.FleetRevision]:
        """Revisions of the fleet file, the newest first, without their text."""
        before = decode_number(cursor)
        rows = await revisions.list_revisions(ledger, before=before, limit=limit + 1)
        return first_page(rows, limit, lambda r: (str(r.revision),))

    @app.get("/v1/revisions/{number}", dependencies=OPERATOR, responses=_NOT_FOUND, tags=["policy"])
    async def show_revision(number: Number) -> wire.FleetFile:
        """One revision of the fleet file, as it was written."""
        return await revisions.fleet_file(ledger, number)

    @app.get("/v1/drift", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_drift(
        cluster: Name = None, limit: Limit = PER_PAGE, cursor: Cursor = None
    ) -> wire.DriftPage:
        """What differs from what was last applied, by cluster and object; and which were not checked."""
        after = None
        if cursor is not None:
            a, b, c, d = decode_cursor(cursor, 4)
            after = (a, b, c, d)
        rows = await policy_services.list_drift(ledger, cluster=cluster, after=after, limit=limit + 1)
        page = first_page(rows, limit, lambda drift: (drift.cluster, drift.kind, drift.name, drift.field))
        not_checked = await policy_services.list_not_checked(ledger, cluster)
        return wire.DriftPage(items=page.items, next_cursor=page.next_cursor, not_checked=not_checked)

    @app.get("/v1/interventions", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_interventions(
        cluster: Name = None, limit: Limit = PER_PAGE, cursor: Cursor = None
    ) -> Page[wire.Intervention]:
        """List interventions, the newest first."""
        before = decode_number(cursor)
        rows = await policy_services.list_interventions(
            ledger, cluster=cluster, before=before, limit=limit + 1
        )
        return first_page(rows, limit, lambda row: (str(row.id),))

    @app.get("/v1/teams", dependencies=VIEWER, responses=PROBLEMS, tags=["policy"])
    async def list_teams(limit: Limit = PER_PAGE, cursor: Cursor = None) -> Page[wire.Team]:
        """The teams as last applied, each below its parent."""
        return page_of(await policy_services.list_teams(ledger, fleets), team_key, limit, cursor)


async def _large_response(model: BaseModel) -> Response:
    """Serialize a large response in a thread: it may take a second, and must not block other requests."""
    return Response(await asyncio.to_thread(model.model_dump_json), media_type="application/json")
