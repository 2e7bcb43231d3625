"""Build the engine of each cluster. An engine's libraries are imported only if a fleet uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.control import Engine
from fairway.model.fleet import Cluster, EngineKind, Pool
from fairway.model.names import ClusterName

if TYPE_CHECKING:
    from fairway.engines.virtual.engine import VirtualEngine


def build_engine(cluster: Cluster, pools: tuple[Pool, ...]) -> Engine:
    """Build a new engine for a cluster."""
    match cluster.engine:
        case EngineKind.SLURM:
            from fairway.engines.slurm.engine import SlurmEngine  # noqa: PLC0415

            return SlurmEngine(cluster, pools)
        case EngineKind.KUBERNETES:
            from fairway.engines.kubernetes.engine import KubernetesEngine  # noqa: PLC0415

            return KubernetesEngine(cluster, pools)
        case EngineKind.VIRTUAL:
            from fairway.engines.virtual.engine import VirtualEngine  # noqa: PLC0415

            return VirtualEngine(cluster, pools)


class EngineFactory:
    """The engines of one server. A virtual cluster lives in memory, so all loops must share its engine."""

    def __init__(self, engine_server: str | None = None) -> None:
        """With an `engine_server`, which asks engines for this one, none is ever built here."""
        self._engine_server = engine_server
        self._virtual: dict[ClusterName, tuple[tuple[Pool, ...], VirtualEngine]] = {}

    def __call__(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Engine:
        """Return the engine for the loops; a virtual cluster's is reused, resized if its pools changed."""
        if cluster.engine is not EngineKind.VIRTUAL or self._engine_server:
            return self._build(cluster, pools)
        from fairway.engines.virtual.engine import VirtualEngine  # noqa: PLC0415

        entry = self._virtual.get(cluster.name)
        if entry is None:
            entry = (pools, VirtualEngine(cluster, pools))
        elif entry[0] != pools:
            entry[1].resize(pools)
            entry = (pools, entry[1])
        self._virtual[cluster.name] = entry
        return entry[1]

    def for_reads(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Engine:
        """Return an engine for plans and reads; an existing virtual cluster is used but not resized."""
        entry = self._virtual.get(cluster.name)
        if cluster.engine is EngineKind.VIRTUAL and entry is not None:
            return entry[1]
        return self._build(cluster, pools)

    def _build(self, cluster: Cluster, pools: tuple[Pool, ...]) -> Engine:
        if self._engine_server:
            # No FairwayError, which a caller might take for a cluster that is away: it is a defect.
            raise RuntimeError(f"{cluster.name} is to be asked by {self._engine_server} alone")
        return build_engine(cluster, pools)
