"""The routes of what goes wrong with GPUs: events, GPUs that fail, nodes that are closed for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import FastAPI, Query, Request

from fairway.api.auth import allow, caller_of
from fairway.api.routes.fleet import PROBLEMS, VIEWER, Limit, Name, problems
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.services import gpu_health
from fairway.services.job_references import find_jobs
from fairway.wire import gpu_health as wire
from fairway.wire.fleet import PER_PAGE, Page

OPERATOR = allow(Role.OPERATOR)
Days = Annotated[int, Query(ge=1, le=400, description="how far back")]
Job = Annotated[str | None, Query(max_length=300, description="only on GPUs of this job")]
_NO_JOB = problems({404: "there is no such job", 409: "several jobs match it"}, PROBLEMS)
_NOT_CORDONED = problems({404: "Fairway did not close that node"}, PROBLEMS)


def add_gpu_health_routes(app: FastAPI, ledger: Ledger) -> None:
    """Add the routes."""

    @app.get("/v1/gpu-events", dependencies=VIEWER, responses=_NO_JOB, tags=["fleet"])
    async def list_gpu_events(
        cluster: Name = None,
        node: Name = None,
        gpu: Name = None,
        job: Job = None,
        days: Days = 30,
        limit: Limit = PER_PAGE,
    ) -> Page[wire.GpuEvent]:
        """What went wrong with GPUs, the newest first; `gpu` is a UUID or serial number."""
        rows = await gpu_health.list_events(
            ledger,
            since=_since(days),
            cluster=cluster,
            node=node,
            gpu=gpu,
            job=(await find_jobs(ledger, [job]))[0].id if job else None,
            limit=limit,
        )
        return Page(items=rows, next_cursor=None)

    @app.get("/v1/failing-gpus", dependencies=VIEWER, responses=PROBLEMS, tags=["fleet"])
    async def list_failing_gpus(
        cluster: Name = None, days: Days = 90, limit: Limit = PER_PAGE
    ) -> Page[wire.FailingGpu]:
        """GPUs whose hardware failed, by UUID, those that fail in most weeks first."""
        rows = await gpu_health.list_failing(ledger, since=_since(days), cluster=cluster, limit=limit)
        return Page(items=rows, next_cursor=None)

    @app.get("/v1/cordons", dependencies=VIEWER, responses=PROBLEMS, tags=["fleet"])
    async def list_cordons(cluster: Name = None) -> Page[wire.Cordon]:
        """Nodes that Fairway closed to new jobs because of broken GPUs."""
        return Page(items=await gpu_health.list_cordons(ledger, cluster), next_cursor=None)

    @app.post("/v1/uncordon", dependencies=OPERATOR, responses=_NOT_CORDONED, tags=["fleet"])
    async def uncordon(body: wire.UncordonRequest, request: Request) -> wire.Cordon:
        """Uncordon a node that Fairway cordoned. This takes a few seconds."""
        return await gpu_health.uncordon(ledger, body, caller_of(request).name)


def _since(days: int) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)
