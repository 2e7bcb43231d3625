"""Define the fleet: clusters and pools shared by teams, as written by a platform team."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from fairway.model.budget import Budget
from fairway.model.channel import Channels
from fairway.model.diagnosis import DEFAULT_DIAGNOSIS, DiagnosisSettings
from fairway.model.gpu import GpuType, replicas_of
from fairway.model.gpu_health import HealthRule
from fairway.model.idle import DEFAULT_IDLE, IdleRules
from fairway.model.names import (
    ClusterName,
    PoolName,
    PriorityName,
    SliceName,
    TeamName,
    UserName,
    is_system_user,
)
from fairway.model.price import DEFAULT_COST_RULES, DEFAULT_PRICING, CostRules, Pricing
from fairway.model.slo import Slo
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
    """The scheduler of a cluster."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    VIRTUAL = "virtual"


class Capacity(StrEnum):
    """How the GPUs of a pool are paid for, and whether the provider can take them back."""

    OWNED = "owned"
    RESERVED = "reserved"
    ON_DEMAND = "on-demand"
    SPOT = "spot"


class ExistingWorkloads(StrEnum):
    """What a policy does with GPU work that is no team's, or no Job's, from before Fairway."""

    LEAVE = "leave"
    """Kubernetes: pods of such workloads come back. Slurm: jobs of accounts that are no team run."""
    REFUSE = "refuse"
    """The next pods and jobs of it are refused like those of new ones."""


DEFAULT_SLURM_USER: Final = "fairway"


@dataclass(frozen=True, slots=True)
class SlurmConnection:
    """The connection to a slurmrestd. Secrets are referenced by file, never stored here."""

    url: str
    user: str = DEFAULT_SLURM_USER
    jwt_key_file: str | None = None
    """File with the cluster's HS256 key, with which Fairway signs short-lived tokens."""
    token_file: str | None = None
    """File with a ready-made token (`scontrol token`), read again whenever it is needed."""
    tools: str | None = None
    """Folder of `squeue` and `sacct`; None if they are on the server's PATH."""
    existing_workloads: ExistingWorkloads = ExistingWorkloads.LEAVE


@dataclass(frozen=True, slots=True)
class KubernetesConnection:
    """The connection to an API server: by kubeconfig, or by the pod's service account if that is None."""

    kubeconfig: str | None = None
    context: str | None = None
    existing_workloads: ExistingWorkloads = ExistingWorkloads.LEAVE


@dataclass(frozen=True, slots=True)
class VirtualConnection:
    """A cluster in this server's memory, which needs no connection."""


Connection = SlurmConnection | KubernetesConnection | VirtualConnection


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of a cluster for data that outlives jobs: logs and checkpoints."""

    logs: str | None = None
    """Slurm: the folder for jobs' output, as the nodes see it. None if output is discarded (`/dev/null`)."""
    logs_seen_at: str | None = None
    """The path of `logs` on the Fairway server; None if it is the same."""
    checkpoints: str | None = None
    """A shared folder for checkpoints as the nodes see it; on Kubernetes `pvc/CLAIM` or a host path."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Where the metrics of a cluster's GPUs are: a Prometheus, or what speaks its query API."""

    prometheus: str
    """Its address, without /api/v1."""
    select: str = ""
    """Label matchers that select this cluster's series, where it has those of several: `cluster="hpc"`."""
    token_file: str | None = None
    """File with a bearer token, read again whenever it is needed."""
    ca_file: str | None = None
    """File with the certificates that it is trusted by; None for the system's."""


