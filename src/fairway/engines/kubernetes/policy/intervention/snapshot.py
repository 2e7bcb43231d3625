"""Take a snapshot of a cluster in terms of the fleet: running and waiting jobs, and nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from fairway.engines.kubernetes.api.wire import NodeObject, ObjectMeta, OwnedMeta, PodObject, PodSpec
from fairway.engines.kubernetes.nodes.devices import resource, whole_number
from fairway.engines.kubernetes.nodes.facts import requested
from fairway.engines.kubernetes.policy.fields import parse_taint
from fairway.engines.kubernetes.policy.pod_policies import WORKLOAD
from fairway.engines.kubernetes.policy.workloads import TemplateSpec, Toleration, Workload
from fairway.model.fleet import Fleet, KubernetesPlace, Pool
from fairway.model.names import ClusterName
from fairway.model.team import Supply, Team, TeamTree

LOW_SUFFIX: Final = ".low"


class JobPod(Struct, frozen=True, gc=False):
    """A bound, unfinished pod."""

    metadata: OwnedMeta
    spec: PodSpec

    @property
    def workload(self) -> str:
        """`namespace/name` of its Workload; of one that Kueue did not mark, of nothing."""
        return f"{self.metadata.namespace}/{self.metadata.annotations.get(WORKLOAD, '')}"


@dataclass(frozen=True, slots=True)
class RunningWorkload:
    """A running job, with its devices of one supply."""

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
    """A waiting job: the pods it needs, and the supplies of which any would do."""

    workload: Workload
    team: Team
    low: bool
    queue: str
    """Its ClusterQueue."""
    supplies: tuple[Supply, ...]
    pods: int
    devices_a_pod: int
    topology_label: str
    """The node label that must be equal on all its nodes; empty: none."""

    @property
    def devices(self) -> int:
        return self.pods * self.devices_a_pod


@dataclass(frozen=True, slots=True)
class SchedulableNode:
    """A node that is ready for new pods, with its devices of one supply."""

    name: str
    labels: Mapping[str, str]
    total: int
    free: int


@dataclass(slots=True)
class Snapshot:
    """Running and waiting workloads of a cluster, its nodes, and what each team holds, at one moment."""

    tree: TeamTree
    running: list[RunningWorkload] = field(default_factory=list)
    waiting: list[WaitingWorkload] = field(default_factory=list)
    nodes: dict[Supply, list[SchedulableNode]] = field(default_factory=dict)
    used: Counter[tuple[str, Supply]] = field(default_factory=Counter)
    """Devices held by a team and its child teams, without low jobs, which any team may preempt."""
    own: Counter[tuple[str, Supply]] = field(default_factory=Counter)
    """The same without the child teams."""

    def guarantee(self, team: Team, supply: Supply) -> int:
        grant = team.grant(supply)
        return 0 if grant is None else grant.guarantee

    def own_guarantee(self, team: Team, supply: Supply) -> int:
        """Return a team's guarantee without those of its child teams."""
        return self.guarantee(team, supply) - self.tree.guaranteed_to_children(team, supply)

    def is_guaranteed(self, waiting: WaitingWorkload, supply: Supply) -> bool:
        """Return whether a job is within a guarantee: its team's, or what is left of an ancestor's."""
        return not waiting.low and any(
            self.used[team.name, supply] + waiting.devices <= self.guarantee(team, supply)
            for team in self.with_ancestors(waiting.team)
        )

    def with_ancestors(self, team: Team) -> Iterator[Team]:
        """Yield the team and its ancestors."""
        yield team
        yield from self.tree.ancestors(team)


def take_snapshot(
    fleet: Fleet,
    cluster: ClusterName,
    workloads: Sequence[Workload],
    pods: Iterable[JobPod],
    nodes: Sequence[NodeObject],
    cluster_queues: Mapping[str, str],
) -> Snapshot:
    """Build the snapshot from lists. `cluster_queues` maps LocalQueues `namespace/name` to ClusterQueues."""
    pools = tuple(p for p in fleet.pools_of(cluster) if isinstance(p.place, KubernetesPlace))
    supplies = {s: p for p in pools for s in p.supplies}
    snapshot = Snapshot(TeamTree(fleet.teams))
    by_workload, in_use = _count_devices(pods, supplies)
    snapshot.nodes = {s: list(_schedulable_nodes(s, p, nodes, in_use)) for s, p in supplies.items()}
    for workload in workloads:
        if workload.finished or workload.metadata.namespace not in snapshot.tree:
            continue
        team = snapshot.tree[workload.metadata.namespace]
        if workload.status.admission is not None:
            snapshot.running += _running(workload, team, by_workload, supplies)
        elif workload.spec.active:
            queue = cluster_queues.get(f"{team.name}/{workload.spec.queue_name}", "")
            if waiting := _waiting(workload, team, queue, supplies):
                snapshot.waiting.append(waiting)
    for running in snapshot.running:
        if not running.low:
            snapshot.own[running.team.name, running.supply] += running.devices
            for team in snapshot.with_ancestors(running.team):
                snapshot.used[team.name, running.supply] += running.devices
    return snapshot


