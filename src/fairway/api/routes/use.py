"""The routes of what held GPUs did: now by pool, and over time."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request

from fairway.api.auth import allow, caller_of
from fairway.api.load import RequestKind
from fairway.api.routes.fleet import PROBLEMS, VIEWER, Name, problems
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.services import use_history
from fairway.services.convert import gpu_use as convert
from fairway.services.fleets import Fleets
from fairway.wire import gpu_use as wire

_REPORT = allow(Role.VIEWER, kind=RequestKind.REPORT)
_HISTORY = problems({403: "it is not your team", 404: "there is no such team or pool"}, PROBLEMS)


def add_use_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """Add the routes of GPU use beside those of single jobs."""

    @app.get("/v1/use/now", dependencies=VIEWER, responses=PROBLEMS, tags=["use"])
    async def use_now() -> wire.UseNow:
        """What held GPUs did in the last window that was read, by pool."""
        return convert.supplies(await ledger.use_views.now())

    @app.get("/v1/use/history", dependencies=_REPORT, responses=_HISTORY, tags=["use"])
    async def show_history(
        request: Request,
        days: Annotated[int, Query(ge=1, le=use_history.MAX_DAYS, description="up to 7 by hour")] = 1,
        pool: Name = None,
        team: Annotated[Name, Query(description="with those inside it")] = None,
    ) -> wire.UseHistory:
        """What became of the GPU time that was held: busy, poorly used, idle, not measured."""
        return await use_history.report_history(ledger, fleets, caller_of(request), days, pool, team)
