"""The routes of what-if studies: the history that they replay."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import FastAPI, Query
from fastapi.responses import StreamingResponse

from fairway.api.auth import allow
from fairway.api.load import RequestKind
from fairway.api.routes.fleet import PROBLEMS, Responses, problems
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.services.fleets import Fleets
from fairway.services.job_history import export_jobs

MAX_DAYS: Final = 366

_REPORT = allow(Role.VIEWER, kind=RequestKind.REPORT)
_JOBS: Responses = {
    **problems({404: "there is no fleet yet", 422: "the days have too many jobs"}, PROBLEMS),
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}, "description": "a trace as CSV"},
}


def add_what_if_routes(app: FastAPI, ledger: Ledger, fleets: Fleets) -> None:
    """Add the route that exports jobs as a trace."""

    @app.get(
        "/v1/exports/jobs",
        dependencies=_REPORT,
        responses=_JOBS,
        tags=["jobs"],
        response_class=StreamingResponse,
    )
    async def export_past_jobs(days: Annotated[int, Query(ge=1, le=MAX_DAYS)] = 14) -> StreamingResponse:
        """What became of the jobs of the last days, as a trace: without their names, in pieces."""
        pieces = await export_jobs(ledger, await fleets.current(), datetime.now(UTC), days)
        return StreamingResponse(pieces, media_type="text/csv; charset=utf-8")