@dataclass(frozen=True, slots=True)
class SiteEnergy:
    """What a site adds to the energy of its GPUs, and how its electricity is generated."""

    co2_grams_per_kwh: Decimal | None = None
    """The grid's factor; None: not known, and no carbon dioxide is reported."""
    pue: Decimal = Decimal(1)
    """Power usage effectiveness: the energy of the whole site for each unit that its machines take."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of one engine: a Slurm ClusterName, a Kubernetes API server, or a virtual cluster."""

    name: ClusterName
    connection: Connection
    folders: Folders = Folders()
    overhead: Mapping[str, Decimal] = field(default_factory=lambda: MappingProxyType({}))
    """Monthly costs other than GPUs, by name: power, space, people, storage."""
    telemetry: Telemetry | None = None
    """None: what its GPUs do is not measured."""
    energy: SiteEnergy = SiteEnergy()

    def without_money(self) -> Cluster:
        """Return the cluster without what only reports use: overhead and the price of its energy."""
        return replace(self, overhead=MappingProxyType({}), energy=SiteEnergy())

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
    """The location of a pool on Slurm: partitions over its nodes and, if those have several, a GRES type."""

    partition: str
    """The partition that Fairway's own jobs are sent to."""
    gres: str | None = None
    other_partitions: tuple[str, ...] = ()
    """Other partitions over the same nodes. Jobs that name one of them use the same GPUs."""

    @property
    def partitions(self) -> tuple[str, ...]:
        """Return every partition over the pool's nodes, beginning with the one for Fairway's own jobs."""
        return (self.partition, *self.other_partitions)


@dataclass(frozen=True, slots=True)
class KubernetesPlace:
    """The location of a pool on Kubernetes: the nodes with these labels, and their taints."""

    node_labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    taints: tuple[str, ...] = ()
    resource: str = "nvidia.com/gpu"
    """The extended resource of whole GPUs and of shared ones, or the name by which Kueue counts a class."""
    device_class: str | None = None
    """The DeviceClass of whole GPUs, where pods claim them (dynamic resource allocation)."""
    slice_classes: Mapping[SliceName, str] = field(default_factory=lambda: MappingProxyType({}))
    """The DeviceClass of each MIG profile, where pods claim them."""


def class_resource(device_class: str) -> str:
    """Return the resource by which Kueue counts the devices of a class, unless a pool names another."""
    return f"{device_class}/gpu"


@dataclass(frozen=True, slots=True)
class VirtualPlace:
    """The size of a pool on a virtual cluster."""

    nodes: int
    gpus_per_node: int = 8
    slices_per_gpu: Mapping[SliceName, int] = field(default_factory=lambda: MappingProxyType({}))
    """The number of slices of each profile that every GPU is cut into."""
    nodes_per_rack: int | None = None
    """The number of nodes per rack, in the order of their names; None if all share one rack."""


Place = SlurmPlace | KubernetesPlace | VirtualPlace


@dataclass(frozen=True, slots=True)
class Pool:
    """GPUs of one type on one cluster, with one price and capacity kind."""

    name: PoolName
    cluster: ClusterName
    gpu: GpuType
    capacity: Capacity
    price: Decimal
    """List price per GPU-hour, in the fleet's currency, before the first of `pricing.steps`."""
    place: Place
    slices: tuple[SliceName, ...] = ()
    """MIG profiles that the GPUs are cut into, or how they are shared; empty for whole GPUs."""
    topology: tuple[str, ...] = ()
    """Node labels from the widest to the narrowest level, e.g. block, rack."""
    gpus: int | None = None
    """The number of GPUs if stated in the file; None if only the engine knows."""
    pricing: Pricing = DEFAULT_PRICING

    def list_price(self, day: date) -> Decimal:
        """Return the price per GPU-hour on a day, before discounts and commitments."""
        steps = (step.per_gpu_hour for step in reversed(self.pricing.steps) if step.since <= day)
        return next(steps, self.price)

    def without_money(self) -> Pool:
        """Return the pool without its prices."""
        return replace(self, price=Decimal(0), pricing=DEFAULT_PRICING)

    @property
    def supplies(self) -> tuple[Supply, ...]:
        """Return the pool's supplies: its whole GPUs, or each profile that they are cut into."""
        return tuple(Supply(self.name, s) for s in self.slices) or (Supply(self.name),)

    @property
    def is_shared(self) -> bool:
        """Return whether jobs share its GPUs without cutting them: its only slice is `shared-N`."""
        return bool(self.slices) and replicas_of(self.slices[0]) is not None


