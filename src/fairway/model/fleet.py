"""What a platform team writes: a fleet of clusters and pools. (Teams come next.)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType

from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, SliceName


class EngineKind(StrEnum):
    """Who schedules on a cluster."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    VIRTUAL = "virtual"


class Capacity(StrEnum):
    """How the GPUs of a pool are paid for, and whether they can vanish."""

    OWNED = "owned"
    RESERVED = "reserved"
    ON_DEMAND = "on-demand"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class SlurmConnection:
    """How to reach a slurmrestd. Secrets are named by the file they are in, never held here."""

    url: str
    user: str = "fairway"
    jwt_key_file: str | None = None
    """HS256 key of the cluster; Fairway signs its own short-lived tokens."""
    token_file: str | None = None
    """A ready token (`scontrol token`), read again whenever it is needed."""


@dataclass(frozen=True, slots=True)
class KubernetesConnection:
    """How to reach an API server: by kubeconfig, or by the pod's own service account."""

    kubeconfig: str | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class VirtualConnection:
    """A cluster in this server's memory: nothing to reach."""


Connection = SlurmConnection | KubernetesConnection | VirtualConnection


@dataclass(frozen=True, slots=True)
class Cluster:
    """One engine's domain: a Slurm ClusterName, an API server, or a virtual cluster."""

    name: ClusterName
    connection: Connection

    @property
    def engine(self) -> EngineKind:
        match self.connection:
            case SlurmConnection():
                return EngineKind.SLURM
            case KubernetesConnection():
                return EngineKind.KUBERNETES
            case VirtualConnection():
                return EngineKind.VIRTUAL


@dataclass(frozen=True, slots=True)
class SlurmPlace:
    """Where a pool lives on Slurm: a partition and, unless the partition has only one, a GRES type."""

    partition: str
    gres: str | None = None


@dataclass(frozen=True, slots=True)
class KubernetesPlace:
    """Where a pool lives on Kubernetes: the nodes with these labels, and the taints they carry."""

    node_labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    taints: tuple[str, ...] = ()
    resource: str = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class VirtualPlace:
    """How large a pool of a virtual cluster is."""

    nodes: int
    gpus_per_node: int = 8
    slices_per_gpu: Mapping[SliceName, int] = field(default_factory=lambda: MappingProxyType({}))
    """How many slices of each kind every GPU of the pool is cut into."""


Place = SlurmPlace | KubernetesPlace | VirtualPlace


@dataclass(frozen=True, slots=True)
class Pool:
    """Like GPUs on one cluster under one price and capacity kind."""

    name: PoolName
    cluster: ClusterName
    gpu: GpuType
    capacity: Capacity
    price: Decimal
    """Per GPU-hour, in the fleet's currency."""
    place: Place
    slices: tuple[SliceName, ...] = ()
    """MIG profiles the GPUs are cut into; empty: whole GPUs."""
    topology: tuple[str, ...] = ()
    """Node labels from the widest to the narrowest level, e.g. block, rack."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """All clusters under one policy."""

    name: str
    currency: str
    clusters: tuple[Cluster, ...]
    pools: tuple[Pool, ...]

    def cluster(self, name: str) -> Cluster:
        """The cluster called `name`; a fleet from `files` has one for each pool."""
        return next(c for c in self.clusters if c.name == name)

    def pools_of(self, cluster: str) -> tuple[Pool, ...]:
        """The pools on one cluster, in the order of the file."""
        return tuple(p for p in self.pools if p.cluster == cluster)
