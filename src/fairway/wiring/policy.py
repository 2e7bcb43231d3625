"""What the API's routes of policy are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from fairway.api.policy_routes import PolicyParts
from fairway.api.policy_wire import Imported
from fairway.control.applied import held_fleet
from fairway.control.importing import import_cluster
from fairway.control.planning import Planner
from fairway.files import check_text
from fairway.files.compose import compose_fleet
from fairway.ledger import Ledger
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.wiring.engines import Engines, build_engine

_LOOK_SECONDS: Final = 20.0

log = structlog.get_logger("fairway.server")


def policy_parts(folder: Path, engines: Engines, ledger: Ledger) -> PolicyParts:
    """`folder` is where relative paths of a fleet file count from, whoever sends it."""
    return PolicyParts(
        check=lambda text, source: check_text(text, source, folder),
        planner=Planner(engines.to_plan, held=lambda fleet: held_fleet(fleet, ledger)),
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
