"""Import the policy of a cluster that was configured by hand. Nothing is written, to engines or ledger."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, Protocol

from fairway.engines.port import Governs, ImportedPolicy, Imports, Observes, Unreachable
from fairway.model.errors import PermanentError
from fairway.model.fleet import Cluster, Fleet
from fairway.model.names import ClusterName
from fairway.services.engine_cache import time_limit
from fairway.services.plans import BuildGovernor

IMPORT_SECONDS: Final = 120.0


class ImportableEngine(Observes, Governs, Imports, Protocol):
    """An engine whose policy can be imported."""


async def import_cluster(
    build: BuildGovernor, fleet: Fleet, name: ClusterName, seconds: float = IMPORT_SECONDS
) -> ImportedPolicy:
    """Describe the policy of one cluster as a fleet, which is partial if there are other clusters."""
    cluster, pools = fleet.cluster(name), fleet.pools_of(name)
    without_teams = replace(fleet, clusters=(cluster,), pools=pools, teams=(), chosen_teams={})
    timed_out = Unreachable(
        "Unreachable",
        f"cluster {name} did not return its policy within {seconds:g} s",
        "check whether its engine is overloaded:  fairway get clusters",
    )
    engine = build(*fleet.engine_parts(name))
    try:
        async with time_limit(seconds, timed_out):
            importable = _importable(engine, cluster)
            observed, found = await importable.observe(), await importable.find_policy()
            imported = await asyncio.to_thread(importable.import_policy, without_teams, observed, found)
            partial = len(fleet.clusters) > 1
            return replace(imported, fleet=replace(imported.fleet, partial=partial))
    finally:
        await engine.close()


def _importable(engine: object, cluster: Cluster) -> ImportableEngine:
    if not all(hasattr(engine, verb) for verb in ("observe", "find_policy", "import_policy")):
        raise PermanentError(
            "CannotImport",
            f"{cluster.name} is a {cluster.engine.value} cluster: its policy cannot be made outside Fairway",
            "write its teams into the fleet file:  fairway schema  describes it",
        )
    importable: ImportableEngine = engine  # type: ignore[assignment]
    return importable
