"""The routes of policy: plan, apply, adopt, history, drift, teams, nudges, render, import."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import FastAPI, Path, Request, Response
from pydantic import BaseModel

from fairway.api import policy_known as known
from fairway.api import policy_wire as wire
from fairway.api.access import allow, caller_of, require_role
from fairway.api.cursors import decode_cursor, decode_number
from fairway.api.fleets import Fleets
from fairway.api.problems import ApiError
from fairway.api.routes import PROBLEMS, VIEWER, Cursor, Limit, Name, first_of, page_of
from fairway.api.wire import PER_PAGE, Page
from fairway.control.planning import Planner
from fairway.files import InvalidFile, Report, Severity, fleet_digest
from fairway.ledger import Ledger, Token
from fairway.ledger.policy_records import Apply
from fairway.model.access import Role
from fairway.model.apply import ApplyKind, ApplyState
from fairway.model.errors import FairwayError
from fairway.model.fleet import EngineKind, Fleet
from fairway.model.names import ClusterName
from fairway.policy.objects import ObjectKey
from fairway.policy.words import describe

MOST_FLEET_BYTES: Final = 4 * 1024 * 1024
"""A fleet of a thousand teams is past the edge's limit; JSON makes of a character six at most."""
_LOOKED_BACK: Final = 50
"""Applies that are read to find the one before."""

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


@dataclass(frozen=True, slots=True)
class PolicyParts:
    """What the routes of policy need beside the ledger; `wiring` knows how to make them."""

    check: Callable[[str, str], Report]
    """A fleet file's text and its name; relative paths count from the server's folder."""
    planner: Planner
    render: Callable[[Fleet, ClusterName], Awaitable[Mapping[str, str]]]
    """The files a Slurm cluster needs beside its policy."""
    import_policy: Callable[[Fleet, ClusterName], Awaitable[wire.Imported]]
    """An existing cluster as a fleet file."""


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
        report = await _checked(parts, asked)
        fleet = _fleet(report)
        await _require_known_connections(caller_of(request), fleet, fleets)
        cluster = _cluster_of(fleet, asked.cluster) if asked.cluster else None
        found = await parts.planner.plan(fleet, cluster)
        before = await fleets.applied(cluster)
        warnings = [f for f in report.faults if f.severity is Severity.WARNING]
        return await _large(
            lambda: known.plan(found, fleet_digest(asked.fleet), _said(before, fleet), warnings)
        )

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
        fleet = _fleet(await _checked(parts, asked))
        await _require_known_connections(caller_of(request), fleet, fleets)
        fingerprints = {_cluster_of(fleet, name): mark for name, mark in asked.fingerprints.items()}
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
        cluster = _cluster_of(await fleets.current(), asked.cluster)
        keys = [ObjectKey(o.kind, o.name) for o in asked.objects]
        number = await ledger.queue_adoption(cluster, keys, by=caller_of(request).name)
        return known.apply(await _apply(ledger, number))

    @app.post("/v1/renders", dependencies=OPERATOR_WITH_FLEET, responses=_NOT_FOUND, tags=["policy"])
    async def render(asked: wire.AskedRender, request: Request) -> wire.Rendered:
        """The files a Slurm cluster needs beside its policy. Nothing is changed."""
        fleet = _fleet(await _checked(parts, asked))
        await _require_known_connections(caller_of(request), fleet, fleets)
        cluster = _cluster_of(fleet, asked.cluster)
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
            return await parts.import_policy(fleet, _cluster_of(fleet, asked.cluster))
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
        found = await ledger.apply(number)
        if found is None:
            raise _no_such_apply(number)
        before, after = await _around(found)
        return await _large(lambda: known.apply_detail(found, _said(before, after) if after else []))

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

    async def _around(found: Apply) -> tuple[Fleet | None, Fleet | None]:
        """The fleet applied before, and the one of this apply."""
        after = await fleets.at(found.revision) if found.revision is not None else None
        earlier = await ledger.applies(before=found.id, limit=_LOOKED_BACK)
        before = next(
            (a.revision for a in earlier if a.kind is ApplyKind.APPLY and a.state is ApplyState.DONE), None
        )
        return (await fleets.at(before) if before is not None else None), after


async def _large(make: Callable[[], BaseModel]) -> Response:
    """An answer that may take a second of work to put together: others are answered meanwhile."""
    body = await asyncio.to_thread(lambda: make().model_dump_json())
    return Response(body, media_type="application/json")


async def _checked(parts: PolicyParts, asked: wire.AskedFleet) -> Report:
    # Reading a large file takes a second of work: others are answered meanwhile.
    return await asyncio.to_thread(parts.check, asked.fleet, asked.source)


def _fleet(report: Report) -> Fleet:
    """The fleet of a file without faults; otherwise all of them, as `fairway check` would say them."""
    if report.fleet is not None:
        return report.fleet
    error = InvalidFile(report.source, report.faults)
    raise ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        error.code,
        error.message,
        error.hint,
        faults=[known.file_fault(f) for f in report.faults],
    )


async def _require_known_connections(caller: Token, fleet: Fleet, fleets: Fleets) -> None:
    """Let only an admin say where a cluster is and which credentials open it.

    Whoever writes a URL and a path could otherwise have any file that the server may read sent anywhere, or,
    by a kubeconfig, any program run. For everybody else a cluster is what the server already knows.
    """
    if caller.role.may(Role.ADMIN):
        return
    here = {c.name: c.connection for c in (await fleets.current()).clusters}
    other = [c.name for c in fleet.clusters if here.get(c.name) != c.connection]
    if other:
        require_role(
            caller, Role.ADMIN, f"{', '.join(other)} is reached in another way than the server's fleet says"
        )


def _cluster_of(fleet: Fleet, name: str) -> ClusterName:
    if any(c.name == name for c in fleet.clusters):
        return ClusterName(name)
    raise ApiError(
        HTTPStatus.NOT_FOUND,
        "NoSuchCluster",
        f"the fleet has no cluster {name!r}",
        f"it has: {', '.join(c.name for c in fleet.clusters) or 'none yet'}",
    )


async def _apply(ledger: Ledger, number: int) -> Apply:
    """An apply without its changes."""
    found = await ledger.applies(before=number + 1, limit=1)
    if not found or found[0].id != number:
        raise _no_such_apply(number)
    return found[0]


def _no_such_apply(number: int) -> ApiError:
    return ApiError(
        HTTPStatus.NOT_FOUND, "NoSuchApply", f"there is no apply {number}", "fairway history  lists them"
    )


def _said(before: Fleet | None, after: Fleet) -> list[wire.Said]:
    return [
        wire.Said(team=group.team, sign=c.sign, what=c.word, before=c.before, after=c.after)
        for group in describe(before, after)
        for c in group.changes
    ]
