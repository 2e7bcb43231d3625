"""What the API's routes of policy are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairway.api.policy_routes import PolicyParts
from fairway.api.policy_wire import Imported
from fairway.control.importing import import_cluster
from fairway.control.planning import Planner
from fairway.files import check_text
from fairway.files.compose import compose_fleet
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.wiring.engines import Engines, build_engine


def policy_parts(folder: Path, engines: Engines) -> PolicyParts:
    """`folder` is where relative paths of a fleet file count from, whoever sends it."""
    return PolicyParts(
        check=lambda text, source: check_text(text, source, folder),
        planner=Planner(engines.to_plan),
        render=_render,
        import_policy=_import,
    )


def _render(fleet: Fleet, cluster: ClusterName, version: str) -> Mapping[str, str]:
    from fairway.engines.slurm.policy.render import render_slurm  # noqa: PLC0415

    return render_slurm(fleet, cluster, version)


async def _import(fleet: Fleet, cluster: ClusterName) -> Imported:
    found = await import_cluster(build_engine, fleet, cluster)
    text = compose_fleet(found.fleet, [(remark.about, remark.text) for remark in found.remarks])
    return Imported(cluster=cluster, fleet=text, remarks=len(found.remarks))
