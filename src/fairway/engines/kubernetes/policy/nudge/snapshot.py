"""Takes a snapshot of a cluster in the fleet's words: who holds what where, and who waits. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from fairway.engines.kubernetes.api.wire import NodeObject, ObjectMeta, PodObject, PodSpec
from fairway.engines.kubernetes.nodes.devices import whole_number
from fairway.engines.kubernetes.nodes.facts import requested
from fairway.engines.kubernetes.policy.fields import read_taint
from fairway.engines.kubernetes.policy.quota import resource
from fairway.engines.kubernetes.policy.workloads import TemplateSpec, Toleration, Workload
from fairway.model.fleet import Fleet, KubernetesPlace, Pool
from fairway.model.names import ClusterName
from fairway.model.team import Supply, Team, TeamTree

LOW_SUFFIX: Final = ".low"


class JobPodMeta(ObjectMeta, frozen=True, gc=False):
    """A pod's identity and the job it belongs to."""

    labels: dict[str, str] = {}  # noqa: RUF012  (msgspec copies an empty default)


class JobPod(Struct, frozen=True, gc=False):
    """A bound, unfinished pod."""

    metadata: JobPodMeta
    spec: PodSpec

    @property
    def job(self) -> str:
        labels = self.metadata.labels
        name = labels.get("batch.kubernetes.io/job-name") or labels.get("job-name") or self.metadata.name
        return f"{self.metadata.namespace}/{name}"


@dataclass(frozen=True, slots=True)
class RunningWorkload:
    """A running job: devices of one supply, on nodes."""

    workload: Workload
    team: Team
    low: bool
    supply: Supply
    devices: int
    nodes: Mapping[str, int]
    """Devices by node."""

    @property
    def priority(self) -> int:
        return self.workload.spec.priority


@dataclass(frozen=True, slots=True)
class WaitingWorkload:
    """A waiting job: so many pods of so many devices each, of any of these supplies."""

    workload: Workload
    team: Team
    low: bool
    queue: str
    """Its ClusterQueue."""
    supplies: tuple[Supply, ...]
    pods: int
    devices_a_pod: int
    together: str
    """The node label that all its nodes must share; empty: none."""

    @property
    def devices(self) -> int:
        return self.pods * self.devices_a_pod


@dataclass(frozen=True, slots=True)
class SchedulableNode:
    """A node that takes work, with its devices of one supply."""

    name: str
    labels: Mapping[str, str]
    total: int
    free: int


@dataclass(slots=True)
class Snapshot:
    """Running and waiting workloads of a cluster, its nodes, and what each team holds, at one moment."""

    fleet: Fleet
    tree: TeamTree
    holdings: list[RunningWorkload] = field(default_factory=list)
    asking: list[WaitingWorkload] = field(default_factory=list)
    rooms: dict[Supply, list[SchedulableNode]] = field(default_factory=dict)
    used: Counter[tuple[str, Supply]] = field(default_factory=Counter)
    """Devices held by a team and its child teams, without low jobs: those are everybody's to preempt."""
    own: Counter[tuple[str, Supply]] = field(default_factory=Counter)
    """The same without the child teams."""

    def guarantee(self, team: Team, supply: Supply) -> int:
        grant = team.grant(supply)
        return 0 if grant is None else grant.guarantee

    def left(self, team: Team, supply: Supply) -> int:
        """Return its guarantee less what it promised to its child teams."""
        return self.guarantee(team, supply) - self.tree.guaranteed_to_children(team, supply)

    def entitled(self, asking: WaitingWorkload, supply: Supply) -> bool:
        """Return whether it is within a guarantee: its team's, or what is left of an ancestor's."""
        return not asking.low and any(
            self.used[level.name, supply] + asking.devices <= self.guarantee(level, supply)
            for level in self.line(asking.team)
        )

    def line(self, team: Team) -> Iterator[Team]:
        """Yield the team and its ancestors."""
        yield team
        yield from self.tree.ancestors(team)


