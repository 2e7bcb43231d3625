"""Read the few fields of Kueue's Workloads that Fairway needs, and count them under an object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import KUEUE, Json
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import Condition, Container, OwnedMeta, PodSpec, Resources
from fairway.policy.objects import Activity, ObjectKey

WORKLOADS: Final = "workloads.kueue.x-k8s.io"
MAX_SINGLE_NAMESPACES: Final = 20
"""Up to this many namespaces are listed one by one; for more, the whole cluster is listed."""


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
        requests = Resources({**self.resources.limits, **self.resources.requests})
        return Container(resources=requests, restart_policy=self.restart_policy)


class TemplateSpec(Struct, rename="camel", frozen=True, gc=False):
    """What each pod requests, and where it may run."""

    containers: list[TemplateContainer] = []
    init_containers: list[TemplateContainer] = []
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[Toleration] = field(default_factory=list)
    restart_policy: str = ""

    def pod(self) -> PodSpec:
        """Return a pod of the template, before it has a node."""
        return PodSpec(
            containers=[c.container() for c in self.containers],
            init_containers=[c.container() for c in self.init_containers],
        )


class TemplateMeta(Struct, frozen=True, gc=False):
    """The annotations and labels of a pod template."""

    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


class PodTemplate(Struct, frozen=True, gc=False):
    """The template of a pod set."""

    metadata: TemplateMeta = TemplateMeta()
    spec: TemplateSpec = TemplateSpec()


class TopologyRequest(Struct, rename="camel", frozen=True, gc=False):
    """Where the pods of a set must, or had better, be together."""

    required: str = ""
    preferred: str = ""
    unconstrained: bool | None = None
    pod_set_slice_required_topology: str = ""

    @property
    def asks(self) -> bool:
        """Whether it asks for places: Kueue also writes requests that only say how to number pods."""
        return bool(self.required or self.preferred or self.pod_set_slice_required_topology) or (
            self.unconstrained is not None
        )


class PodSet(Struct, rename="camel", frozen=True, gc=False):
    """A set of equal pods."""

    name: str = ""
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

    name: str = ""
    flavors: dict[str, str] = {}
    resource_usage: dict[str, str] = {}


class WorkloadAdmission(Struct, rename="camel", frozen=True, gc=False):
    """The ClusterQueue in which a Workload holds quota."""

    cluster_queue: str = ""
    pod_set_assignments: list[Assignment] = []


class Evictions(Struct, frozen=True, gc=False):
    """How often a Workload was evicted for one reason."""

    count: int = 0


class SchedulingStats(Struct, frozen=True, gc=False):
    """Kueue's counters of a Workload."""

    evictions: list[Evictions] = []


class PodSetRequest(Struct, frozen=True, gc=False):
    """What all pods of a set request, as Kueue counts it."""

    name: str = ""
    resources: dict[str, str] = {}


class WorkloadStatus(Struct, rename="camel", frozen=True, gc=False):
    """Kueue's status of a Workload."""

    admission: WorkloadAdmission | None = None
    resource_requests: list[PodSetRequest] = []
    """While it waits."""
    conditions: list[Condition] = []
    scheduling_stats: SchedulingStats = SchedulingStats()


class Workload(Struct, frozen=True, gc=False):
    """A Workload: all attempts of one job."""

    metadata: OwnedMeta
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

    def condition(self, type_: str) -> Condition | None:
        """Return the condition of this type. Returns None unless it is true."""
        return next((c for c in self.status.conditions if c.type == type_ and c.status == "True"), None)


async def list_workloads(requests: KubeRequests, namespaces: Sequence[str] | None = None) -> list[Workload]:
    """Return every Workload, or those of these namespaces."""
    if namespaces is None or len(namespaces) > MAX_SINGLE_NAMESPACES:
        return await requests.list_all(f"{KUEUE}/workloads", WORKLOADS, type_=Workload)
    found: list[Workload] = []
    for namespace in namespaces:
        found += await requests.list_all(
            f"{KUEUE}/namespaces/{namespace}/workloads", WORKLOADS, type_=Workload
        )
    return found


async def activity(requests: KubeRequests, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
    """Count running and waiting jobs under each of these objects. Bindings and quotas have none."""
    with_jobs = {k for k in keys if k.kind in _HAVE_JOBS}
    if not with_jobs:
        return {}
    namespaced = all(k.kind in {kinds.NAMESPACE.name, kinds.LOCAL_QUEUE.name} for k in with_jobs)
    namespaces = sorted({k.name.partition("/")[0] for k in with_jobs}) if namespaced else None
    workloads = await list_workloads(requests, namespaces)
    queues = await requests.list_all(kinds.LOCAL_QUEUE.list_path, kinds.LOCAL_QUEUE.resource)
    return count(workloads, queues, with_jobs)


_HAVE_JOBS: Final = frozenset(kind.name for kind in (kinds.NAMESPACE, kinds.LOCAL_QUEUE, kinds.CLUSTER_QUEUE))
"""Not cohorts and flavors: when one is deleted, the jobs under it go on.

They depend on the queues inside a cohort, and a flavor stays until the last job in it has ended.
"""


def count(
    workloads: Sequence[Workload], queues: Sequence[Json], keys: set[ObjectKey]
) -> dict[ObjectKey, Activity]:
    """Count the running and waiting Workloads under each of `keys`, in one pass."""
    cluster_queues = {
        f"{q['metadata']['namespace']}/{q['metadata']['name']}": q["spec"].get("clusterQueue", "")
        for q in queues
    }
    running: Counter[ObjectKey] = Counter()
    waiting: Counter[ObjectKey] = Counter()
    for workload in workloads:
        if workload.finished:
            continue
        counter = running if workload.running else waiting
        for key in _keys(workload, cluster_queues):
            if key in keys:
                counter[key] += 1
    return {key: Activity(running[key], waiting[key]) for key in running.keys() | waiting.keys()}


def _keys(workload: Workload, cluster_queues: Mapping[str, str]) -> set[ObjectKey]:
    namespace = workload.metadata.namespace
    queue = f"{namespace}/{workload.spec.queue_name}"
    admission = workload.status.admission
    cluster_queue = admission.cluster_queue if admission else cluster_queues.get(queue, "")
    return {
        ObjectKey(kinds.NAMESPACE.name, namespace),
        ObjectKey(kinds.LOCAL_QUEUE.name, queue),
        ObjectKey(kinds.CLUSTER_QUEUE.name, cluster_queue),
    }