def _count_devices(
    pods: Iterable[JobPod], supplies: Mapping[Supply, Pool]
) -> tuple[dict[str, Counter[tuple[str, str]]], Counter[tuple[str, str]]]:
    """Count the devices that pods hold by (node, resource): those of each Workload, and all."""
    resources = {resource(s, p) for s, p in supplies.items()}
    by_workload: dict[str, Counter[tuple[str, str]]] = {}
    in_use: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        if not pod.spec.node_name:
            continue
        for name, count in requested(PodObject(pod.metadata, pod.spec), resources.__contains__):
            by_workload.setdefault(pod.workload, Counter())[pod.spec.node_name, name] += count
            in_use[pod.spec.node_name, name] += count
    return by_workload, in_use


def _schedulable_nodes(
    supply: Supply, pool: Pool, nodes: Sequence[NodeObject], in_use: Counter[tuple[str, str]]
) -> Iterator[SchedulableNode]:
    name, place = resource(supply, pool), pool.place
    if not isinstance(place, KubernetesPlace):
        return
    for node in nodes:
        ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
        in_pool = place.node_labels.items() <= node.metadata.labels.items()
        total = whole_number(node.status.allocatable.get(name, "0"))
        if ready and in_pool and total and not node.spec.unschedulable:
            free = max(0, total - in_use[node.metadata.name, name])
            yield SchedulableNode(node.metadata.name, node.metadata.labels, total, free)


def _running(
    workload: Workload,
    team: Team,
    by_workload: Mapping[str, Counter[tuple[str, str]]],
    supplies: Mapping[Supply, Pool],
) -> Iterator[RunningWorkload]:
    admission = workload.status.admission
    if admission is None:
        return
    low = admission.cluster_queue.endswith(LOW_SUFFIX)
    placed = by_workload.get(f"{workload.metadata.namespace}/{workload.metadata.name}", Counter())
    for assignment in admission.pod_set_assignments:
        for name, quantity in assignment.resource_usage.items():
            pool = assignment.flavors.get(name, "").partition(".")[0]
            supply = next((s for s, p in supplies.items() if p.name == pool and resource(s, p) == name), None)
            if supply is not None:
                nodes = {node: count for (node, of), count in placed.items() if of == name}
                yield RunningWorkload(workload, team, low, supply, whole_number(quantity), nodes)


def _waiting(
    workload: Workload, team: Team, queue: str, supplies: Mapping[Supply, Pool]
) -> WaitingWorkload | None:
    names = {resource(s, p) for s, p in supplies.items()}
    asking = [
        (pods, name, count)
        for pods in workload.spec.pod_sets
        for name, count in requested(PodObject(ObjectMeta(), pods.template.spec.pod()), names.__contains__)
    ]
    if len(asking) != 1 or not queue:  # of several sets with devices it is not known which wait
        return None
    ((pods, name, count),) = asking
    fitting = tuple(
        s for s, p in supplies.items()
        if resource(s, p) == name and team.grant(s) is not None and _may_run(pods.template.spec, p)
    )  # fmt: skip
    if not fitting:
        return None
    label = pods.topology_request.required if pods.topology_request else ""
    low = queue.endswith(LOW_SUFFIX)
    return WaitingWorkload(workload, team, low, queue, fitting, pods.count, count, label)


def _may_run(spec: TemplateSpec, pool: Pool) -> bool:
    place = pool.place
    if not isinstance(place, KubernetesPlace):
        return False
    elsewhere = any(place.node_labels.get(k, v) != v for k, v in spec.node_selector.items())
    taints = [parse_taint(t) for t in place.taints]
    return not elsewhere and all(any(_tolerates(o, t) for o in spec.tolerations) for t in taints)


def _tolerates(toleration: Toleration, taint: Mapping[str, str]) -> bool:
    if toleration.key and toleration.key != taint["key"]:
        return False
    if toleration.effect and toleration.effect != taint["effect"]:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.get("value", "")
