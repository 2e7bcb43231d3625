"""Read what went wrong with GPUs and which nodes are closed for it, and ask to open one again."""

from __future__ import annotations

from datetime import datetime

from fairway.ledger import Ledger
from fairway.model.job import JobId
from fairway.services.convert import gpu_health as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.wire import gpu_health as wire


async def list_events(
    ledger: Ledger,
    *,
    since: datetime,
    cluster: str | None = None,
    node: str | None = None,
    gpu: str | None = None,
    job: JobId | None = None,
    limit: int,
) -> list[wire.GpuEvent]:
    """List events, the newest first; `gpu` is a UUID or serial number."""
    if job is not None:
        return [convert.gpu_event(event) for event in await ledger.gpu_events.of_job(job, limit)]
    nodes = None if node is None else [node]
    found = await ledger.gpu_events.listed(since, cluster=cluster, nodes=nodes, uuid=gpu, limit=limit)
    return [convert.gpu_event(event) for event in found]


async def list_failing(
    ledger: Ledger, *, since: datetime, cluster: str | None = None, limit: int
) -> list[wire.FailingGpu]:
    """List GPUs whose hardware failed, those that fail in most weeks first."""
    return [convert.failing_gpu(gpu) for gpu in await ledger.gpu_events.failing(since, cluster, limit)]


async def list_cordons(ledger: Ledger, cluster: str | None = None) -> list[wire.Cordon]:
    """List the nodes that Fairway closed."""
    return [convert.cordon(one) for one in await ledger.cordons.open(cluster)]


async def uncordon(ledger: Ledger, request: wire.UncordonRequest, by: str) -> wire.Cordon:
    """Ask that a node be opened again that Fairway closed; the health loop does so within seconds."""
    open_ = await ledger.cordons.open(request.cluster)
    found = next((one for one in open_ if one.node == request.node), None)
    if found is None or not await ledger.cordons.ask_to_lift(request.cluster, request.node, by):
        raise RequestError(
            ErrorKind.NOT_FOUND,
            "NotCordoned",
            f"Fairway did not cordon node {request.node} of cluster {request.cluster}",
            "fairway get cordons  lists the nodes that it cordoned; others are uncordoned with the "
            "engine's tools",
        )
    return convert.cordon(found).model_copy(update={"lift_asked_by": by})
