"""What a platform team writes: a fleet of clusters and pools, shared by teams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType

from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.price import DEFAULT_COST_RULES, DEFAULT_PRICING, CostRules, Pricing
from fairway.model.team import (
    DEFAULT_FAIRNESS,
    DEFAULT_PRIORITIES,
    Fairness,
    Priority,
    Supply,
    Team,
    default_teams,
)


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
    tools: str | None = None
    """Folder of `squeue` and `sacct`; None: they are on the server's PATH."""


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
class Folders:
    """Where jobs of a cluster keep what outlives them."""

    logs: str | None = None
    """Slurm: the folder that what jobs print goes to, as the nodes see it. None: their working folder, and
    only they can read it."""
    logs_seen_at: str | None = None
    """The same folder as the Fairway server sees it; None: by the same path."""
    checkpoints: str | None = None
    """A shared folder for checkpoints as the nodes see it; on Kubernetes `pvc/CLAIM` or a host path."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """One engine's domain: a Slurm ClusterName, an API server, or a virtual cluster."""

    name: ClusterName
    connection: Connection
    folders: Folders = Folders()
    overhead: Mapping[str, Decimal] = field(default_factory=lambda: MappingProxyType({}))
    """What it costs a month beside its GPUs, by what for: power, space, people, storage."""

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
    nodes_per_rack: int | None = None
    """How many nodes, in the order of their names, share a rack; None: all of them."""


Place = SlurmPlace | KubernetesPlace | VirtualPlace


@dataclass(frozen=True, slots=True)
class Pool:
    """Like GPUs on one cluster under one price and capacity kind."""

    name: PoolName
    cluster: ClusterName
    gpu: GpuType
    capacity: Capacity
    price: Decimal
    """List price per GPU-hour, in the fleet's currency, before the first of `pricing.steps`."""
    place: Place
    slices: tuple[SliceName, ...] = ()
    """MIG profiles the GPUs are cut into; empty: whole GPUs."""
    topology: tuple[str, ...] = ()
    """Node labels from the widest to the narrowest level, e.g. block, rack."""
    gpus: int | None = None
    """How many GPUs it has, if the file says so; the engine tells otherwise."""
    pricing: Pricing = DEFAULT_PRICING

    def list_price(self, day: date) -> Decimal:
        """Per GPU-hour on a day, before discounts and commitments."""
        steps = (step.per_gpu_hour for step in reversed(self.pricing.steps) if step.since <= day)
        return next(steps, self.price)

    @property
    def supplies(self) -> tuple[Supply, ...]:
        """What of it can be granted: its whole GPUs, or each kind of slice they are cut into."""
        return tuple(Supply(self.name, s) for s in self.slices) or (Supply(self.name),)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All clusters under one policy."""

    name: str
    currency: str
    clusters: tuple[Cluster, ...]
    pools: tuple[Pool, ...]
    teams: tuple[Team, ...] = ()
    """Every team, parents before children, otherwise in the order of the file."""
    priorities: tuple[Priority, ...] = DEFAULT_PRIORITIES
    """By rank, the highest first; exactly one is the default."""
    fairness: Fairness = DEFAULT_FAIRNESS
    chosen_teams: Mapping[UserName, TeamName] = field(default_factory=lambda: MappingProxyType({}))
    """The default team of whoever the file gives one (`users`); members of several teams have one here."""
    cost: CostRules = DEFAULT_COST_RULES

    def cluster(self, name: str) -> Cluster:
        """The cluster called `name`; a fleet from `files` has one for each pool."""
        return next(c for c in self.clusters if c.name == name)

    def pools_of(self, cluster: str) -> tuple[Pool, ...]:
        """The pools on one cluster, in the order of the file."""
        return tuple(p for p in self.pools if p.cluster == cluster)

    def pool(self, name: str) -> Pool:
        """The pool called `name`; a fleet from `files` has one for each grant."""
        return next(p for p in self.pools if p.name == name)

    @property
    def default_priority(self) -> Priority:
        """What a job without a word gets."""
        return next(p for p in self.priorities if p.default)

    def priority(self, name: PriorityName) -> Priority:
        """The priority called `name`."""
        return next(p for p in self.priorities if p.name == name)

    def default_teams(self) -> dict[UserName, TeamName]:
        """The team of each member's jobs that name none."""
        return default_teams(self.teams, self.chosen_teams)
