"""The routes of service level objectives: how each does, and its error budget over time."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Path, Query, Request

from fairway.api.auth import caller_of
from fairway.api.routes.fleet import PROBLEMS, VIEWER, problems
from fairway.model.names import NAME_PATTERN
from fairway.model.slo import DAY, MAX_WINDOW
from fairway.services.slos import SloQueries
from fairway.wire import slos as wire

_HISTORY = problems({404: "there is no such objective, or it is not of your team"}, PROBLEMS)
_Name = Annotated[str, Path(pattern=NAME_PATTERN, max_length=40)]


def add_slo_routes(app: FastAPI, slos: SloQueries) -> None:
    """Add the routes of objectives."""

    @app.get("/v1/slos", dependencies=VIEWER, responses=PROBLEMS, tags=["fleet"])
    async def list_slos(request: Request) -> wire.Slos:
        """List objectives: compliance, error budget and burn rates. Members see those of their teams."""
        return await slos.slos(caller_of(request))

    @app.get("/v1/slos/{name}/history", dependencies=VIEWER, responses=_HISTORY, tags=["fleet"])
    async def show_slo_history(
        request: Request,
        name: _Name,
        days: Annotated[int, Query(ge=1, le=MAX_WINDOW // DAY)] = 30,
        points: Annotated[int, Query(ge=2, le=wire.MAX_POINTS)] = 180,
    ) -> wire.SloHistory:
        """Return an objective's error budget at even distances in the last days."""
        return await slos.history(caller_of(request), name, days * DAY, points)