@dataclass(frozen=True, slots=True)
class NamedBudget:
    """A budget of the fleet, of a team or of a project, which may count some of the pools only.

    It only warns: an engine holds whole teams, and so would stop work that the budget does not count.
    """

    name: str
    """Not the name of a team: a team's own budget has it."""
    budget: Budget
    team: TeamName | None = None
    """With all teams inside it; None: of all, or of the project."""
    project: str | None = None
    pools: tuple[PoolName, ...] = ()
    """Empty: all, and what belongs to no pool."""
    capacity: tuple[Capacity, ...] = ()
    """Empty: all, and what belongs to no pool."""

    @property
    def is_restricted(self) -> bool:
        """Return whether it counts some of the pools only."""
        return bool(self.pools or self.capacity)

    def counts(self, pool: Pool) -> bool:
        """Return whether it counts a pool."""
        return (not self.pools or pool.name in self.pools) and (
            not self.capacity or pool.capacity in self.capacity
        )

    @property
    def scope(self) -> str:
        """Describe what it counts: `team nlp, on-demand and spot capacity`."""
        of = f"team {self.team}" if self.team else f"project {self.project}" if self.project else "the fleet"
        pools = f", {' and '.join(self.pools)}" if self.pools else ""
        kinds = f", {' and '.join(self.capacity)} capacity" if self.capacity else ""
        return f"{of}{pools}{kinds}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """All clusters and pools under one policy, and the teams that share them."""

    name: str
    currency: str
    clusters: tuple[Cluster, ...]
    pools: tuple[Pool, ...]
    teams: tuple[Team, ...] = ()
    """All teams, parents before children, otherwise in file order."""
    priorities: tuple[Priority, ...] = DEFAULT_PRIORITIES
    """Sorted by rank, highest first; exactly one is the default."""
    fairness: Fairness = DEFAULT_FAIRNESS
    chosen_teams: Mapping[UserName, TeamName] = field(default_factory=lambda: MappingProxyType({}))
    """Default teams set under `users` in the file; required for members of several teams."""
    cost: CostRules = DEFAULT_COST_RULES
    diagnosis: DiagnosisSettings = DEFAULT_DIAGNOSIS
    health: tuple[HealthRule, ...] = ()
    """What is done about broken GPUs, the first rule that matches; without any, they are shown."""
    partial: bool = False
    """Whether the file describes some clusters of the fleet only: those it does not name are not removed."""
    notify: Channels | None = None
    """Where notices to the operators go."""
    idle: IdleRules = DEFAULT_IDLE
    budgets: tuple[NamedBudget, ...] = ()
    """Budgets besides those of teams, in file order."""
    slos: tuple[Slo, ...] = ()
    """Service level objectives, in file order."""

    def is_reserved(self, user: str) -> bool:
        """Return whether nobody may submit as `user`: a system user, or Fairway's own on a Slurm cluster."""
        own = (c.connection.user for c in self.clusters if isinstance(c.connection, SlurmConnection))
        return is_system_user(user) or user in own

    def cluster(self, name: str) -> Cluster:
        """Return the cluster named `name`; a fleet from `files` has one for each pool."""
        return next(c for c in self.clusters if c.name == name)

    def pools_of(self, cluster: str) -> tuple[Pool, ...]:
        """Return the pools on one cluster, in file order."""
        return tuple(p for p in self.pools if p.cluster == cluster)

    def engine_parts(self, cluster: str) -> tuple[Cluster, tuple[Pool, ...]]:
        """Return what the engine of a cluster is built from, and built again if it differs.

        It has no money settings: a new price must not disturb a cluster.
        """
        pools = tuple(pool.without_money() for pool in self.pools_of(cluster))
        return self.cluster(cluster).without_money(), pools

    def pool(self, name: str) -> Pool:
        """Return the pool named `name`; a fleet from `files` has one for each grant."""
        return next(p for p in self.pools if p.name == name)

    @property
    def default_priority(self) -> Priority:
        """Return the priority of jobs that name none."""
        return next(p for p in self.priorities if p.default)

    def priority(self, name: PriorityName) -> Priority:
        """Return the priority named `name`."""
        return next(p for p in self.priorities if p.name == name)

    def default_teams(self) -> dict[UserName, TeamName]:
        """Return the default team of each member, for jobs that name none."""
        return default_teams(self.teams, self.chosen_teams)