def take_snapshot(
    fleet: Fleet,
    cluster: ClusterName,
    workloads: Sequence[Workload],
    pods: Iterable[JobPod],
    nodes: Sequence[NodeObject],
    leads_to: Mapping[str, str],
) -> Snapshot:
    """Build the snapshot from lists. `leads_to`: LocalQueue `namespace/name` -> ClusterQueue."""
    pools = tuple(p for p in fleet.pools_of(cluster) if isinstance(p.place, KubernetesPlace))
    supplies = {s: p for p in pools for s in p.supplies}
    snapshot = Snapshot(fleet, TeamTree(fleet.teams))
    placed, taken = _by_place(pods, supplies)
    snapshot.rooms = {s: list(_rooms(s, p, nodes, taken)) for s, p in supplies.items()}
    for workload in workloads:
        if workload.finished or workload.metadata.namespace not in snapshot.tree:
            continue
        team = snapshot.tree[workload.metadata.namespace]
        if workload.status.admission is not None:
            snapshot.holdings += _holdings(workload, team, placed, supplies)
        elif workload.spec.active and len(workload.spec.pod_sets) == 1:
            queue = leads_to.get(f"{team.name}/{workload.spec.queue_name}", "")
            if asking := _asking(workload, team, queue, supplies):
                snapshot.asking.append(asking)
    for holding in snapshot.holdings:
        if not holding.low:
            snapshot.own[holding.team.name, holding.supply] += holding.devices
            for level in snapshot.line(holding.team):
                snapshot.used[level.name, holding.supply] += holding.devices
    return snapshot


def _by_place(
    pods: Iterable[JobPod], supplies: Mapping[Supply, Pool]
) -> tuple[dict[str, Counter[tuple[str, str]]], Counter[tuple[str, str]]]:
    """Count devices by (node, resource): of each job, and of all."""
    known = {resource(s, p) for s, p in supplies.items()}
    placed: dict[str, Counter[tuple[str, str]]] = {}
    taken: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        if not pod.spec.node_name:
            continue
        for name, count in requested(PodObject(pod.metadata, pod.spec), known.__contains__):
            placed.setdefault(pod.job, Counter())[pod.spec.node_name, name] += count
            taken[pod.spec.node_name, name] += count
    return placed, taken


def _rooms(
    supply: Supply, pool: Pool, nodes: Sequence[NodeObject], taken: Counter[tuple[str, str]]
) -> Iterator[SchedulableNode]:
    name, place = resource(supply, pool), pool.place
    if not isinstance(place, KubernetesPlace):
        return
    for node in nodes:
        ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
        if (
            not ready
            or node.spec.unschedulable
            or not place.node_labels.items() <= node.metadata.labels.items()
        ):
            continue
        total = whole_number(node.status.allocatable.get(name, "0"))
        if total:
            free = max(0, total - taken[node.metadata.name, name])
            yield SchedulableNode(node.metadata.name, node.metadata.labels, total, free)


def _holdings(
    workload: Workload,
    team: Team,
    placed: Mapping[str, Counter[tuple[str, str]]],
    supplies: Mapping[Supply, Pool],
) -> Iterator[RunningWorkload]:
    admission = workload.status.admission
    if admission is None:
        return
    low = admission.cluster_queue.endswith(LOW_SUFFIX)
    here = placed.get(workload.job, Counter())
    for assignment in admission.pod_set_assignments:
        for name, quantity in assignment.resource_usage.items():
            pool = assignment.flavors.get(name, "").partition(".")[0]
            supply = next((s for s, p in supplies.items() if p.name == pool and resource(s, p) == name), None)
            if supply is not None:
                nodes = {node: count for (node, of), count in here.items() if of == name}
                yield RunningWorkload(workload, team, low, supply, whole_number(quantity), nodes)


def _asking(
    workload: Workload, team: Team, queue: str, supplies: Mapping[Supply, Pool]
) -> WaitingWorkload | None:
    (pods,) = workload.spec.pod_sets
    names = {resource(s, p) for s, p in supplies.items()}
    wanted = requested(PodObject(ObjectMeta(), pods.template.spec.pod()), names.__contains__)
    if len(wanted) != 1 or not queue:
        return None
    ((name, devices),) = wanted
    fitting = tuple(
        s for s, p in supplies.items()
        if resource(s, p) == name and team.grant(s) is not None and _may_run(pods.template.spec, p)
    )  # fmt: skip
    together = pods.topology_request.required if pods.topology_request else ""
    low = queue.endswith(LOW_SUFFIX)
    return (
        WaitingWorkload(workload, team, low, queue, fitting, pods.count, devices, together)
        if fitting
        else None
    )


def _may_run(spec: TemplateSpec, pool: Pool) -> bool:
    place = pool.place
    if not isinstance(place, KubernetesPlace):
        return False
    elsewhere = any(place.node_labels.get(k, v) != v for k, v in spec.node_selector.items())
    taints = [read_taint(t) for t in place.taints]
    return not elsewhere and all(any(_tolerates(o, t) for o in spec.tolerations) for t in taints)


def _tolerates(toleration: Toleration, taint: Mapping[str, str]) -> bool:
    if toleration.key and toleration.key != taint["key"]:
        return False
    if toleration.effect and toleration.effect != taint["effect"]:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.get("value", "")
