"""Mirror and meter a stage into a ledger, as a server does, beside the stage's own mirror."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from prometheus_client import CollectorRegistry

from fairway.control.loops.meter import MeterCluster
from fairway.control.loops.mirror import MirrorJobs
from fairway.control.metrics import JobMetrics, UsageMetrics
from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.ledger import Ledger
from fairway.services.fleets import Fleets, LastApplied
from tests.integration.jobs.kubernetes_jobs import Stage
from tests.kinds.pods import PodRecorder


@asynccontextmanager
async def metered_stage(
    stage: Stage, ledger: Ledger, *namespaces: str
) -> AsyncIterator[tuple[asyncio.Task[None], dict[str, PodRecorder]]]:
    """Run both loops, and watch the pods of namespaces; the loops' task and what was seen of the pods."""
    await ledger.revisions.add("fleet", "digest", "test")
    cluster = stage.fleet.clusters[0]
    applied = LastApplied(cluster.name, ledger, Fleets(ledger, lambda revision: stage.fleet))

    def build() -> KubernetesEngine:
        return KubernetesEngine(cluster, stage.fleet.pools)

    mirror = MirrorJobs(cluster.name, build, ledger, applied, JobMetrics(CollectorRegistry()))
    meter = MeterCluster(cluster.name, ledger, applied, UsageMetrics(CollectorRegistry()))
    mirroring, metering = [
        await ledger.leases.take(loop, cluster.name, "test", 3600) for loop in ("mirror", "meter")
    ]
    assert mirroring is not None and metering is not None

    async def serve() -> None:
        while True:
            await mirror(mirroring)
            await meter(metering)

    recorders = {namespace: PodRecorder(stage.instance, namespace) for namespace in namespaces}
    loops = asyncio.create_task(serve())
    tasks = [loops, *(asyncio.create_task(recorder.follow()) for recorder in recorders.values())]
    for recorder in recorders.values():
        await recorder.listed.wait()
    try:
        yield loops, recorders
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await mirror.close()
