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
from fairway.server.engines import Engines, build_engine
from fairway.services.applied_fleet import with_budget_holds
from fairway.services.engine_pool import EnginePool
from fairway.services.fleets import Fleets
from fairway.services.import_cluster import import_cluster
from fairway.services.job_actions import JobParts
from fairway.services.job_logs import JobLogReader
from fairway.services.plans import Planner
from fairway.services.policy_queries import PolicyParts
from fairway.services.submit_jobs import Submitter
from fairway.services.wakeup import Wakeup
from fairway.wire.policy import Imported


@asynccontextmanager
async def job_parts(
    ledger: Ledger, engines: Engines, fleets: Fleets, wakeup: Wakeup | None = None
) -> AsyncIterator[JobParts]:
    """Yield the services that submit jobs and read logs; closes their engines at the end."""
    pool = EnginePool(engines.to_plan)
    try:
        yield JobParts(Submitter(ledger, fleets, pool, wakeup=wakeup), JobLogReader(ledger, fleets, pool))
    finally:
        await pool.close()


_LOOK_SECONDS: Final = 20.0


log = structlog.get_logger("fairway.server")


def policy_parts(folder: Path, engines: Engines, ledger: Ledger) -> PolicyParts:
    """Build the policy services; relative paths in any fleet file refer to `folder`."""
    return PolicyParts(
        check=lambda text, source: check_text(text, source, folder),
        planner=Planner(engines.to_plan, with_holds=lambda fleet: with_budget_holds(fleet, ledger)),
        render=_render,
        import_policy=partial(_import, engines),
    )


async def _render(fleet: Fleet, cluster: ClusterName) -> Mapping[str, str]:
    from fairway.engines.slurm.policy.render import render_slurm  # noqa: PLC0415

    engine = build_engine(fleet.cluster(cluster), fleet.pools_of(cluster))
    version, settings = "", dict[str, str]()
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            found = await engine.find_policy()
            version, settings = found.engine_version, dict(found.settings)
    except (FairwayError, TimeoutError) as error:  # without a look the files say where to fill something in
        log.info("rendered without a look at the cluster", cluster=cluster, message=str(error))
    finally:
        await engine.close()
    return await asyncio.to_thread(render_slurm, fleet, cluster, version, settings)


async def _import(engines: Engines, fleet: Fleet, cluster: ClusterName) -> Imported:
    found = await import_cluster(engines.to_plan, fleet, cluster)
    text = compose_fleet(found.fleet, [(remark.about, remark.text) for remark in found.remarks])
    return Imported(cluster=cluster, fleet=text, remarks=len(found.remarks))
