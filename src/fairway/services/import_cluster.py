"""Reads the policy that people made on a cluster by hand. Nothing is written, to engines or ledger."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, Protocol

from fairway.engines.port import Governs, Imported, Imports, Observes, Unreachable
from fairway.model.errors import PermanentError
from fairway.model.fleet import Cluster, Fleet
from fairway.model.names import ClusterName
from fairway.services.engine_pool import time_limit
from fairway.services.plans import BuildGovernor

IMPORT_SECONDS: Final = 120.0


class Reads(Observes, Governs, Imports, Protocol):
    """An engine whose policy can be imported."""


async def import_cluster(
    build: BuildGovernor, fleet: Fleet, name: ClusterName, seconds: float = IMPORT_SECONDS
) -> Imported:
    """Cluster `name` of `fleet` in Fairway's words."""
    cluster, pools = fleet.cluster(name), fleet.pools_of(name)
    alone = replace(fleet, clusters=(cluster,), pools=pools, teams=(), chosen_teams={})
    late = Unreachable(
        "Unreachable",
        f"cluster {name} did not show its policy within {seconds:g} s",
        "look whether its engine is overloaded:  fairway get clusters",
    )
    engine = build(cluster, pools)
    try:
        async with time_limit(seconds, late):
            reader = _reader(engine, cluster)
            seen, found = await reader.observe(), await reader.find_policy()
            return await asyncio.to_thread(reader.import_policy, alone, seen, found)
    finally:
        await engine.close()


def _reader(engine: object, cluster: Cluster) -> Reads:
    if not all(hasattr(engine, verb) for verb in ("observe", "find_policy", "import_policy")):
        raise PermanentError(
            "CannotImport",
            f"{cluster.name} is a {cluster.engine.value} cluster: nobody makes policy on it by hand",
            "write its teams into the fleet file:  fairway schema  says how",
        )
    reader: Reads = engine  # type: ignore[assignment]
    return reader
