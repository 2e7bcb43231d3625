"""Build the services that the API's routes for jobs and policy need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from fairway.files import check_text
from fairway.files.fleet.write import compose_fleet
from fairway.ledger import Ledger
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.server.engines import EngineFactory
from fairway.services.engine_cache import EngineCache
from fairway.services.fleets import Fleets, with_budget_holds
from fairway.services.import_cluster import import_cluster
from fairway.services.job_changes import JobChanger
from fairway.services.job_logs import JobLogReader
from fairway.services.jobs import JobServices, OpenJobLimits, Submitter
from fairway.services.model_worker import ModelWorker
from fairway.services.plans import Planner
from fairway.services.policy import PolicyServices
from fairway.services.remedies import RemedyFinder, compute_remedies
from fairway.services.snapshots import SnapshotReader
from fairway.services.wakeup import Wakeup
from fairway.services.why import JobExplainer
from fairway.wire.policy import Imported

_RENDER_READ_SECONDS: Final = 20.0

log = structlog.get_logger("fairway.server")


@asynccontextmanager
async def build_job_services(
    ledger: Ledger,
    engines: EngineFactory,
    fleets: Fleets,
    wakeup: Wakeup | None = None,
    limits: OpenJobLimits | None = None,
) -> AsyncIterator[JobServices]:
    """Yield the services that submit jobs and read logs; closes their engines at the end."""
    cache, worker = EngineCache(engines.for_reads), ModelWorker()
    finder = None
    try:
        submitter = Submitter(ledger, fleets, cache, wakeup=wakeup, limits=limits)
        changer = JobChanger(ledger, submitter, wakeup)
        finder = RemedyFinder(
            ledger,
            fleets,
            SnapshotReader(ledger, fleets),
            submitter,
            changer,
            partial(worker.run, compute_remedies),
        )
        yield JobServices(
            submitter,
            JobLogReader(ledger, fleets, cache),
            JobExplainer(ledger, fleets, cache, submitter.options, finder),
            changer,
        )
    finally:
        if finder is not None:
            finder.close()
        worker.close()
        await cache.close()


def build_policy_services(folder: Path, engines: EngineFactory, ledger: Ledger) -> PolicyServices:
    """Build the policy services; relative paths in any fleet file refer to `folder`."""
    return PolicyServices(
        check=lambda text, source: check_text(text, source, folder),
        planner=Planner(engines.for_reads, with_holds=lambda fleet: with_budget_holds(fleet, ledger)),
        render=partial(_render, engines),
        import_policy=partial(_import, engines),
    )


async def _render(engines: EngineFactory, fleet: Fleet, cluster: ClusterName) -> Mapping[str, str]:
    from fairway.engines.slurm.policy.render import render_slurm  # noqa: PLC0415

    engine = engines.for_reads(*fleet.engine_parts(cluster))
    version, settings = "", dict[str, str]()
    try:
        async with asyncio.timeout(_RENDER_READ_SECONDS):
            found = await engine.find_policy()
            version, settings = found.engine_version, dict(found.settings)
    except (FairwayError, TimeoutError) as error:  # without them the files say where to fill something in
        log.info("rendered without a look at the cluster", cluster=cluster, message=str(error))
    finally:
        await engine.close()
    return await asyncio.to_thread(render_slurm, fleet, cluster, version, settings)


async def _import(engines: EngineFactory, fleet: Fleet, cluster: ClusterName) -> Imported:
    imported = await import_cluster(engines.for_reads, fleet, cluster)
    text = compose_fleet(imported.fleet, [(remark.about, remark.text) for remark in imported.remarks])
    return Imported(cluster=cluster, fleet=text, remarks=len(imported.remarks))
