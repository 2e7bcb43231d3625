"""Kueue's Workloads: the few fields that policy reads of them, and their number under an object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import Json
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import Container, ObjectMeta, PodSpec, Resources
from fairway.policy.objects import Activity, ObjectKey

PATH: Final = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS: Final = "workloads.kueue.x-k8s.io"
FEW_NAMESPACES: Final = 20
"""Up to so many namespaces are listed one by one; beyond, the whole cluster is."""


class WorkloadMeta(ObjectMeta, rename="camel", frozen=True, gc=False):
    """A Workload's identity, creation time, labels and owners."""

    creation_timestamp: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: list[ObjectMeta] = field(default_factory=list)


class Toleration(Struct, frozen=True, gc=False):
    """A taint that pods tolerate."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class TemplateResources(Struct, frozen=True, gc=False):
    """The resources of a container. In a template, unlike in a pod, limits are not yet requests too."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class TemplateContainer(Struct, rename="camel", frozen=True, gc=False):
    """One container of a pod template."""

    resources: TemplateResources = TemplateResources()
    restart_policy: str = ""

    def container(self) -> Container:
        """Convert to a container as a pod has it."""
        wish = Resources({**self.resources.limits, **self.resources.requests})
        return Container(resources=wish, restart_policy=self.restart_policy)


class TemplateSpec(Struct, rename="camel", frozen=True, gc=False):
    """What each pod requests, and where it may run."""

    containers: list[TemplateContainer] = []
    init_containers: list[TemplateContainer] = []
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[Toleration] = field(default_factory=list)

    def pod(self) -> PodSpec:
        """Return a pod of the template, before it has a node."""
        return PodSpec(
            containers=[c.container() for c in self.containers],
            init_containers=[c.container() for c in self.init_containers],
        )


class PodTemplate(Struct, frozen=True, gc=False):
    """The template of a pod set."""

    spec: TemplateSpec = TemplateSpec()


class TopologyRequest(Struct, frozen=True, gc=False):
    """The topology level that the pods of a set must share."""

    required: str = ""


class PodSet(Struct, rename="camel", frozen=True, gc=False):
    """A set of equal pods."""

    name: str = "main"
    count: int = 1
    template: PodTemplate = PodTemplate()
    topology_request: TopologyRequest | None = None


class WorkloadSpec(Struct, rename="camel", frozen=True, gc=False):
    """A Workload's queue, priority and pod sets."""

    queue_name: str = ""
    active: bool = True
    priority: int = 0
    pod_sets: list[PodSet] = []


class Assignment(Struct, rename="camel", frozen=True, gc=False):
    """The flavors and quota that one pod set was given."""

    name: str = "main"
    flavors: dict[str, str] = {}
    resource_usage: dict[str, str] = {}
    count: int = 1


class WorkloadAdmission(Struct, rename="camel", frozen=True, gc=False):
    """The ClusterQueue in which a Workload holds quota."""

    cluster_queue: str = ""
    pod_set_assignments: list[Assignment] = []


class WorkloadCondition(Struct, rename="camel", frozen=True, gc=False):
    """One condition of a Workload."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class WorkloadStatus(Struct, frozen=True, gc=False):
    """Kueue's status of a Workload."""

    admission: WorkloadAdmission | None = None
    conditions: list[WorkloadCondition] = []


class Workload(Struct, frozen=True, gc=False):
    """A Workload: all attempts of one job."""

    metadata: WorkloadMeta
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def finished(self) -> bool:
        return self.condition("Finished") is not None

    @property
    def running(self) -> bool:
        """Whether it holds quota: a job that is being evicted does so until its pods are gone."""
        return self.status.admission is not None and not self.finished

    @property
    def job(self) -> str:
        """`namespace/name` of the Job it represents."""
        owners = self.metadata.owner_references
        return f"{self.metadata.namespace}/{owners[0].name if owners else self.metadata.name}"

    def condition(self, type_: str) -> WorkloadCondition | None:
        """Return the condition of that type. Returns None unless it is true."""
        return next((c for c in self.status.conditions if c.type == type_ and c.status == "True"), None)


async def list_workloads(requests: KubeRequests, namespaces: Sequence[str] | None = None) -> list[Workload]:
    """Return every Workload, or those of these namespaces."""
    if namespaces is None or len(namespaces) > FEW_NAMESPACES:
        return await requests.every(f"{PATH}/workloads", WORKLOADS, type_=Workload)
    found: list[Workload] = []
    for namespace in namespaces:
        found += await requests.every(f"{PATH}/namespaces/{namespace}/workloads", WORKLOADS, type_=Workload)
    return found


async def activity(requests: KubeRequests, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
    """Count running and waiting jobs under each of these objects. Bindings and quotas have none."""
    asked = {k for k in keys if k.kind in _HAVE_JOBS}
    if not asked:
        return {}
    of_namespace = all(k.kind in {kinds.NAMESPACE.name, kinds.LOCAL_QUEUE.name} for k in asked)
    namespaces = sorted({k.name.partition("/")[0] for k in asked}) if of_namespace else None
    workloads = await list_workloads(requests, namespaces)
    queues = await requests.every(kinds.LOCAL_QUEUE.list_path, kinds.LOCAL_QUEUE.resource)
    return count(workloads, queues, asked)


_HAVE_JOBS: Final = frozenset(
    kind.name for kind in (kinds.NAMESPACE, kinds.LOCAL_QUEUE, kinds.CLUSTER_QUEUE, kinds.FLAVOR)
)
"""Not cohorts: one may be deleted, and jobs under it go on; they depend on the queues inside it."""


def count(
    workloads: Sequence[Workload], queues: Sequence[Json], asked: set[ObjectKey]
) -> dict[ObjectKey, Activity]:
    """Count from lists at hand, in one pass over the Workloads."""
    leads_to = {
        f"{q['metadata']['namespace']}/{q['metadata']['name']}": q["spec"].get("clusterQueue", "")
        for q in queues
    }
    running: Counter[ObjectKey] = Counter()
    waiting: Counter[ObjectKey] = Counter()
    for workload in workloads:
        if workload.finished:
            continue
        under = running if workload.running else waiting
        for key in _keys(workload, leads_to):
            if key in asked:
                under[key] += 1
    return {key: Activity(running[key], waiting[key]) for key in running.keys() | waiting.keys()}


def _keys(workload: Workload, leads_to: Mapping[str, str]) -> set[ObjectKey]:
    namespace = workload.metadata.namespace
    queue = f"{namespace}/{workload.spec.queue_name}"
    admission = workload.status.admission
    cluster_queue = admission.cluster_queue if admission else leads_to.get(queue, "")
    keys = {
        ObjectKey(kinds.NAMESPACE.name, namespace),
        ObjectKey(kinds.LOCAL_QUEUE.name, queue),
        ObjectKey(kinds.CLUSTER_QUEUE.name, cluster_queue),
    }
    for assignment in admission.pod_set_assignments if admission else ():
        keys |= {ObjectKey(kinds.FLAVOR.name, flavor) for flavor in assignment.flavors.values()}
    return keys
